"""Columns of a table as features: which ones, and how they become numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deconfound.errors import OptionError, TableError, nearest_names
from deconfound.table import Kind, Table, read_columns, read_table, to_levels, to_numbers


@dataclass(frozen=True)
class FeatureEncoder:
    """Columns of a table as an array, the same for training rows and for new ones.

    A numeric column is one column of x, with NaN where a cell is missing. A categorical column is
    one 0/1 column per level, or a single one for the second of two levels; all are 0 where the
    cell is missing or the level was not among the training rows.

    Attributes:
        columns: The levels of each column of the table, None for a numeric column.

    Example:
        >>> table = {"age": [63.5, 71, None, 58], "scanner": ["GE", "Philips", "GE", "Siemens"]}
        >>> encoder = FeatureEncoder.fit(table, ["age", "scanner"])
        >>> encoder.names
        ('age', 'scanner: GE', 'scanner: Philips', 'scanner: Siemens')
        >>> encoder.encode({"age": [70], "scanner": ["Philips"]}).tolist()
        [[70.0, 0.0, 1.0, 0.0]]
    """

    columns: Mapping[str, tuple[str, ...] | None]

    @classmethod
    def fit(
        cls, table: Table, names: Sequence[str], types: Mapping[str, Kind] | None = None
    ) -> Self:
        """Return the encoder of these columns, with the levels that these rows have.

        Args:
            table: Any table that `deconfound.table.read_table` reads.
            names: The columns.
            types: The kind of single columns, "numeric" or "categorical".

        Raises:
            TableError: Lists the columns that are absent, or neither numbers nor levels.
        """
        raw = read_columns(table, list(names))
        kinds = {name: kind for name, kind in (types or {}).items() if name in raw}
        columns: dict[str, tuple[str, ...] | None] = {}
        for name, values in read_table(raw, types=kinds).items():
            is_numeric = pd.api.types.is_float_dtype(values)
            columns[str(name)] = None if is_numeric else tuple(values.cat.categories)
        return cls(columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each column of x."""
        names: list[str] = []
        for name, levels in self.columns.items():
            if levels is None:
                names.append(name)
            else:
                names += [f"{name}: {level}" for level in _levels_with_column(levels)]
        return tuple(names)

    def encode(self, table: Table) -> NDArray[np.float32]:
        """Return x, shape `(n, d)`, of any table with these columns.

        Raises:
            TableError: Lists the columns that are absent, or hold texts instead of numbers.
        """
        raw = read_columns(table, list(self.columns))
        parts: list[NDArray[Any]] = []
        faults: list[object] = []
        for name, levels in self.columns.items():
            try:
                parts.append(_encode_column(raw[name], name, levels))
            except TableError as error:
                faults += error.faults
        if faults:
            raise TableError(*faults)
        with np.errstate(over="ignore"):
            x = np.hstack(parts).astype(np.float32)
        infinite = np.array(self.names)[np.isinf(x).any(axis=0)].tolist()
        if infinite:
            fix = "Write them in another unit."
            raise TableError(f"Columns {infinite} have numbers above float32's 3e38. {fix}")
        return x

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-safe data, in which the columns have an order."""
        return {
            "columns": [[name, levels and list(levels)] for name, levels in self.columns.items()]
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the encoder that `to_dict` described."""
        return cls({name: levels and tuple(levels) for name, levels in data["columns"]})


def select_names(
    names: Sequence[str], patterns: str | Iterable[str] | None, usual: Sequence[str], what: str
) -> list[str]:
    """Return the names that some patterns select, in the order of `names`.

    Args:
        names: All names.
        patterns: Names, or globs (`*`, `?`) among the usual names; `-` before one excludes it.
            None, or exclusions alone, start from the usual names.
        usual: The names to choose from, unless a name is written out.
        what: What is selected, for messages.

    Raises:
        OptionError: Lists the patterns that select nothing.
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns or ())
    chosen, excluded, unmatched = set[str](), set[str](), []
    for pattern in patterns:
        is_exclusion = pattern.startswith("-") and pattern not in names
        glob = pattern[1:] if is_exclusion else pattern
        # A name that is written out may have a role as well, and may contain brackets.
        hits = {glob} if glob in names else {name for name in usual if fnmatchcase(name, glob)}
        (excluded if is_exclusion else chosen).update(hits)
        if not hits:
            unmatched.append(f"There is no {what} {glob!r}. {nearest_names(glob, names)}")
    if unmatched:
        raise OptionError("\n".join(unmatched))
    selected = (chosen or set(usual)) - excluded
    if not selected:
        raise OptionError(f"features= leaves no {what}. Name at least one.")
    return [name for name in names if name in selected]


def _levels_with_column(levels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the levels that have a column: of two levels only the second."""
    return levels[1:] if len(levels) == 2 else levels


def _encode_column(values: pd.Series, name: str, levels: tuple[str, ...] | None) -> NDArray[Any]:
    if levels is None:
        return to_numbers(values, name)[:, None]
    is_level: NDArray[np.bool_] = to_levels(values)[:, None] == np.array(
        _levels_with_column(levels), object
    )
    return is_level
