"""What an audit knows about each row: labels, confounds, people, folds and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deconfound.errors import OptionError, TableError
from deconfound.metrics import LeakRows
from deconfound.table import Kind, Note, Table, read_columns, read_table, to_levels

Array = NDArray[np.float64]
Codes = NDArray[np.intp]

# Levels that do not tell which label they belong to.
NAMELESS_LEVELS = (("0", "1"), ("False", "True"))


@dataclass(frozen=True, eq=False)
class Column:
    """A label or confound.

    Attributes:
        name: Its name in the table.
        levels: Its levels, sorted; empty for numbers.
        values: Codes of the levels, or the numbers, shape `(n,)`.
    """

    name: str
    levels: tuple[str, ...]
    values: Array | Codes

    @property
    def is_categorical(self) -> bool:
        """True for levels, False for numbers."""
        return bool(self.levels)

    @property
    def texts(self) -> NDArray[np.object_]:
        """The level of each row as text, shape `(n,)`."""
        return np.array(self.levels, dtype=object)[self.values.astype(np.intp)]

    @property
    def group_texts(self) -> NDArray[np.object_]:
        """The level of each row as the name of a group of people, such as "AD" or "ill = True"."""
        if self.levels not in NAMELESS_LEVELS:
            return self.texts
        names = np.array([f"{self.name} = {level}" for level in self.levels], dtype=object)
        return names[self.values.astype(np.intp)]


@dataclass(frozen=True, eq=False)
class Intake:
    """The table of an audit, checked: n rows, of which no cell is missing.

    Attributes:
        frame: The raw columns of labels, confounds and people, shape `(n, …)`.
        labels: The labels.
        confounds: The confounds.
        person: Codes of the person, shape `(n,)`.
        fold: Codes of the test fold, shape `(n,)`.
        weight: Weights, shape `(n,)`.
        has_people: Whether a column of people was given.
        has_weights: Whether weights were given.
    """

    frame: pd.DataFrame
    labels: tuple[Column, ...]
    confounds: tuple[Column, ...]
    person: Codes
    fold: Codes
    weight: Array
    has_people: bool
    has_weights: bool

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def people(self) -> int:
        """The number of people."""
        return int(self.person.max()) + 1

    @property
    def group(self) -> NDArray[np.object_]:
        """The combination of categorical labels of each row as text, shape `(n,)`."""
        texts = [label.group_texts for label in self.labels if label.is_categorical]
        if not texts:
            return np.full(len(self), "all", dtype=object)
        return np.array([", ".join(row) for row in zip(*texts, strict=True)], dtype=object)

    @property
    def rows(self) -> LeakRows:
        """What the leak statistic needs to know about the rows."""
        numbers = [label.values for label in self.labels if not label.is_categorical]
        return LeakRows.from_columns(
            len(self),
            group=self.group.tolist(),
            fold=self.fold,
            person=self.person,
            weight=self.weight,
            numeric_labels=np.stack(numbers, axis=1) if numbers else None,
        )


def read_intake(
    table: Table,
    *,
    confounds: Sequence[str],
    labels: Sequence[str],
    person: str | None,
    fold: str | None,
    weight: str | None,
    types: Mapping[str, Kind] | None,
) -> Intake:
    """Read and check the columns of an audit, and raise all faults together."""
    _check_roles(confounds=confounds, labels=labels, person=person, fold=fold, weight=weight)
    types = dict(types or {})
    names = [*labels, *confounds]
    others = [name for name in (person, fold, weight) if name is not None]
    # `types` may name further columns of the table, but no absent ones.
    raw = read_columns(table, list(dict.fromkeys([*names, *others, *types])))
    frame = pd.DataFrame({name: cells.reset_index(drop=True) for name, cells in raw.items()})
    faults: list[Any] = []
    columns: dict[str, Column] = {}
    for name in names:
        try:
            columns[name] = _read_column(frame, name, types.get(name))
        except TableError as error:
            faults += error.faults
    codes = {}
    for name in [name for name in (person, fold) if name is not None]:
        try:
            codes[name] = _read_codes(frame, name)
        except TableError as error:
            faults += error.faults
    weights = np.ones(len(frame))
    if weight is not None:
        try:
            weights = _read_weights(frame, weight)
        except TableError as error:
            faults += error.faults
    if faults:
        raise TableError(*faults)
    return Intake(
        frame=frame,
        labels=tuple(columns[name] for name in labels),
        confounds=tuple(columns[name] for name in confounds),
        person=codes[person] if person else np.arange(len(frame)),
        fold=codes[fold] if fold else np.zeros(len(frame), dtype=np.intp),
        weight=weights,
        has_people=person is not None,
        has_weights=weight is not None,
    )


def _check_roles(
    *,
    confounds: Sequence[str],
    labels: Sequence[str],
    person: str | None,
    fold: str | None,
    weight: str | None,
) -> None:
    faults = []
    for role, names in (("confounds", confounds), ("labels", labels)):
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            given = repr(names) if isinstance(names, str) else f"a {type(names).__name__}"
            faults.append(f"{role} must be a list of column names; got {given}.")
    if faults:
        raise OptionError("\n".join(faults))
    if not confounds:
        faults.append("confounds must name at least one column; got an empty list.")
    roles: dict[str, list[str]] = {}
    single = [("person", person), ("fold", fold), ("weight", weight)]
    pairs = [("confounds", name) for name in confounds] + [("labels", name) for name in labels]
    for role, name in [*pairs, *single]:
        if name is not None:
            roles.setdefault(name, []).append(role)
    for name, places in roles.items():
        if len(places) > 1:
            listed = " and in ".join(places)
            faults.append(f"Column {name!r} stands in {listed}. Give it one role.")
    if faults:
        raise OptionError("\n".join(faults))


def _read_column(frame: pd.DataFrame, name: str, kind: Kind | None) -> Column:
    """Return a label or confound; missing cells are refused."""
    values = read_table(frame[[name]], [name], types={name: kind} if kind else None)[name]
    empty = np.flatnonzero(values.isna())
    if len(empty):
        raise TableError(_missing_note(name, empty))
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.cat.remove_unused_categories()
        levels = tuple(map(str, values.cat.categories))
        return Column(name, levels, np.asarray(values.cat.codes, dtype=np.intp))
    return Column(name, (), values.to_numpy(np.float64))


def _read_codes(frame: pd.DataFrame, name: str) -> Codes:
    """Return codes 0, 1, … of people or folds in the order of their first rows."""
    codes, _ = pd.factorize(to_levels(frame[name]))
    if (codes < 0).any():
        raise TableError(_missing_note(name, np.flatnonzero(codes < 0)))
    return np.asarray(codes, dtype=np.intp)


def _read_weights(frame: pd.DataFrame, name: str) -> Array:
    values = read_table(frame[[name]], types={name: "numeric"})[name].to_numpy(np.float64)
    wrong = np.flatnonzero(~(values >= 0))
    if len(wrong) or not values.any():
        text = f"Weights in column {name!r} must be 0 or more, and positive in some row."
        raise TableError(Note("cell", name, text, "Correct these weights.", tuple(wrong.tolist())))
    return values


def _missing_note(name: str, rows: NDArray[np.intp]) -> Note:
    text = f"Column {name!r} is empty in {len(rows)} rows, the first of which is row {rows[0]}."
    fix = f"Leave these rows out of outputs and table: table.dropna(subset=[{name!r}])."
    return Note("missing", name, text, fix, tuple(rows.tolist()))
