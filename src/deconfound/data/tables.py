"""The one reader of tables (text, Parquet, DataFrames and mappings), and what joins two of them."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.delimited import read_delimited
from deconfound.design.table import (
    Table,
    absent_columns,
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
    point, which other programs write.

    Args:
        table: A path, or a table that is already in memory.
        text: Columns that stay text, so that an id keeps its zeros.

    Example:
        >>> read_table({"age": [61, None], "site": ["A", "n/a"]})
        {'age': array([61., nan]), 'site': array(['A', None], dtype=object)}
    """
    if not isinstance(table, str | Path):
        columns = read_columns(table, column_names(table))
        return {
            name: _as_text(cells) if name in text else cells if cells.dtype.kind in "biuf" else from_cells(cells, name)
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
        if path.suffix.lower() == ".parquet":
            return read_table(pandas.read_parquet(path), text)
        # Cells of a sheet have types of their own: whole numbers come as such, ids as they were typed.
        with pandas.ExcelFile(path) as book:
            sheet, names = pandas.read_excel(book, dtype=object, keep_default_na=False), book.sheet_names
        columns = read_table({str(name).strip(): sheet[name].to_numpy(dtype=object) for name in sheet.columns}, text)
    except TableError as error:
        raise TableError(f"{path}: {error}") from error
    except Exception as error:  # each way of being broken has a kind of its own
        raise TableError(f"{path} must be a table that can be read; got {error}. Save it again, or as CSV.") from error
    if len(names) > 1:
        warnings.warn(
            f"{path} has {len(names)} sheets, of which the first is read, {names[0]!r}. Move the one you mean to the "
            "front, or save it as CSV.",
            DeconfoundWarning,
            stacklevel=3,
        )
    return columns


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
