"""The paper's MRI cohort, simulated: the same people, and scans whose truth is known."""

from deconfound_lab.cohort.cohort import Cohort, simulate_cohort
from deconfound_lab.cohort.people import (
    GROUPS,
    LABELS,
    SEPARATION,
    TABLE_ONE,
    People,
    count_table_one,
    draw_people,
)
from deconfound_lab.cohort.rendering import SCANNERS, Draws, Renderer, Scanner
from deconfound_lab.cohort.truth import bayes_accuracy

__all__ = [
    "GROUPS",
    "LABELS",
    "SCANNERS",
    "SEPARATION",
    "TABLE_ONE",
    "Cohort",
    "Draws",
    "People",
    "Renderer",
    "Scanner",
    "bayes_accuracy",
    "count_table_one",
    "draw_people",
    "simulate_cohort",
]
