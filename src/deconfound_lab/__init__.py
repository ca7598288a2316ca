"""The paper's experiments, the simulated cohort and the benchmarks, as a user of `deconfound`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deconfound_lab.cohort.cohort import Cohort, simulate_cohort
    from deconfound_lab.cohort.counting import paper_table_one, table_one
    from deconfound_lab.cohort.strengths import Strengths, Variant
    from deconfound_lab.cohort.truth import bayes_accuracy

_HOMES = {
    "Cohort": "cohort.cohort",
    "Strengths": "cohort.strengths",
    "Variant": "cohort.strengths",
    "bayes_accuracy": "cohort.truth",
    "paper_table_one": "cohort.counting",
    "simulate_cohort": "cohort.cohort",
    "table_one": "cohort.counting",
}

__all__ = ["Cohort", "Strengths", "Variant", "bayes_accuracy", "paper_table_one", "simulate_cohort", "table_one"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'deconfound_lab' has no attribute {name!r}")
    value = getattr(import_module(f"deconfound_lab.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
