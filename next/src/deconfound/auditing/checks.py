"""Reasons why an audit has no answer for a confound, and what data would give one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deconfound.auditing.intake import Column, Intake
from deconfound.metrics import correlation_ratio, cramers_v, pearson

# From this association on (Cramér's V, η or |r|), label and confound are one column.
INSEPARABLE = 0.95
# A test on fewer rows that can change places says nothing.
FEWEST_MOVABLE_ROWS = 12


@dataclass(frozen=True)
class NoAnswer:
    """Why nothing can be known about a confound.

    Attributes:
        reason: A sentence with the cause.
        collect: A sentence with the data that would give an answer.
    """

    reason: str
    collect: str


def find_obstacle(confound: Column, intake: Intake) -> NoAnswer | None:
    """Return why no test of this confound is possible with this table, or None."""
    name, values = confound.name, confound.values
    if len(np.unique(values)) == 1:
        return NoAnswer(
            f"{name} has the same value in every row.", f"Add people with another {name}."
        )
    if confound.is_categorical and len(confound.levels) == intake.people > 2:
        return NoAnswer(
            f"{name} has another level for each person.",
            f"Join levels of {name}, or leave it out if it is an id.",
        )
    for label in intake.labels:
        strength = association(confound, label)
        if strength >= INSEPARABLE:
            return NoAnswer(
                f"{name} and {label.name} are nearly the same column (association "
                f"{strength:.2f}), so a difference between levels of {name} may be the label's.",
                f"Add people in whom {name} and {label.name} do not go together.",
            )
    if intake.fold.max() > 0 and not _varies_in_cells(values, intake.fold):
        return NoAnswer(
            f"{name} has one value in each test fold, and models of different folds differ anyway.",
            f"Audit the predictions of one model for people with several values of {name}.",
        )
    # The cells of the test: people of one label group in one fold.
    cells = np.unique(intake.group.astype(str), return_inverse=True)[1]
    cells = cells * (intake.fold.max() + 1) + intake.fold
    if not _varies_in_cells(values, cells):
        return NoAnswer(
            f"{name} does not vary among people with the same labels in the same test fold.",
            f"Add people with the same labels and another {name}.",
        )
    return None


def too_few_rows(confound: Column, movable: int) -> NoAnswer:
    """Return the answer for a test in which hardly any row can change places with another."""
    return NoAnswer(
        f"Only {movable} rows have a counterpart with the same labels and another {confound.name}.",
        f"Add people until each label group has several values of {confound.name}.",
    )


def constant_outputs() -> NoAnswer:
    """Return the answer for a model whose outputs do not vary within label groups."""
    return NoAnswer(
        "The outputs do not vary among people with the same labels.",
        "Audit scores instead of predicted classes.",
    )


def association(first: Column, second: Column) -> float:
    """Return how strongly two columns go together: Cramér's V, η, or |r|, from 0 to 1."""
    if min(len(np.unique(first.values)), len(np.unique(second.values))) < 2:
        return 0.0
    if first.is_categorical and second.is_categorical:
        return cramers_v(first.values, second.values)
    if first.is_categorical:
        return correlation_ratio(second.values, first.values)
    if second.is_categorical:
        return correlation_ratio(first.values, second.values)
    return abs(pearson(first.values, second.values))


def _varies_in_cells(values: np.ndarray, cells: np.ndarray) -> bool:
    """Return True if two rows of one cell have different values."""
    pairs = np.unique(np.column_stack([cells, values]), axis=0)
    return len(pairs) > len(np.unique(cells))
