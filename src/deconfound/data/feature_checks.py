"""Features that look too good, or that are no measurements: what to look at before anything is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.sources import Source, SourceNote
from deconfound.design.table import absent_columns, is_missing, level_text
from deconfound.errors import TableError

# A feature that orders the labels at least this well (as an AUC, or a correlation of ranks) is hardly a measurement.
COPY = 0.99
# So much better than guessing, on rows that were not learned from, the pattern of empty cells reveals a column.
REVEALS = 0.1
FEWEST_ROWS = 20
# Cohen's kappa from which two raters are said to agree moderately.
KAPPA = 0.4


def suspicious_features(
    source: Source, labels: Sequence[str], groups: Sequence[str] = (), person: str | None = None
) -> list[SourceNote]:
    """What to look at before training: columns that know the label too well, rows that are there twice.

    Features that copy a label or number the rows, columns that may be another rater's label, rows with equal features,
    and empty cells that reveal a label or a confound.

    Args:
        source: Of a source whose features have no names only the columns of its table are looked at.
        labels: Columns that are predicted.
        groups: Confounds with levels, such as the site.
        person: The column that names the person of a row.
    """
    table = source.table
    faults = absent_columns([*labels, *groups], list(table), "labels and groups")
    if faults:
        raise TableError(faults)
    if len(source) < FEWEST_ROWS:
        return []
    notes = [note for label in labels for note in _raters(table, label, {*labels, *groups, person})]
    values, names = getattr(source, "values", None), getattr(source, "names", ())
    if values is None or not len(names):
        return notes
    numbers = np.asarray(values, dtype=np.float64)
    rated = {note.column for note in notes}
    for name, column in zip(names, numbers.T, strict=True):
        for label in labels:
            if name not in rated and _order(column, np.asarray(table[label])) >= COPY:
                text = f"{name} orders {label} almost without error: is it a copy of the label, or known only after it?"
                notes.append(SourceNote("copies label", name, text))
        if np.isfinite(column).all() and (np.diff(column) == 1).all():
            notes.append(SourceNote("identifier", name, f"{name} counts the rows: it is a name, not a measurement"))
    return [*notes, *_repeated(numbers, table, labels, person), *_empty_cells(numbers, table, [*labels, *groups])]


def _raters(table: Mapping[str, Any], label: str, taken: set[str | None]) -> list[SourceNote]:
    """Columns with the levels of a label that agree with it more often than chance would have it."""
    ours = _texts(table[label])
    levels = {level for level in ours if level is not None}
    notes: list[SourceNote] = []
    if not 2 <= len(levels) <= FEWEST_ROWS:
        return notes
    for name in table:
        theirs = [] if name in taken else _texts(table[name])
        both = [(a, b) for a, b in zip(ours, theirs, strict=False) if a is not None and b is not None]
        if len(both) < FEWEST_ROWS or len({b for _, b in both}) < 2 or not {b for _, b in both} <= levels:
            continue
        first, second = Counter(a for a, _ in both), Counter(b for _, b in both)
        agreed = sum(a == b for a, b in both) / len(both)
        by_chance = sum(first[level] * second[level] for level in levels) / len(both) ** 2
        if agreed - by_chance >= KAPPA * (1 - by_chance):
            text = (
                f"{name} has the levels of {label} and agrees with it in {agreed:.0%} of rows: if it is another "
                "rater's answer, or known only after the label, leave it out (data.exclude); a model can hardly agree "
                "with raters more than they agree with each other"
            )
            notes.append(SourceNote("another rater", name, text))
    return notes


def _repeated(
    numbers: NDArray[np.float64], table: Mapping[str, Any], labels: Sequence[str], person: str | None
) -> list[SourceNote]:
    """Rows of different people with equal features, where these are measured finely enough for that to be odd."""
    if max(len(np.unique(column)) for column in numbers.T) < len(numbers) / 2:
        return []
    people = range(len(numbers)) if person is None else _texts(table[person])
    outcomes = list(zip(*(_texts(table[label]) for label in labels), strict=True))
    same: dict[bytes, list[int]] = {}
    for row, cells in enumerate(numbers):
        same.setdefault(cells.tobytes(), []).append(row)
    sets = [rows for rows in same.values() if len({people[row] for row in rows}) > 1]
    if not sets:
        return []
    rows = sum(map(len, sets))
    split = sum(len(group) for group in sets if len({outcomes[row] for row in group}) > 1)
    text = (
        f"{rows} rows have the same features as another person's, {split} of them with another label: copies, or "
        "several raters of one sample? Keep one, or name a column in data.person that keeps them in one fold"
    )
    return [SourceNote("repeated rows", "", text)]


def _empty_cells(numbers: NDArray[np.float64], table: Mapping[str, Any], columns: Sequence[str]) -> list[SourceNote]:
    """Columns that the pattern of empty cells reveals."""
    gaps = np.isnan(numbers)
    patterns = [tuple(row) for row in gaps[:, gaps.any(0)].tolist()]
    notes = []
    for name in columns if gaps.any() else []:
        levels = [None if is_missing(cell) else cell for cell in np.asarray(table[name]).tolist()]
        if 1 < len(set(levels) - {None}) <= FEWEST_ROWS:
            right, guess = _revealed(patterns, levels)
            if right >= guess + REVEALS:
                text = (
                    f"which cells are empty tells {name} in {right:.0%} of rows (guessing: {guess:.0%}), and "
                    "filling them in leaves a trace of it"
                )
                notes.append(SourceNote("empty cells", name, text))
    return notes


def _texts(column: Any) -> list[str | None]:
    """Levels as text; 1 and 1.0, which gaps make of it, are one level."""
    return [None if is_missing(cell) else level_text(cell) for cell in np.asarray(column).tolist()]


def _order(column: NDArray[np.float64], label: NDArray[Any]) -> float:
    """How well a column orders a label: AUC of two classes, either way round, else the correlation of ranks."""
    cells = label.tolist()
    known = np.array([not is_missing(cell) for cell in cells]) & np.isfinite(column)
    present = [cell for cell, use in zip(cells, known, strict=True) if use]
    if len(present) < FEWEST_ROWS:
        return 0.0
    try:
        levels, codes = np.unique(np.array(present), return_inverse=True)
    except TypeError:  # numbers and text side by side have no order
        return 0.0
    ranks = _ranks(column[known])
    if len(levels) == 2:
        cases = codes == 1
        n, m = int(cases.sum()), int((~cases).sum())
        auc = (ranks[cases].sum() - n * (n - 1) / 2) / (n * m)
        return float(max(auc, 1 - auc))
    if levels.dtype.kind not in "iuf" or not ranks.std():
        return 0.0
    return float(abs(np.corrcoef(ranks, _ranks(np.array(present, dtype=np.float64)))[0, 1]))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """From 0, ties sharing the mean of their ranks."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[codes].astype(np.float64)


def _revealed(patterns: Sequence[Hashable], levels: Sequence[Any]) -> tuple[float, float]:
    """How often the usual level of a pattern is right on the other half of the rows, and how often guessing is."""
    order = np.random.default_rng(0).permutation(len(levels))
    halves = [[row for row in half if levels[row] is not None] for half in (order[::2], order[1::2])]
    hits = guesses = total = 0
    for learn, test in (halves, halves[::-1]) if all(halves) else ():
        everyone = Counter(levels[row] for row in learn)
        by_pattern: dict[Hashable, Counter[Any]] = {}
        for row in learn:
            by_pattern.setdefault(patterns[row], Counter())[levels[row]] += 1
        for row in test:
            total += 1
            hits += levels[row] == by_pattern.get(patterns[row], everyone).most_common(1)[0][0]
            guesses += levels[row] == everyone.most_common(1)[0][0]
    return hits / max(1, total), guesses / max(1, total)
