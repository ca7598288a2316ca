"""Data with a known truth, and readers of real data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deconfound.data.cohort import Cohort, simulate_cohort
    from deconfound.data.counting import paper_table_one, table_one
    from deconfound.data.scans import Scans, open_scans
    from deconfound.data.strengths import Strengths
    from deconfound.data.truth import bayes_accuracy

_HOMES = {
    "Cohort": "cohort",
    "Scans": "scans",
    "Strengths": "strengths",
    "bayes_accuracy": "truth",
    "open_scans": "scans",
    "paper_table_one": "counting",
    "simulate_cohort": "cohort",
    "table_one": "counting",
}

__all__ = [
    "Cohort",
    "Scans",
    "Strengths",
    "bayes_accuracy",
    "open_scans",
    "paper_table_one",
    "simulate_cohort",
    "table_one",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'deconfound.data' has no attribute {name!r}")
    value = getattr(import_module(f"deconfound.data.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
