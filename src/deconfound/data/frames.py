"""Workbooks and Parquet files as frames, in which dates are text and other odd cells are marked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from deconfound.design.table import is_missing

_PLAIN = {str, bool, int, float, type(None)}


def frame_and_header(path: Path, pandas: Any) -> tuple[Any, list[str], list[str]]:
    """A file as a DataFrame, the names of its columns as the file has them, and the sheets of a workbook."""
    if path.suffix.lower() == ".parquet":
        frame = pandas.read_parquet(path)
        return frame, [*map(str, frame.columns)], []
    # Cells of a sheet have types of their own: whole numbers come as such, ids as they were typed.
    cells = {"dtype": object, "keep_default_na": False}
    with pandas.ExcelFile(path) as book:
        sheet = pandas.read_excel(book, **cells)
        # Of two columns dx, pandas calls the second one dx.1 in the sheet.
        first = pandas.read_excel(book, header=None, nrows=1, **cells).to_numpy().ravel().tolist()
        return (
            sheet.rename(columns=lambda name: str(name).strip()),
            ["" if is_missing(name) else str(name).strip() for name in first],
            book.sheet_names,
        )


@dataclass(frozen=True, repr=False)
class OddCell:
    """A cell of a file that is no number, boolean, text or date, such as a list: a design names it and refuses it."""

    text: str

    def __repr__(self) -> str:
        return self.text


def without_odd_types(column: Any) -> Any:
    """A column as it is where a table can hold it, else a list with dates as text and `OddCell` for other types."""
    if column.dtype.kind in "biuf":
        return column
    cells = column.tolist()
    if {*map(type, cells)} <= _PLAIN or not any(_is_date(cell) or not _is_ordinary(cell) for cell in cells):
        return column
    # A CSV file has no times where all of them are midnight.
    days = all(cell.time() == time() and not cell.tzinfo for cell in cells if _is_date(cell, datetime))
    return [_written(cell, days) if _is_date(cell) or _is_ordinary(cell) else OddCell(str(cell)) for cell in cells]


def _is_date(cell: Any, kind: Any = (date, time)) -> bool:
    return isinstance(cell, kind) and not is_missing(cell)


def _is_ordinary(cell: Any) -> bool:
    return is_missing(cell) or isinstance(cell, str | bool | int | float | Decimal | np.number | np.bool_)


def _written(cell: Any, days: bool) -> Any:
    """A date or a time as text; other cells as they are."""
    if _is_date(cell, datetime):
        return cell.date().isoformat() if days else cell.isoformat(sep=" ")
    return cell.isoformat() if _is_date(cell) else cell
