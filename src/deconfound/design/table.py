"""Reading a table: a DataFrame or a mapping of column name → array, without importing pandas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deconfound.errors import Fault, ShapeError, TableError, did_you_mean

# What BIDS tables, CSV readers and NaN turned into text leave in a cell that holds nothing.
MISSING_TEXT = frozenset({"", "n/a", "nan"})
_LARGEST_INT = np.iinfo(np.int64).max
_TEXT = {str, type(None)}


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
    return [*map(str, table.keys())]


def absent_columns(names: Sequence[str], available: Sequence[str], role: str) -> list[Fault]:
    """A fault for each name that the table does not have, with the nearest one that it has."""
    faults = []
    for name in names:
        if name not in available:
            hint = did_you_mean(str(name), available, f"It has: {', '.join(available) or 'nothing'}.")
            text = f"{role} must be columns of the table; got {name!r}, which it lacks.{hint}"
            faults.append(Fault("absent", str(name), text))
    return faults


def absent(names: Sequence[str], available: Sequence[str], role: str) -> list[str]:
    """The sentences of `absent_columns`."""
    return [str(fault) for fault in absent_columns(names, available, role)]


def read_columns(table: Table, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The named columns as one-dimensional arrays of one length; see `as_column`."""
    keys = list(table.keys())
    called = dict(zip(map(str, keys), keys, strict=True))
    if len(called) < len(keys):
        twice = next(name for name in called if [*map(str, keys)].count(name) > 1)
        raise TableError(Fault("shape", twice, f"a table must name each column once; got {twice!r} twice."))
    columns = {}
    for name in names:
        if name not in columns:
            columns[name] = as_column(table[called.get(name, name)], name)
    if len(set(map(len, columns.values()))) > 1:
        sizes = ", ".join(f"{name}: {len(values)}" for name, values in columns.items())
        raise TableError(f"all columns of a table must have the same number of rows; got {sizes}.")
    return columns


def is_category(column: Any) -> bool:
    """Whether pandas calls a column a category: then its values are names, also where they are numbers."""
    return str(getattr(column, "dtype", "")) == "category"


def category_columns(table: Table, names: Sequence[str]) -> list[str]:
    """Those of the named columns that pandas calls categories."""
    called = {str(key): key for key in table.keys()}  # noqa: SIM118 - a DataFrame need not iterate over names
    return [name for name in dict.fromkeys(names) if name in called and is_category(table[called[name]])]


def as_column(column: Any, name: str) -> NDArray[Any]:
    """Whatever holds one value per row, as numbers or booleans where it has them, else as text or plain Python values.

    What a cell without a value holds is left to `is_missing`.
    """
    if hasattr(column, "detach"):  # a tensor, wherever it is and whatever its graph
        column = column.detach().cpu()
        column = column.float() if column.dtype.is_floating_point and column.dtype.itemsize < 4 else column
    try:
        mask = np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else None
        values = np.asarray(column)
    except (ValueError, TypeError, RuntimeError) as error:
        raise TableError(_one_value(name, f"{error}.")) from error
    if values.ndim != 1:
        raise TableError(
            Fault(
                "shape",
                name,
                f"column {name!r} must be one-dimensional; got shape {values.shape}.",
                advice="Give each of its parts a name of its own.",
            )
        )
    if values.dtype.kind == "V" and values.dtype.names is None and values.dtype.itemsize < 8:
        values = values.astype(np.float64)  # bfloat16 and its like, which numpy itself does not know
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # what overflows is infinite, and refused
            values = values.astype(np.float64)  # a cell of a long double is no Python number
    if values.dtype.kind in "mMcVS":
        raise TableError(_wrong_type(name, f"dtype {values.dtype}"))
    if mask is not None and mask.any():
        values = values.astype(object)
        values[mask] = None
    if values.dtype.kind == "U" or (values.dtype == object and set(map(type, values.tolist())) <= _TEXT):
        return values
    if values.dtype.kind in "biuf":
        return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
    return from_cells(values.tolist(), name)


def as_array(values: Any, name: str) -> NDArray[Any]:
    """Numbers of any shape as an array that torch can take over: native, writable, without masked cells."""
    if np.ma.is_masked(values):
        raise ShapeError(f"{name} must have a number in every row; got masked ones. Leave these rows out.")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ShapeError(f"{name} must be an array of numbers; got {error}.") from error
    if array.dtype.kind not in "biuf":
        raise ShapeError(f"{name} must hold numbers; got dtype {array.dtype}. Turn it into numbers first.")
    kind = np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return np.require(array.astype(kind, copy=False), requirements=["C", "W"])


def from_cells(cells: Iterable[Any], name: str) -> NDArray[Any]:
    """A column of Python values in one form.

    Whole numbers without a gap are int64, other numbers float64 with NaN where a cell holds nothing; booleans without a
    gap are bool; everything else is an object array of plain values with None where a cell holds nothing.
    """
    found = [
        None if is_missing(cell) else plain(cell) for cell in (cells.tolist() if hasattr(cells, "tolist") else cells)
    ]
    filled = [cell for cell in found if cell is not None]
    if not filled:
        return np.full(len(found), np.nan)
    if filled and all(isinstance(cell, bool) for cell in filled):
        return np.array(found, dtype=bool if len(filled) == len(found) else object)
    if filled and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in filled):
        if len(filled) == len(found) and all(isinstance(c, int) and abs(c) <= _LARGEST_INT for c in filled):
            return np.array(found, dtype=np.int64)
        try:
            return np.array([np.nan if cell is None else float(cell) for cell in found], dtype=np.float64)
        except OverflowError as error:
            raise TableError(_one_value(name, "a whole number too large for a float.")) from error
    strange = [cell for cell in filled if not isinstance(cell, str | bool | int | float)]
    if strange:
        raise TableError(_wrong_type(name, repr(strange[0])))
    column = np.empty(len(found), dtype=object)
    column[:] = found
    return column


def is_missing(value: object) -> bool:
    """Whether one cell holds nothing: None, NaN, a pandas NA, a masked cell, an empty text, `n/a` or `nan`."""
    if value is None or value is np.ma.masked or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    if isinstance(value, str):
        return value.strip().lower() in MISSING_TEXT
    if isinstance(value, float | np.floating | Decimal):
        return bool(value != value)
    return False


def plain(value: Any) -> Any:
    """A cell as a plain Python value, so that levels compare equal whatever array they came from."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    if isinstance(value, Decimal):
        return float(value)
    return str(value) if isinstance(value, str) else value  # a subclass of str, such as an enumeration's, is text


def without_point(level: Any) -> Any:
    """A level as a reader would write it: empty cells elsewhere in its column turn the code 17 into 17.0."""
    return int(level) if isinstance(level, float) and level.is_integer() else level


def level_text(level: Any) -> str:
    """A level as text: whole numbers without a point, so that gaps in a column do not rename its levels.

    Example:
        >>> [level_text(value) for value in (3, 3.0, "3", 2.5, True)]
        ['3', '3', '3', '2.5', 'True']
    """
    return str(without_point(level))


def level_names(levels: Sequence[Any]) -> tuple[str, ...]:
    """The text of each level of a column; as Python writes them where two would have the same one.

    Example:
        >>> level_names((3.0, 17.0)), level_names((17.0, "17"))
        (('3', '17'), ('17.0', '17'))
    """
    names = tuple(map(level_text, levels))
    return names if len(set(names)) == len(names) else tuple(map(str, levels))


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
            except (TypeError, ValueError, OverflowError):
                wrong.append(row)
        if wrong:
            got = plain(values[wrong[0]])
            text = f"numeric column {name!r} must hold numbers; got {got!r} {in_rows(wrong)}."
            advice = f"Pass types={{{name!r}: 'categorical'}} if its values are names."
            raise TableError(Fault("type", name, text, got, tuple(wrong), advice=advice))
    infinite = np.isinf(numbers)
    if infinite.any():
        infinite = infinite.nonzero()[0]
        got = float(numbers[infinite[0]])
        text = f"numeric column {name!r} must be finite; got {got} {in_rows(infinite)}."
        advice = "Correct these cells, or leave them empty and {way}."
        raise TableError(Fault("not finite", name, text, got, tuple(infinite.tolist()), "missing", advice))
    return numbers


def in_rows(rows: Sequence[int] | NDArray[np.intp], shown: int = 5) -> str:
    """`in row 3`, `in rows 3, 8` or `in 120 rows (3, 8, 9, 12, 15, …)`: the first few positions, counted from 0."""
    first = ", ".join(str(int(row)) for row in rows[:shown])
    if len(rows) == 1:
        return f"in row {first}"
    if len(rows) <= shown:
        return f"in rows {first}"
    return f"in {len(rows)} rows ({first}, …)"


def _one_value(name: str, got: str) -> Fault:
    return Fault("shape", name, f"column {name!r} must hold one value per row; got {got}")


def _wrong_type(name: str, got: str) -> Fault:
    text = f"column {name!r} must hold numbers, booleans or text; got {got}."
    return Fault("type", name, text, advice="Turn it into a number (years, say) or a text first.")
