"""What a table can and cannot answer: how far confounds and keep are the same thing in these data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.design.notes import DesignNote

NEARLY_THE_SAME = 0.9
FEW_ROWS = 10


@dataclass(frozen=True)
class Explained:
    """How much of one keep column the confounds explain on the training rows."""

    keep: str
    by_all: float
    by_each: Mapping[str, float]


@dataclass(frozen=True)
class Overlap:
    """Two terms of which one can nearly be predicted from the other."""

    first: str
    second: str
    r2: float


@dataclass(frozen=True)
class SmallLevel:
    """A level with so few rows that its effect can hardly be estimated."""

    column: str
    level: str
    rows: int


@dataclass(frozen=True)
class Diagnosis:
    """The answers of `Design.diagnose()`; `str()` of it is a text to read.

    Attributes:
        explained: For each keep column, the R² of regressing it on all confounds, and on each alone.
        overlaps: Pairs of terms with R² of at least 0.9 in one direction.
        small_levels: Levels with fewer than 10 training rows.
        balance: What weights that make label and confounds independent would cost, or the error that says why there are
            none; None unless `diagnose` was given the training rows.
    """

    explained: tuple[Explained, ...]
    overlaps: tuple[Overlap, ...]
    small_levels: tuple[SmallLevel, ...]
    balance: Any = None

    @property
    def notes(self) -> tuple[DesignNote, ...]:
        """Each answer as a record with its sentence."""
        notes = []
        for item in self.explained:
            parts = sorted(item.by_each.items(), key=lambda pair: -pair[1])
            each = ", ".join(f"{name} {r2:.0%}" for name, r2 in parts)
            text = f"the confounds explain {item.by_all:.0%} of {item.keep} (alone: {each})"
            notes.append(DesignNote("explained", (item.keep,), text))
            if item.by_all >= NEARLY_THE_SAME:
                text = (
                    f"{item.keep} and the confounds are nearly the same thing in these rows: "
                    "what is removed and what is kept cannot be told apart"
                )
                notes.append(DesignNote("inseparable", (item.keep,), text))
        for pair in self.overlaps:
            text = f"{pair.first} and {pair.second} overlap: R² {pair.r2:.2f}"
            notes.append(DesignNote("overlap", (pair.first, pair.second), text))
        for small in self.small_levels:
            text = f"{small.column} has only {small.rows} {'row' if small.rows == 1 else 'rows'} at {small.level}"
            notes.append(DesignNote("small level", (small.column,), text, small.level, small.rows))
        return tuple(notes)

    def __str__(self) -> str:
        lines = [f"  {note.text}" if note.kind == "inseparable" else note.text for note in self.notes]
        lines += [] if self.balance is None else [str(self.balance)]
        return "\n".join(lines) or "nothing to report: no keep columns, no overlaps, no small levels"


def explained_share(gram: NDArray[np.float64], targets: Sequence[int], predictors: Sequence[int]) -> float:
    """R² of regressing the target columns on the predictor columns, from their covariance matrix alone."""
    total = float(np.trace(gram[np.ix_(targets, targets)]))
    if total <= 0 or not len(predictors):
        return 0.0
    cross = gram[np.ix_(predictors, targets)]
    inverse = np.linalg.pinv(gram[np.ix_(predictors, predictors)], rcond=1e-9, hermitian=True)
    return float(np.clip(np.trace(cross.T @ inverse @ cross) / total, 0.0, 1.0))


def diagnose(
    gram: NDArray[np.float64],
    confounds: Mapping[str, Sequence[int]],
    keep: Mapping[str, Sequence[int]],
    level_counts: Mapping[str, Mapping[str, int]],
) -> Diagnosis:
    """Diagnose from `gram (p, p)`, the covariance of the standardised columns, and the positions of each term in it."""
    everything = [index for columns in confounds.values() for index in columns]
    explained = tuple(
        Explained(
            name,
            explained_share(gram, columns, everything),
            {other: explained_share(gram, columns, indices) for other, indices in confounds.items()},
        )
        for name, columns in keep.items()
    )
    terms = {**confounds, **keep}
    overlaps = []
    for first, second in combinations(terms, 2):
        r2 = max(
            explained_share(gram, terms[first], terms[second]),
            explained_share(gram, terms[second], terms[first]),
        )
        if r2 >= NEARLY_THE_SAME:
            overlaps.append(Overlap(first, second, r2))
    small = tuple(
        SmallLevel(column, level, rows)
        for column, counts in level_counts.items()
        for level, rows in counts.items()
        if rows < FEW_ROWS
    )
    return Diagnosis(explained, tuple(overlaps), small)
