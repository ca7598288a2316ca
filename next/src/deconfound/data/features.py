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
from deconfound.table import Kind, Table, read_columns, read_table


@dataclass(frozen=True)
class FeatureEncoder:
    """Columns of a table as an array, the same for training rows and for new ones.

    A numeric column is one column of x, with NaN where a cell is missing. A column of two levels is
    one column that is 1 for the second level, 0 for the first, and NaN where the cell is neither of
    both. Other categorical columns are one 0/1 column per level; all are 0 where the cell is
    missing or its level was not among the training rows. A network reads NaN as the mean.

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
            columns = [name] if levels is None else [f"{name}: {level}" for level in levels]
            # Of two levels only the second has a column.
            names += columns[1:] if len(columns) == 2 else columns
        return tuple(names)

    def encode(self, table: Table) -> NDArray[np.float32]:
        """Return x, shape `(n, d)`, of any table with these columns.

        Raises:
            TableError: Lists the columns that are absent, or hold texts instead of numbers.
        """
        kinds: dict[str, Kind] = dict.fromkeys(self.columns, "categorical")
        kinds |= {name: "numeric" for name, levels in self.columns.items() if levels is None}
        cells = read_table(read_columns(table, list(self.columns)), types=kinds)
        parts = [_encode_column(cells[name], levels) for name, levels in self.columns.items()]
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


def _encode_column(cells: pd.Series, levels: tuple[str, ...] | None) -> NDArray[Any]:
    """Return the columns of x for one column of the table, shape `(n, k)`."""
    if levels is None:
        return cells.to_numpy()[:, None]
    texts = cells.astype(object).to_numpy()[:, None]
    is_level: NDArray[np.bool_] = texts == np.array(levels, dtype=object)
    if len(levels) == 2:
        # A row with neither level has no value.
        return np.where(is_level.any(axis=1), is_level[:, 1], np.nan)[:, None]
    return is_level
