"""Tables in text files: which delimiter separates the cells, and whether every line and every quote is whole."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.design.table import is_missing
from deconfound.errors import DeconfoundWarning, TableError

_WORDS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
# What R, SQL, Excel, SAS and pandas write for nothing. Among names they may be names: a site can be called NA.
EMPTY_AMONG_NUMBERS = frozenset({"na", "<na>", "nan", "null", "none", "#n/a", "."})
# A number below a million whose comma may separate thousands; after a zero it cannot.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_BOOLEANS = {"true": True, "false": False}
# So many lines show which delimiter gives them all as many cells.
_LINES_LOOKED_AT = 20


def read_delimited(path: Path, text: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Read a table whose cells are separated by commas, tabs, semicolons or bars, whatever its ending says.

    A first column without a name numbers the rows, as pandas writes it, and counts as no column.

    Args:
        path: UTF-8 text, the names of the columns in its first line.
        text: Columns that stay text, so that an id keeps its zeros.
    """
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TableError(f"{path} must be UTF-8 text; got {error}. Save it as UTF-8.") from error
    except OSError as error:
        raise TableError(f"{path} must be a table that can be read; got {error}. Check the file.") from error
    lines = io.StringIO(content, newline="").readlines()
    delimiter = _delimiter(lines, "," if path.suffix.lower() == ".csv" else "\t")
    names, rows = _rows(path, lines, delimiter)
    columns = dict(enumerate(zip(*rows, strict=True)))
    used = _named(path, names, columns)
    decimal = _decimal(content, delimiter)
    found = {names[at]: typed(columns[at], decimal, as_text=names[at] in text) for at in used}
    if decimal == ",":
        for at in used:
            if found[names[at]].dtype.kind == "f":
                _warn_of_thousands(path, names[at], columns[at])
    return found


def typed(cells: Sequence[str], decimal: str = ".", as_text: bool = False) -> NDArray[Any]:
    """A column as numbers or booleans where every filled cell is one, else as text with None where nothing stands."""
    if not as_text and decimal == ".":
        quick = _plain_numbers(cells)
        if quick is not None:
            return quick
    stripped = [None if is_missing(cell) else cell.strip() for cell in cells]
    filled = {cell for cell in stripped if cell is not None}
    if as_text:
        return np.array(stripped, dtype=object)
    if not filled:
        return np.full(len(stripped), np.nan)
    if all(cell.lower() in _BOOLEANS for cell in filled):
        truths = [None if cell is None else _BOOLEANS[cell.lower()] for cell in stripped]
        return np.array(truths, dtype=object if None in truths else bool)
    found = [as_number(cell, decimal) for cell in stripped]
    if any(number is None for number in found) or all(number != number for number in found):  # a site called NA
        return np.array(stripped, dtype=object)
    if all(isinstance(number, int) for number in found):
        return np.array(found, dtype=np.int64)
    return np.array(found, dtype=np.float64)


def _plain_numbers(cells: Sequence[str]) -> NDArray[Any] | None:
    """The common case, many times faster: every cell is a number with a point."""
    for kind, dtype in ((int, np.int64), (float, np.float64)):
        try:
            numbers: NDArray[Any] = np.array([*map(kind, cells)], dtype=dtype)
        except (ValueError, OverflowError):
            continue
        whole = "".join(cells)  # Python takes 1_000 and other alphabets' digits for numbers
        return numbers if "_" not in whole and whole.isascii() else None
    return None


def as_number(cell: str | None, decimal: str = ".") -> int | float | None:
    """NaN for nothing, None for what is no number."""
    if cell is None or cell.lower() in EMPTY_AMONG_NUMBERS:
        return float("nan")
    if "_" in cell or not cell.isascii():
        return None
    try:
        return int(cell) if len(cell) < 19 and cell.lstrip("+-").isdigit() else float(cell.replace(decimal, "."))
    except ValueError:
        return None


def _delimiter(lines: Sequence[str], usual: str) -> str:
    """The usual delimiter if it gives the first lines as many cells, else another that does."""
    counts = {}
    for mark in sorted(_WORDS, key=lambda mark: mark != usual):
        reader = csv.reader(lines[: 5 * _LINES_LOOKED_AT], delimiter=mark, skipinitialspace=True)
        try:
            counts[mark] = [len(row) for row in reader if row][:_LINES_LOOKED_AT]
        except csv.Error:
            counts[mark] = []
    even = [mark for mark, cells in counts.items() if cells and cells[0] > 1 and len(set(cells)) == 1]
    return even[0] if even else max(counts, key=lambda mark: counts[mark][:1])


def _rows(path: Path, lines: Sequence[str], delimiter: str) -> tuple[list[str], list[list[str]]]:
    """The names, and the cells of each line, after every line has been seen to have a cell for each name."""
    names: list[str] = []
    rows = []
    for first, last, cells in _records(path, lines, delimiter):
        if not names:
            names = [name.strip() for name in cells]
        elif len(cells) != len(names):
            raise TableError(
                f"{path} must have {len(names)} cells in every line, separated by the {_WORDS[delimiter]}; got "
                f"{len(cells)} in line {last}. Complete it, or quote the cell that holds a {_WORDS[delimiter]}."
            )
        elif last > first and _takes_rows(lines[first : last - 1], delimiter, len(names)):
            raise _stray_quote(path, first, f"it closes in line {last} only, and the lines between look like rows")
        else:
            rows.append(cells)
    if not rows:
        raise TableError(
            f"{path} must have a line of column names and at least one row; got {1 if names else 0} lines."
        )
    return names, rows


def _records(path: Path, lines: Sequence[str], delimiter: str) -> Iterator[tuple[int, int, list[str]]]:
    """The first and last line and the cells of each record that is not empty; lines count from 1."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
    while True:
        first = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise _stray_quote(path, first, str(error)) from error
        if cells is None:
            return
        if cells:
            yield first, reader.line_num, cells


def _takes_rows(inside: Sequence[str], delimiter: str, cells: int) -> bool:
    """Whether the lines inside a quoted cell are rows that a stray quote took; in a single column any may be one."""
    return cells == 1 or any(line.count(delimiter) + 1 == cells for line in inside)


def _stray_quote(path: Path, line: int, why: str) -> TableError:
    return TableError(
        f"{path} must close every quote where its cell ends; got a stray one in line {line} ({why}). Delete it, or "
        "write it twice inside a cell that is quoted as a whole."
    )


def _named(path: Path, names: list[str], columns: dict[int, tuple[str, ...]]) -> list[int]:
    """The places of the columns; nameless ones may number the rows, in the first place, or hold nothing."""
    check_named_once(path, names)
    filled = [at for at, name in enumerate(names) if at and not name and any(cell.strip() for cell in columns[at])]
    if filled:
        raise TableError(
            f"{path} must name every column; got none for column {filled[0] + 1}, which has cells. Name it."
        )
    used = [at for at, name in enumerate(names) if name]
    if not used:
        raise TableError(f"{path} must have a line of column names; got empty ones.")
    return used


def check_named_once(path: Path, names: Sequence[str]) -> None:
    """Refuse a table that has two columns of one name; columns may be without a name."""
    twice = [name for name in dict.fromkeys(names) if name and names.count(name) > 1]
    if twice:
        where = [
            f"{name!r} as columns {' and '.join(str(at + 1) for at, other in enumerate(names) if other == name)}"
            for name in twice
        ]
        raise TableError(f"{path} must name every column once; got {', '.join(where)}. Rename or delete one of them.")


def _warn_of_thousands(path: Path, name: str, cells: Sequence[str]) -> None:
    """Warn where 1,007 may be a thousand and seven: three digits after every comma, and numbers without a comma."""
    numbers = [cell.strip() for cell in cells if any(sign.isdigit() for sign in cell)]
    comma = [cell for cell in numbers if "," in cell]
    bare = [cell for cell in numbers if "," not in cell]
    if not comma or not bare or not all(_THOUSANDS.fullmatch(cell) for cell in comma):
        return
    warnings.warn(
        f"{path}: column {name!r} is read with a decimal comma, {comma[0]} as {comma[0].replace(',', '.')}; but "
        f"{bare[0]} has no comma, and every comma stands before three digits, as one that separates thousands does. "
        f"If it does, write {comma[0].replace(',', '')}; if it is a decimal comma, write {bare[0]},0 as well.",
        DeconfoundWarning,
        stacklevel=4,
    )


def _decimal(content: str, delimiter: str) -> str:
    """A comma where numbers are written 3,14, else a point."""
    if delimiter == ",":
        return "."
    ends = rf"(?:^|{re.escape(delimiter)})\"?[+-]?\d+{{}}\d+\"?(?=$|\r|{re.escape(delimiter)})"
    comma, dot = (re.search(ends.format(mark), content, re.MULTILINE) for mark in (",", r"\."))
    return "," if comma and not dot else "."
