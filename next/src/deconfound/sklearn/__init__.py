"""Estimators for scikit-learn that remove confounds."""

from deconfound.sklearn.networks import DeconfoundedClassifier, DeconfoundedRegressor
from deconfound.sklearn.residualizer import ConfoundResidualizer

__all__ = ["ConfoundResidualizer", "DeconfoundedClassifier", "DeconfoundedRegressor"]
