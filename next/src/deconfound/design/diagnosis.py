"""What a design can and cannot separate, measured on its training rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from deconfound.design.columns import FittedTerm
from deconfound.design.whitening import explained_share

Array = NDArray[np.float64]
ALL_CONFOUNDS = "all confounds"
# Above this share of explained variance, two columns can hardly be told apart.
INSEPARABLE = 0.9
# Coefficients of a level with fewer rows are mostly noise.
SMALL_LEVEL = 10


@dataclass(frozen=True)
class Association:
    """The share of a column's variance that other columns explain, R² of a weighted linear fit.

    Attributes:
        target: A column of `keep`, or a confound term (R² is then averaged over its columns).
        by: A confound term, or `"all confounds"`.
        r2: R², from 0 to 1.
    """

    target: str
    by: str
    r2: float


@dataclass(frozen=True)
class DesignNote:
    """One sentence about a design that a user should know before training.

    Attributes:
        kind: "shared": confounds explain a keep column; "overlap": a confound explains another;
            "small level": a level with few rows.
        columns: The columns that it is about; for "small level" the column and the level.
        value: R², or the number of rows of a small level.
        text: The sentence.
    """

    kind: Literal["shared", "overlap", "small level"]
    columns: tuple[str, ...]
    value: float
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Diagnosis:
    """The associations within a design, and notes on those that limit what any method can do.

    Attributes:
        associations: R² of each keep column on all confounds and on each alone, and the R² of at
            least .9 among confound terms.
        notes: What follows from them, and small levels.
    """

    associations: tuple[Association, ...]
    notes: tuple[DesignNote, ...]

    def __str__(self) -> str:
        lines = [f"{a.target} by {a.by}: R² = {a.r2:.2f}" for a in self.associations]
        return "\n".join([*lines, *map(str, self.notes)])


def measure_associations(
    gram: Array, confounds: Sequence[FittedTerm], keep: Sequence[FittedTerm]
) -> tuple[Association, ...]:
    """Return all R² from the Gram matrix of the columns `[C | L]`, shape `(p, p)`."""
    places, start = {}, 0
    for term in [*confounds, *keep]:
        places[str(term.term)] = np.arange(start, start + len(term.names))
        start += len(term.names)
    count = sum(len(term.names) for term in confounds)
    keep_columns = np.arange(count, start)
    keep_names = [name for term in keep for name in term.names]
    # With a single confound, "all confounds" would repeat its line.
    by_all, by_term, overlaps = [], [], []
    if len(confounds) > 1:
        shares = explained_share(gram, np.arange(count), keep_columns)
        for name, share in zip(keep_names, shares, strict=True):
            by_all.append(Association(name, ALL_CONFOUNDS, float(share)))
    for predictor in map(str, (term.term for term in confounds)):
        others = [str(term.term) for term in confounds if str(term.term) != predictor]
        targets = np.concatenate([keep_columns, *[places[name] for name in others]])
        share_of = dict(
            zip(targets, explained_share(gram, places[predictor], targets), strict=True)
        )
        for name, column in zip(keep_names, keep_columns, strict=True):
            by_term.append(Association(name, predictor, float(share_of[column])))
        for name in (name for name in others if len(places[name])):
            mean = np.mean([share_of[column] for column in places[name]])
            if mean >= INSEPARABLE:
                overlaps.append(Association(name, predictor, float(mean)))
    return (*by_all, *by_term, *overlaps)


def diagnose(
    associations: Sequence[Association],
    confounds: Sequence[str],
    counts: Mapping[str, Mapping[str, int]],
) -> Diagnosis:
    """Word the associations and the small levels of a design.

    Args:
        associations: All R² of the design.
        confounds: Names of the confound terms.
        counts: Rows of each level of each categorical column.
    """
    notes = []
    for association in associations:
        if association.r2 < INSEPARABLE:
            continue
        target, by, percent = association.target, association.by, f"{association.r2:.0%}"
        if target in confounds:
            text = f"{by} explains {percent} of {target}: their effects can hardly be told apart."
            notes.append(DesignNote("overlap", (target, by), association.r2, text))
        else:
            verb = "explain" if by == ALL_CONFOUNDS else "explains"
            text = f"{by} {verb} {percent} of {target}: no method can separate them."
            notes.append(DesignNote("shared", (target, by), association.r2, text))
    for column, rows_of_level in counts.items():
        for level, rows in rows_of_level.items():
            if rows < SMALL_LEVEL:
                unit = "row" if rows == 1 else "rows"
                text = f"{column} has {rows} {unit} of level {level!r}: its effect is hardly known."
                notes.append(DesignNote("small level", (column, level), rows, text))
    return Diagnosis(tuple(associations), tuple(notes))
