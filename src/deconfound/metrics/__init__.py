"""Measures of what is left: distance correlation, correlations, tests, probes, performance."""

from deconfound.metrics.beyond_linear import BeyondLinear, beyond_linear
from deconfound.metrics.columns import Column, column
from deconfound.metrics.conditional import partial_distance_correlation, residual_dcor_sqr, within_group_dcor_sqr
from deconfound.metrics.confounder_tests import conditional_permutations, full_confounder_test, partial_confounder_test
from deconfound.metrics.correlation import (
    Association,
    association,
    correlation_ratio,
    cramers_v,
    paper_association,
    pearson,
    point_biserial,
)
from deconfound.metrics.differences import Difference, bootstrap_difference, delong_difference
from deconfound.metrics.distance import (
    distance_correlation_sqr,
    distance_covariance_sqr,
    u_distance_correlation_sqr,
    u_distance_covariance_sqr,
)
from deconfound.metrics.distance_tests import dcor_test
from deconfound.metrics.performance import (
    AUCSplit,
    Calibration,
    accuracy,
    auc,
    auc_split,
    balanced_accuracy,
    brier_score,
    calibration,
    group_accuracy,
    macro_auc,
    r_squared,
)
from deconfound.metrics.probes import probe
from deconfound.metrics.resampling import Estimate, Resampling, holm
from deconfound.metrics.residual_tests import residual_dcor_test

__all__ = [
    "AUCSplit",
    "Association",
    "BeyondLinear",
    "Calibration",
    "Column",
    "Difference",
    "Estimate",
    "Resampling",
    "accuracy",
    "association",
    "auc",
    "auc_split",
    "balanced_accuracy",
    "beyond_linear",
    "bootstrap_difference",
    "brier_score",
    "calibration",
    "column",
    "conditional_permutations",
    "correlation_ratio",
    "cramers_v",
    "dcor_test",
    "delong_difference",
    "distance_correlation_sqr",
    "distance_covariance_sqr",
    "full_confounder_test",
    "group_accuracy",
    "holm",
    "macro_auc",
    "paper_association",
    "partial_confounder_test",
    "partial_distance_correlation",
    "pearson",
    "point_biserial",
    "probe",
    "r_squared",
    "residual_dcor_sqr",
    "residual_dcor_test",
    "u_distance_correlation_sqr",
    "u_distance_covariance_sqr",
    "within_group_dcor_sqr",
]
