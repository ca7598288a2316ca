"""Tables in text files: which delimiter parts the cells, which columns there are, and whether every line is whole."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.design.table import is_missing
from deconfound.errors import TableError

_DELIMITERS = (",", "\t", ";", "|")
_WORDS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
# What R, SQL, Excel, SAS and pandas write for nothing. Among names they may be names: a site can be called NA.
EMPTY_AMONG_NUMBERS = frozenset({"na", "<na>", "nan", "null", "none", "#n/a", "."})
# So many lines show which delimiter gives them all as many cells.
_LOOKED_AT = 20


@dataclass(frozen=True)
class Delimited:
    """The text of a table, checked: one line of names, and as many cells in every other line.

    Attributes:
        text: All of it, without a byte order mark.
        delimiter: What parts the cells.
        decimal: "," where numbers are written 3,14, else ".".
        names: The column at each place; "" at those that hold no column.
    """

    text: str
    delimiter: str
    decimal: str
    names: tuple[str, ...]

    @property
    def used(self) -> list[int]:
        """The places that hold a column."""
        return [place for place, name in enumerate(self.names) if name]

    def lines(self) -> Iterator[list[str]]:
        """The cells of each line after the names, lines that are empty left out."""
        reader = csv.reader(io.StringIO(self.text, newline=""), delimiter=self.delimiter)
        filled = (line for line in reader if line)
        next(filled)
        return filled


def read_delimited(path: Path) -> Delimited:
    """Read a table whose cells are parted by commas, tabs, semicolons or bars, whatever its ending says.

    A first column without a name numbers the rows, as pandas writes it, and counts as no column.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TableError(f"{path} must be UTF-8 text; got {error}. Save it as UTF-8.") from error
    except OSError as error:
        raise TableError(f"{path} must be a table that can be read; got {error}. Check the file.") from error
    try:
        delimiter = _delimiter(text, "," if path.suffix.lower() == ".csv" else "\t")
        names, rows = _whole(path, text, delimiter)
    except csv.Error as error:
        raise TableError(f"{path} must be a table that can be read; got {error}. Check the file.") from error
    if not rows:
        raise TableError(
            f"{path} must have a line of column names and at least one row; got {1 if names else 0} lines."
        )
    _refuse_twice(path, names)
    found = Delimited(text, delimiter, _decimal(text, delimiter), tuple(names))
    _refuse_nameless(path, found)
    return found


def typed(cells: Iterable[str | None], decimal: str = ".") -> NDArray[Any]:
    """A column as numbers where every filled cell is one, else as text, with NaN or None where nothing stands."""
    stripped = [None if is_missing(cell) else str(cell).strip() for cell in cells]
    found = [_number(cell, decimal) for cell in stripped]
    if all(number is not None for number in found) and not all(number != number for number in found):
        return np.array(found, dtype=np.float64)
    return np.array(stripped, dtype=object)


def _number(cell: str | None, decimal: str) -> float | None:
    """NaN for nothing, None for what is no number."""
    if cell is None or cell.lower() in EMPTY_AMONG_NUMBERS:
        return float("nan")
    try:
        return None if "_" in cell else float(cell.replace(decimal, "."))
    except ValueError:
        return None


def _delimiter(text: str, usual: str) -> str:
    """The usual delimiter if it gives the first lines as many cells, else another that does."""
    counts = {
        mark: [len(line) for line, _ in zip(_lines(text, mark), range(_LOOKED_AT), strict=False)]
        for mark in sorted(_DELIMITERS, key=lambda mark: mark != usual)
    }
    even = [mark for mark, cells in counts.items() if cells and cells[0] > 1 and len(set(cells)) == 1]
    return even[0] if even else max(counts, key=lambda mark: counts[mark][:1])


def _whole(path: Path, text: str, delimiter: str) -> tuple[list[str], int]:
    """The names and the number of rows, after every line has been seen to have a cell for each name."""
    names: list[str] = []
    rows = 0
    for number, cells in _cell_counts(text, delimiter):
        if not names:
            names = [name.strip() for name in next(_lines(text, delimiter))]
        elif cells != len(names):
            raise TableError(
                f"{path} must have {len(names)} cells in every line, parted by the {_WORDS[delimiter]}; got {cells} in "
                f"line {number}. Complete it, or quote the cell that holds a {_WORDS[delimiter]}."
            )
        else:
            rows += 1
    return names, rows


def _cell_counts(text: str, delimiter: str) -> Iterator[tuple[int, int]]:
    """Number and count of cells of each line that is not empty."""
    if '"' in text:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        yield from ((reader.line_num, len(line)) for line in reader if line)
    else:  # counting is many times faster than reading
        lines: Iterable[str] = io.StringIO(text, newline="")
        yield from ((number, line.count(delimiter) + 1) for number, line in enumerate(lines, 1) if line.strip("\r\n"))


def _lines(text: str, delimiter: str) -> Iterator[list[str]]:
    return (line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if line)


def _refuse_twice(path: Path, names: list[str]) -> None:
    twice = [name for name in dict.fromkeys(names) if name and names.count(name) > 1]
    if twice:
        told = [
            f"{name!r} as columns {' and '.join(str(at + 1) for at, other in enumerate(names) if other == name)}"
            for name in twice
        ]
        raise TableError(f"{path} must name every column once; got {', '.join(told)}. Rename or delete one of them.")


def _refuse_nameless(path: Path, found: Delimited) -> None:
    """Nameless columns may number the rows, in the first place, or hold nothing: a delimiter ends every line."""
    nameless = [place for place, name in enumerate(found.names) if not name and place]
    filled = [place for place in nameless if any(line[place].strip() for line in found.lines())]
    if filled:
        raise TableError(
            f"{path} must name every column; got none for column {filled[0] + 1}, which has cells. Name it."
        )
    if not found.used:
        raise TableError(f"{path} must have a line of column names; got empty ones.")


def _decimal(text: str, delimiter: str) -> str:
    if delimiter == ",":
        return "."
    ends = rf"(?:^|{re.escape(delimiter)})\"?[+-]?\d+{{}}\d+\"?(?=$|\r|{re.escape(delimiter)})"
    comma, dot = (re.search(ends.format(mark), text, re.MULTILINE) for mark in (",", r"\."))
    return "," if comma and not dot else "."
