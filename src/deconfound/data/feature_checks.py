"""Features that look too good, or that are no measurements: what to look at before anything is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.sources import Source, SourceNote
from deconfound.design.table import absent_columns, is_missing
from deconfound.errors import TableError

# A feature that orders the labels at least this well (as an AUC, or a correlation of ranks) is hardly a measurement.
COPY = 0.99
# So much better than guessing, on rows that were not learned from, the pattern of empty cells reveals a column.
REVEALS = 0.1
FEWEST_ROWS = 20


def suspicious_features(source: Source, labels: Sequence[str], groups: Sequence[str] = ()) -> list[SourceNote]:
    """Features that copy a label or number the rows, and empty cells that reveal a label or a confound.

    Args:
        source: A source whose features have names; of others nothing is said.
        labels: Columns that are predicted.
        groups: Confounds with levels, such as the site.
    """
    values, names, table = getattr(source, "values", None), getattr(source, "names", ()), source.table
    if values is None or not len(names) or len(source) < FEWEST_ROWS:
        return []
    faults = absent_columns([*labels, *groups], list(table), "labels and groups")
    if faults:
        raise TableError(faults)
    notes = []
    for place, name in enumerate(names):
        column = np.asarray(values[:, place], dtype=np.float64)
        for label in labels:
            if _order(column, np.asarray(table[label])) >= COPY:
                text = f"{name} orders {label} almost without error: is it a copy of the label, or known only after it?"
                notes.append(SourceNote("copies label", name, text))
        if np.isfinite(column).all() and (np.diff(column) == 1).all():
            notes.append(SourceNote("identifier", name, f"{name} counts the rows: it is a name, not a measurement"))
    gaps = np.isnan(np.asarray(values, dtype=np.float64))
    patterns = [tuple(row) for row in gaps[:, gaps.any(0)].tolist()]
    for column_name in [*labels, *groups] if gaps.any() else []:
        levels = [None if is_missing(cell) else cell for cell in np.asarray(table[column_name]).tolist()]
        if 1 < len(set(levels) - {None}) <= FEWEST_ROWS:
            right, guess = _revealed(patterns, levels)
            if right >= guess + REVEALS:
                text = (
                    f"which cells are empty tells {column_name} in {right:.0%} of rows (guessing: {guess:.0%}), and "
                    "filling them in leaves a trace of it"
                )
                notes.append(SourceNote("empty cells", column_name, text))
    return notes


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
    hits = guesses = total = 0
    for learn, test in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        usual = Counter(levels[row] for row in learn if levels[row] is not None).most_common(1)
        if not usual:
            continue
        by_pattern: dict[Hashable, Counter[Any]] = {}
        for row in learn:
            if levels[row] is not None:
                by_pattern.setdefault(patterns[row], Counter())[levels[row]] += 1
        for row in test:
            if levels[row] is not None:
                seen = by_pattern.get(patterns[row])
                total += 1
                hits += levels[row] == (seen.most_common(1)[0][0] if seen else usual[0][0])
                guesses += levels[row] == usual[0][0]
    return hits / max(1, total), guesses / max(1, total)
