"""Reading a table: a DataFrame or a mapping of column name → array, without importing pandas."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deconfound.errors import TableError

# What BIDS tables and CSV readers leave in a text cell that holds nothing.
MISSING_TEXT = frozenset({"", "n/a"})


class Table(Protocol):
    """One row per sample, named columns: what a DataFrame and a dict of arrays have in common."""

    def keys(self) -> Iterable[Any]: ...
    def __getitem__(self, key: str, /) -> Any: ...


def column_names(table: Table) -> list[str]:
    """Every column of the table."""
    if not hasattr(table, "keys") or not hasattr(table, "__getitem__"):
        raise TableError(
            f"a table must be a DataFrame or a mapping of column name to array; got {type(table).__name__}."
        )
    return [str(name) for name in table.keys()]  # noqa: SIM118 - iterating a DataFrame is not promised


def absent(names: Sequence[str], available: Sequence[str], role: str) -> list[str]:
    """One sentence for each name that the table does not have, with the nearest one that it has."""
    faults = []
    for name in names:
        if name not in available:
            near = difflib.get_close_matches(str(name), available, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(available) or 'nothing'}."
            faults.append(f"{role} must be columns of the table; got {name!r}, which it lacks. {hint}")
    return faults


def read_columns(table: Table, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The named columns as one-dimensional arrays of one length."""
    columns = {}
    keys = {str(key): key for key in table.keys()}  # noqa: SIM118 - a DataFrame need not iterate over names
    for name in dict.fromkeys(names):
        values = _array(table[keys.get(name, name)], name)
        if values.ndim != 1:
            raise TableError(
                f"column {name!r} must be one-dimensional; got shape {values.shape}. "
                "Give each of its parts a name of its own."
            )
        if values.dtype.kind in "mMcV":
            raise TableError(
                f"column {name!r} must hold numbers, booleans or text; got dtype {values.dtype}. "
                "Turn it into a number (years, say) first."
            )
        columns[name] = values
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise TableError(f"all columns of a table must have the same number of rows; got {sizes}.")
    return columns


def _array(column: Any, name: str) -> NDArray[Any]:
    if hasattr(column, "detach"):  # a tensor, wherever it is and whatever its graph
        column = column.detach().cpu()
    try:
        return np.asarray(column)
    except ValueError as error:
        raise TableError(f"column {name!r} must hold one value per row; got {error}.") from error


def is_missing(value: object) -> bool:
    """Whether one cell holds nothing: None, NaN, a pandas NA, an empty text or BIDS' `n/a`."""
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    if isinstance(value, str):
        return value.strip().lower() in MISSING_TEXT
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def plain(value: Any) -> Any:
    """A cell as a plain Python value, so that levels compare equal whatever array they came from."""
    return value.item() if isinstance(value, np.generic) else value


def as_numbers(values: NDArray[Any], name: str) -> NDArray[np.float64]:
    """A column as float64, NaN where a cell holds nothing."""
    if values.dtype.kind in "biuf":
        numbers = values.astype(np.float64)
    else:
        numbers = np.empty(len(values))
        wrong = []
        for row, value in enumerate(values.tolist()):
            try:
                numbers[row] = np.nan if is_missing(value) else float(value)
            except (TypeError, ValueError):
                wrong.append(row)
        if wrong:
            raise TableError(
                f"numeric column {name!r} must hold numbers; got {plain(values[wrong[0]])!r} "
                f"{in_rows(wrong)}. Pass types={{{name!r}: 'categorical'}} if its values are names."
            )
    infinite = np.flatnonzero(np.isinf(numbers))
    if infinite.size:
        raise TableError(
            f"numeric column {name!r} must be finite; got {numbers[infinite[0]]} {in_rows(infinite)}. "
            "Correct these cells, or leave them empty and pass missing='mean'."
        )
    return numbers


def in_rows(rows: Sequence[int] | NDArray[np.intp], shown: int = 5) -> str:
    """`in row 3`, `in rows 3, 8` or `in 120 rows (3, 8, 9, 12, 15, …)`: the first few positions."""
    first = ", ".join(str(int(row)) for row in rows[:shown])
    if len(rows) == 1:
        return f"in row {first}"
    if len(rows) <= shown:
        return f"in rows {first}"
    return f"in {len(rows)} rows ({first}, …)"
