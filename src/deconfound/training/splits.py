"""Rows into folds, and each fold's training rows into those that fit and those that stop the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.design.table import is_missing, level_text, plain
from deconfound.errors import OptionError, TableError

RowNumbers = NDArray[np.intp]
# The name and the test rows of each fold.
TestRows = list[tuple[str, RowNumbers]]


@dataclass(frozen=True)
class Fold:
    """Row numbers of one fold; the three parts share no row and no person.

    Attributes:
        name: Its number, or the level that is left out.
        train: Rows that everything is fitted on.
        validation: Rows that choose the epoch.
        test: Rows that are only predicted.
        note: What is worth knowing about the division, if anything.
    """

    name: str
    train: RowNumbers
    validation: RowNumbers
    test: RowNumbers
    note: str = ""


def kfold(
    strata: NDArray[Any],
    people: NDArray[Any] | None = None,
    *,
    folds: int = 5,
    validation: float = 0.15,
    seed: int = 0,
    rows: RowNumbers | None = None,
) -> tuple[Fold, ...]:
    """Stratified k-fold cross-validation that keeps people together, with validation rows inside each fold.

    Args:
        strata: A code for each row of the table; its levels are spread evenly.
        people: Who each row belongs to; every row is its own person if None.
        folds: How many folds.
        validation: The share of each fold's training rows that is held out for early stopping.
        seed: Of the division.
        rows: The rows that are divided; all of them if None.

    Example:
        >>> first = kfold(np.arange(20) % 2, folds=4, validation=0.2)[0]
        >>> len(first.train), len(first.validation), len(first.test)
        (12, 3, 5)
    """
    rows = np.arange(len(strata)) if rows is None else rows
    people = np.arange(len(strata)) if people is None else people
    count = len(np.unique(people[rows]))
    if not 2 <= folds <= count:
        raise OptionError(f"splits.folds must be between 2 and the {count} people; got {folds}.")
    part = deal(strata[rows], people[rows], folds, seed)
    tests = [(str(number), rows[part == number]) for number in range(folds)]
    return with_validation(tests, rows, strata, people, validation, seed)


def level_test_rows(values: NDArray[Any], rows: RowNumbers, name: str) -> TestRows:
    """Test rows for each level of the column `name`: sites that are left out, or folds that a table names."""
    empty = [row for row in rows.tolist() if is_missing(values[row])]
    if empty:
        raise TableError(f"splits.column {name!r} must be filled in every row; got {len(empty)} empty cells.")
    names = np.array([level_text(value) for value in values[rows].tolist()], dtype=object)
    levels = sorted(set(names.tolist()), key=lambda level: (len(level), level) if level.isdigit() else (99, level))
    if len(levels) < 2:
        raise TableError(f"splits.column {name!r} must have two levels or more; got {levels}.")
    return [(level, rows[names == level]) for level in levels]


def with_validation(
    tests: TestRows,
    rows: RowNumbers,
    strata: NDArray[Any],
    people: NDArray[Any],
    validation: float,
    seed: int,
    notes: Sequence[str] = (),
) -> tuple[Fold, ...]:
    """Folds from their test rows: of the other rows some are held out for validation."""
    made = []
    for number, (name, test) in enumerate(tests):
        rest = np.setdiff1d(rows, test)
        shared = np.intersect1d(people[rest], people[test])
        if shared.size:
            raise TableError(
                f"splits must keep a person in one fold; got {len(shared)} people both inside and outside fold "
                f"{name!r}. Choose a column that does not divide a person's rows."
            )
        train, held = _hold_out(rest, strata, people, validation, seed + 1000 * (number + 1))
        made.append(Fold(name, train, held, test, notes[number] if notes else ""))
    return tuple(made)


def deal(strata: NDArray[Any], people: NDArray[Any], parts: int, seed: int) -> NDArray[np.intp]:
    """The part of each row: people dealt out like cards, one stratum after the other, in random order.

    Each stratum's people differ by at most one between parts, and so do all people: the next stratum goes on where
    the last one stopped. A person whose rows are in several strata counts for the most frequent one.
    """
    random = np.random.default_rng(seed)
    units, member = np.unique(people, return_inverse=True)
    counts: list[Counter[Any]] = [Counter() for _ in units]
    for unit, stratum in zip(member.tolist(), strata.tolist(), strict=True):
        counts[unit][stratum] += 1
    own = np.array([min(count, key=lambda item: (-count[item], item)) for count in counts])
    part = np.empty(len(units), dtype=np.intp)
    start = 0
    for stratum in np.unique(own):
        mine = random.permutation(np.flatnonzero(own == stratum))
        part[mine] = (start + np.arange(len(mine))) % parts
        start = (start + len(mine)) % parts
    shuffled = random.permutation(parts)  # so that the first part is not always the larger one
    found: NDArray[np.intp] = shuffled[part][member]
    return found


def stratum_codes(columns: Sequence[NDArray[Any]]) -> NDArray[np.intp]:
    """One code per row for the combination of levels; numeric columns are cut into quarters."""
    parts = []
    for values in columns:
        if values.dtype.kind == "f" and len(np.unique(values[~np.isnan(values)])) > 10:
            cuts = np.nanquantile(values, [0.25, 0.5, 0.75])
            values = np.searchsorted(cuts, values)
        parts.append(np.unique([str(plain(value)) for value in values.tolist()], return_inverse=True)[1])
    return np.unique(np.column_stack(parts), axis=0, return_inverse=True)[1].reshape(-1)


def _hold_out(
    rest: RowNumbers, strata: NDArray[Any], people: NDArray[Any], share: float, seed: int
) -> tuple[RowNumbers, RowNumbers]:
    """The rows to train on and those that are held out: one of `round(1 / share)` equal parts, at least two.

    So a share is rounded to a half, a third, a quarter and so on: 0.4 holds out a half, 0.3 a third, 0.15 a seventh.
    """
    parts = max(2, round(1 / share))
    if len(np.unique(people[rest])) < parts:
        raise TableError(
            f"a fold must have at least {parts} people to train on, with splits.validation {share}; got "
            f"{len(np.unique(people[rest]))}. Use fewer folds, a larger splits.validation, or more people."
        )
    held = deal(strata[rest], people[rest], parts, seed) == 0
    return rest[~held], rest[held]


def person_codes(table: Mapping[str, Any], person: str | None, rows: int) -> NDArray[Any]:
    """A code for the person of each row; every row is its own person without a column."""
    if person is None:
        return np.arange(rows)
    values = np.asarray(table[person])
    empty = [row for row, value in enumerate(values.tolist()) if is_missing(value)]
    if empty:
        raise TableError(f"column {person!r} must name a person in every row; got {len(empty)} empty cells.")
    names = values.astype(str).tolist()
    # Two ways to write one person must not come into two folds.
    written: dict[str, str] = {}
    for name in sorted(set(names)):
        written.setdefault(without_zeros(name), name)
    return np.unique([written[without_zeros(name)] for name in names], return_inverse=True)[1]


def without_zeros(name: str) -> str:
    """A name of a person as spreadsheets leave it, which take 0005 for the number 5; what is no number stays."""
    return name.lstrip("0") or "0" if name.isdecimal() else name
