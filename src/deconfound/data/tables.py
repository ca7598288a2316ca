"""The one reader of tables (text, Parquet, DataFrames and mappings), and what joins two of them."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.delimited import EMPTY_AMONG_NUMBERS, as_number, check_named_once, read_delimited
from deconfound.data.frames import OddCell, frame_and_header, without_odd_types
from deconfound.design.table import (
    Table,
    absent_columns,
    category_columns,
    column_names,
    from_cells,
    in_rows,
    is_missing,
    plain,
    read_columns,
)
from deconfound.errors import DeconfoundWarning, OptionError, TableError, need

Columns = dict[str, NDArray[Any]]
TABLES = (".csv", ".tsv", ".txt", ".parquet", ".xlsx")
# Tables that are shipped with the package, for tutorials and first tries.
ASSETS = Path(__file__).parent / "assets"
# So many faults of one kind are named, the others counted.
SHOWN = 5
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def read_table(table: str | Path | Table | Mapping[str, Any], text: Sequence[str] = ()) -> Columns:
    """The columns of a table: a file (CSV, TSV, TXT, Parquet, XLSX), a DataFrame or a mapping.

    Numbers are int64 or float64 with NaN where a cell holds nothing, TRUE and FALSE are booleans, the rest is text with
    None where a cell holds nothing: where it is empty, `n/a` or `nan`, and among numbers also NA, NULL, None, #N/A or a
    point, which other programs write. Dates of a Parquet file or a workbook are text as in a CSV file, 2024-05-31;
    cells of other types (lists, say) are `OddCell`, which whatever reads the column refuses.

    Args:
        table: A path, or a table that is already in memory.
        text: Columns that stay text, so that an id keeps its zeros.

    Example:
        >>> read_table({"age": [61, None], "site": ["A", "n/a"]})
        {'age': array([61., nan]), 'site': array(['A', None], dtype=object)}
    """
    if not isinstance(table, str | Path):
        columns = read_columns(table, column_names(table))
        named = {*category_columns(table, list(columns))}  # where NA is a name even among numbers
        return {
            name: _as_text(cells) if name in text else _typed(cells, name, words=name not in named)
            for name, cells in columns.items()
        }
    path = Path(table)
    if not path.is_file():
        what = "a folder" if path.is_dir() else "nothing there"
        raise TableError(f"{path} must be a file; got {what}. Check the path.")
    kind = path.suffix.lower()
    if kind not in TABLES:
        raise TableError(
            f"{path} must end in {', '.join(TABLES)}; got {kind or 'no ending'!r}. Save the table as one of these."
        )
    columns = _read_frame(path, text) if kind in (".parquet", ".xlsx") else read_delimited(path, text)
    if not columns or not len(next(iter(columns.values()))):
        raise TableError(f"{path} must have at least one row; got none.")
    return columns


def _read_frame(path: Path, text: Sequence[str]) -> Columns:
    """Parquet, or the first sheet of a workbook."""
    pandas = need("pandas", "tables")
    if path.suffix.lower() == ".xlsx":
        need("openpyxl", "excel")
    try:
        frame, header, sheets = frame_and_header(path, pandas)
    except Exception as error:  # each way of being broken has a kind of its own
        raise TableError(f"{path} must be a table that can be read; got {error}. Save it again, or as CSV.") from error
    check_named_once(path, header)
    try:
        columns = _from_cells_of_file(frame, text)
    except TableError as error:
        raise TableError(f"{path}: {error}") from error
    if len(sheets) > 1:
        warnings.warn(
            f"{path} has {len(sheets)} sheets, of which the first is read, {sheets[0]!r}. Move the one you mean to the "
            "front, or save it as CSV.",
            DeconfoundWarning,
            stacklevel=3,
        )
    return columns


def _from_cells_of_file(frame: Any, text: Sequence[str]) -> Columns:
    """The columns of a frame from a file, dates as text; columns with odd cells do no harm until they are named."""
    cells = {str(name): without_odd_types(frame[name]) for name in frame.columns}
    odd = {
        name: column
        for name, column in cells.items()
        if isinstance(column, list) and any(isinstance(cell, OddCell) for cell in column)
    }
    columns = read_table({name: column for name, column in cells.items() if name not in odd}, text)
    for name, column in odd.items():
        found = np.empty(len(column), dtype=object)
        found[:] = [None if is_missing(cell) else cell for cell in column]
        columns[name] = _as_text(found) if name in text else found
    return {name: columns[name] for name in cells}


def _typed(cells: NDArray[Any], name: str, words: bool) -> NDArray[Any]:
    """A column in one form; with `words`, those that stand for nothing among numbers are empty."""
    if cells.dtype.kind in "biuf":
        return cells
    column = from_cells(cells, name)
    return _without_words(column, name) if words and column.dtype == object else column


def _without_words(column: NDArray[Any], name: str) -> NDArray[Any]:
    """Numbers where every other cell is NA, NULL or the like; else the column, in which a site can be called NA."""
    cells = column.tolist()
    if not any(isinstance(cell, str) and cell.strip().lower() in EMPTY_AMONG_NUMBERS for cell in cells):
        return column
    numbers = [_cell_number(cell) for cell in cells]
    if any(number is None for number in numbers) or all(number != number for number in numbers):
        return column
    return from_cells(numbers, name)


def _cell_number(cell: Any) -> int | float | None:
    """NaN for nothing, None for what is no number: also for text such as 007, which is a name."""
    if isinstance(cell, int | float):
        return None if isinstance(cell, bool) else cell
    if cell is None:
        return float("nan")
    return None if re.match(r"\s*[+-]?0\d", cell) else as_number(cell.strip())


def _as_text(column: NDArray[Any]) -> NDArray[Any]:
    """Every cell as text without blanks around it, None where it holds nothing."""
    return np.array([None if is_missing(cell) else str(cell).strip() for cell in column.tolist()], dtype=object)


def example(name: str) -> Path:
    """The file of a table that comes with the package.

    "heart" is UCI heart disease: 920 people of four hospitals (`dataset`), whether coronary disease was found
    (`HeartDisease`, 0 to 4), age, sex and eleven findings, with many empty cells. By A. Janosi, W. Steinbrunn,
    M. Pfisterer and R. Detrano (1989), under the licence CC BY 4.0.

    Args:
        name: Which table.

    Example:
        >>> import deconfound as dc
        >>> dc.example("heart").read_text().splitlines()[0][:23]
        'id,Age,sex,dataset,cp,t'
    """
    path = ASSETS / f"{name}.csv"
    known = sorted(each.stem for each in ASSETS.glob("*.csv"))
    if name not in known:
        raise OptionError(f"example must be one of {', '.join(known)}; got {name!r}.")
    return path


def csv_text(columns: Mapping[str, Sequence[Any]], guard_formulas: bool = False) -> str:
    """Columns as the text of a CSV file, floats so that they read back bit for bit.

    Args:
        columns: Name → one value per row; None is an empty cell.
        guard_formulas: Put an apostrophe before text that begins with =, +, -, @, a tab or a line end. A spreadsheet
            takes such a cell for a formula, and a level of a foreign table may be one; other programs then read the
            apostrophe as a part of the text.

    Example:
        >>> print(csv_text({"site": ["A", "=1+1"], "score": [0.5, -1.0]}, guard_formulas=True))
        site,score
        A,0.5
        '=1+1,-1.0
        <BLANKLINE>
    """

    def cell(value: Any) -> str:
        text = "" if value is None else str(plain(value))
        return f"'{text}" if guard_formulas and isinstance(value, str) and text.startswith(_FORMULA) else text

    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([cell(name) for name in columns])
    writer.writerows([cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue()


def join(
    path: Path, content: Columns, table_path: Path, people: Columns, id: str
) -> tuple[Columns, Columns, NDArray[np.intp]]:
    """The rows that both tables have, in the order of the table of people, and their numbers there."""
    for where, columns in ((path, content), (table_path, people)):
        faults = absent_columns([id], list(columns), f"data.id in {where.name}")
        if faults:
            raise TableError(faults)
    place = join_positions(path, content[id], id)
    join_positions(table_path, people[id], id)
    both = np.array([row for row, name in enumerate(people[id].tolist()) if name in place], dtype=np.intp)
    if not both.size:
        first, other = content[id].tolist()[0], people[id].tolist()[0]
        raise TableError(
            f"{path.name} and {table_path.name} must share values of {id!r}; got none in common "
            f"({first!r} there, {other!r} here)."
        )
    order = np.array([place[name] for name in people[id][both].tolist()], dtype=np.intp)
    _tell_left_out({path.name: len(content[id]), table_path.name: len(people[id])}, len(both), id)
    kept = {name: column[order] for name, column in content.items()}
    return kept, {name: column[both] for name, column in people.items()}, both


def _tell_left_out(rows: Mapping[str, int], both: int, id: str) -> None:
    """Warn of rows that a join leaves out: a fault in how ids are written looks just like it."""
    alone = [f"{count - both:,} of {count:,} rows of {name}" for name, count in rows.items() if count > both]
    if alone:
        warnings.warn(
            f"{' and '.join(alone)} have no partner by {id!r} and are left out, {both:,} rows remain",
            DeconfoundWarning,
            stacklevel=4,
        )


def join_positions(path: Path, names: NDArray[Any], id: str) -> dict[Any, int]:
    """The row of each id, each of which must be there once."""
    rows: dict[Any, list[int]] = {}
    for row, name in enumerate(names.tolist()):
        rows.setdefault(None if is_missing(name) else name, []).append(row)
    faults = [
        f"{'an empty cell' if name is None else repr(name)} {in_rows(where)}"
        for name, where in rows.items()
        if name is None or len(where) > 1
    ]
    if faults:
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise TableError(
            f"{path} must hold every {id!r} once; got {', '.join(faults[:SHOWN])}{more}. Use an id that names each "
            "row, such as that of the scan."
        )
    return {name: where[0] for name, where in rows.items()}
