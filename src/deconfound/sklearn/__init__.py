"""Estimators for scikit-learn users: confounds leave X by regression, or leave the features of a network.

`ConfoundResidualizer` is a transformer, `DeconfoundedClassifier` and `DeconfoundedRegressor` are networks. All take
confounds as a table beside X, or as names of columns of a DataFrame X; `docs/guides/sklearn.md` shows both.
"""

from deconfound.errors import DeconfoundError

try:
    import sklearn as _sklearn  # type: ignore[import-untyped]  # noqa: F401 - asked for before the classes need it
except ImportError as fault:

    class _Absent(DeconfoundError, ImportError):
        """scikit-learn is not installed."""

    raise _Absent(
        "deconfound.sklearn must find scikit-learn; got none. Install it: pip install 'deconfound[train]'."
    ) from fault

from deconfound.sklearn.estimators import DeconfoundedClassifier, DeconfoundedRegressor
from deconfound.sklearn.residualizer import ConfoundResidualizer

__all__ = ["ConfoundResidualizer", "DeconfoundedClassifier", "DeconfoundedRegressor"]
