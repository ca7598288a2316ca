"""Measures of what is left of a confound, and of how well a model works without it.

Everything here takes arrays of numbers or levels, and is independent of tables, models, files and
pages.
"""

from __future__ import annotations

from deconfound.metrics.bootstrap import Estimate, Resampling
from deconfound.metrics.comparison import delong, holm, nadeau_bengio
from deconfound.metrics.correlation import (
    correlation_ratio,
    cramers_v,
    paper_association,
    pearson,
    point_biserial,
)
from deconfound.metrics.distance import (
    distance_correlation_sqr,
    u_distance_correlation_sqr,
    within_group_dcor_sqr,
)
from deconfound.metrics.honest import HonestScore, WorstGroup, honest_performance, thirds
from deconfound.metrics.leak import Leak, LeakTest, leak
from deconfound.metrics.leak_rows import LeakRows
from deconfound.metrics.performance import (
    Calibration,
    accuracy,
    auc,
    balanced_accuracy,
    brier_score,
    calibration,
    group_accuracy,
    r_squared,
    weighted_auc,
)
from deconfound.metrics.planting import PlantedLeaks, plant_leaks
from deconfound.metrics.probes import ProbeScore, probe
from deconfound.metrics.similarity import OutputSimilarity

__all__ = [
    "Calibration",
    "Estimate",
    "HonestScore",
    "Leak",
    "LeakRows",
    "LeakTest",
    "OutputSimilarity",
    "PlantedLeaks",
    "ProbeScore",
    "Resampling",
    "WorstGroup",
    "accuracy",
    "auc",
    "balanced_accuracy",
    "brier_score",
    "calibration",
    "correlation_ratio",
    "cramers_v",
    "delong",
    "distance_correlation_sqr",
    "group_accuracy",
    "holm",
    "honest_performance",
    "leak",
    "nadeau_bengio",
    "paper_association",
    "pearson",
    "plant_leaks",
    "point_biserial",
    "probe",
    "r_squared",
    "thirds",
    "u_distance_correlation_sqr",
    "weighted_auc",
    "within_group_dcor_sqr",
]
