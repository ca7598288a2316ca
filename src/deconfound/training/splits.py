"""Rows into folds, and each fold's training rows into those that fit and those that stop the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.design.table import is_missing, plain
from deconfound.errors import OptionError, TableError
from deconfound.training.config import Splits

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Fold:
    """Row numbers of one fold; the three parts share no row and no person.

    Attributes:
        name: Its number, or the level that is left out.
        train: Rows that everything is fitted on.
        validation: Rows that choose the epoch.
        test: Rows that are only predicted.
    """

    name: str
    train: Rows
    validation: Rows
    test: Rows


def folds(
    options: Splits,
    table: Mapping[str, Any],
    usable: NDArray[np.bool_],
    strata: NDArray[Any],
    person: str | None,
    seed: int,
) -> tuple[Fold, ...]:
    """Divide the usable rows.

    Args:
        options: The kind of division.
        table: All rows.
        usable: Which rows have every label.
        strata: A code for each row; its levels are spread evenly.
        person: The column that names the person of a row.
        seed: Used where `options.seed` is None.
    """
    rows = np.flatnonzero(usable)
    people = _people(table, person, len(usable))
    seed = seed if options.seed is None else options.seed
    parts = _test_parts(options, table, rows, strata, people, seed)
    made = []
    for number, (name, test) in enumerate(parts):
        rest = np.setdiff1d(rows, test)
        shared = np.intersect1d(people[rest], people[test])
        if shared.size:
            raise TableError(
                f"splits must keep a person in one fold; got {len(shared)} people both inside and outside fold "
                f"{name!r}. Choose a column that does not divide a person's rows."
            )
        train, validation = _hold_out(rest, strata, people, options.validation, seed + 1000 * (number + 1))
        made.append(Fold(name, train, validation, test))
    return tuple(made)


def deal(strata: NDArray[Any], people: NDArray[Any], parts: int, seed: int) -> NDArray[np.intp]:
    """The part of each row: people dealt out like cards, one stratum after the other, in random order.

    Each stratum's people differ by at most one between parts, and so do all people: the next stratum goes on where
    the last one stopped. A person whose rows are in several strata counts for the most frequent one.
    """
    random = np.random.default_rng(seed)
    units, member = np.unique(people, return_inverse=True)
    votes: list[Counter[Any]] = [Counter() for _ in units]
    for unit, stratum in zip(member.tolist(), strata.tolist(), strict=True):
        votes[unit][stratum] += 1
    own = np.array([min(vote, key=lambda item: (-vote[item], item)) for vote in votes])
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
    """One code per row for the combination of levels; quantities are cut into quarters."""
    parts = []
    for values in columns:
        if values.dtype.kind == "f" and len(np.unique(values[~np.isnan(values)])) > 10:
            cuts = np.nanquantile(values, [0.25, 0.5, 0.75])
            values = np.searchsorted(cuts, values)
        parts.append(np.unique([str(plain(value)) for value in values.tolist()], return_inverse=True)[1])
    return np.unique(np.column_stack(parts), axis=0, return_inverse=True)[1].reshape(-1)


def _test_parts(
    options: Splits, table: Mapping[str, Any], rows: Rows, strata: NDArray[Any], people: NDArray[Any], seed: int
) -> list[tuple[str, Rows]]:
    if options.kind == "kfold":
        count = len(np.unique(people[rows]))
        if not 2 <= options.folds <= count:
            raise OptionError(f"splits.folds must be between 2 and the {count} people; got {options.folds}.")
        part = deal(strata[rows], people[rows], options.folds, seed)
        return [(str(number), rows[part == number]) for number in range(options.folds)]
    if options.column is None:
        raise OptionError(f"splits.column must be given with kind {options.kind!r}; got none. Name a column.")
    values = np.asarray(table[options.column])
    empty = [row for row in rows.tolist() if is_missing(values[row])]
    if empty:
        raise TableError(f"splits.column {options.column!r} must be filled in every row; got {len(empty)} empty cells.")
    names = np.array([_name(value) for value in values[rows].tolist()], dtype=object)
    levels = sorted(set(names.tolist()), key=lambda name: (len(name), name) if name.isdigit() else (99, name))
    if len(levels) < 2:
        raise TableError(f"splits.column {options.column!r} must have two levels or more; got {levels}.")
    return [(name, rows[names == name]) for name in levels]


def _name(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(plain(value))


def _hold_out(rest: Rows, strata: NDArray[Any], people: NDArray[Any], share: float, seed: int) -> tuple[Rows, Rows]:
    parts = max(2, round(1 / share))
    if len(np.unique(people[rest])) < parts:
        raise TableError(
            f"a fold must have at least {parts} people to train on, with splits.validation {share}; got "
            f"{len(np.unique(people[rest]))}. Use fewer folds, a larger splits.validation, or more people."
        )
    held = deal(strata[rest], people[rest], parts, seed) == 0
    return rest[~held], rest[held]


def _people(table: Mapping[str, Any], person: str | None, rows: int) -> NDArray[Any]:
    """A code for the person of each row; every row is its own person without a column."""
    if person is None:
        return np.arange(rows)
    values = np.asarray(table[person])
    empty = [row for row, value in enumerate(values.tolist()) if is_missing(value)]
    if empty:
        raise TableError(f"column {person!r} must name a person in every row; got {len(empty)} empty cells.")
    return np.unique(values.astype(str), return_inverse=True)[1]
