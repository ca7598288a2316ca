"""Files of tables: every cell as it was written, as text where the file holds text."""

from __future__ import annotations

import csv
import gzip
import os
import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import pandas as pd

from deconfound.errors import OptionError, TableError, import_extra, nearest_names
from deconfound.table.notes import Note, format_list, format_names


def read_file(path: Path, separator: str | None = None) -> pd.DataFrame:
    """Read a .csv, .tsv, .txt, .parquet or .xlsx file; cells of text files stay text.

    Args:
        path: The file. Text files may be compressed (.csv.gz).
        separator: The separator of a text file. None reads .tsv at tabs, and others at the comma,
            semicolon or tab that divides the first line into the most cells.

    Raises:
        TableError: The file is absent, damaged or empty, or has lines of unequal length.
    """
    if separator is not None and len(separator) != 1:
        raise OptionError(f"separator is {separator!r}. Write one character, such as ';'.")
    if not os.path.isfile(path):
        raise TableError(_absent_note(path))
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix == ".parquet":
        return _read_parquet(path)
    if suffix in (".xlsx", ".xlsm"):
        return _use_first_row_as_names(_read_workbook(path), path)
    if suffix in (".csv", ".tsv", ".txt"):
        return _use_first_row_as_names(_read_text(path, suffix, separator), path)
    raise _fault(
        f"The table {path.name!r} is no .csv, .tsv, .txt, .parquet or .xlsx file.",
        "Save it in one of these formats, or read it yourself and pass the DataFrame.",
    )


def _read_text(path: Path, suffix: str, separator: str | None) -> pd.DataFrame:
    open_text = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with open_text(path, "rt", encoding="utf-8-sig", newline="") as file:
            first_line = next((line for line in file if line.strip()), "")
            file.seek(0)
            separator = separator or ("\t" if suffix == ".tsv" else _find_separator(first_line))
            reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
            lines = [(reader.line_num, cells) for cells in reader if cells]
    except UnicodeError:
        read = f"pandas.read_csv({path.name!r}, encoding=…)"
        raise _fault(
            f"The table {path.name!r} is not UTF-8 text.",
            f"Save it as UTF-8, or pass the DataFrame of {read}.",
        ) from None
    except csv.Error as error:
        raise _fault(
            f"The table {path.name!r} is damaged in line {reader.line_num}: {error}.",
            "Close each quotation mark, and write one that belongs to a text twice.",
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error
    return pd.DataFrame(_check_lengths(lines, path), dtype=object)


def _check_lengths(lines: list[tuple[int, list[str]]], path: Path) -> list[list[str]]:
    """Return the cells of all lines, or raise an error that names each line of another length.

    pandas.read_csv fills short lines, and shifts or cuts long ones, so that values change columns.
    """
    count = len(lines[0][1]) if lines else 0
    wrong = [f"line {line} has {len(cells)}" for line, cells in lines if len(cells) != count]
    if wrong:
        raise _fault(
            f"The first line of {path.name!r} has {count} cells, but {format_list(wrong)}.",
            "Correct these lines, put texts that contain the separator in quotation marks, "
            "or name another one, such as separator=';'.",
        )
    return [cells for _, cells in lines]


def _find_separator(first_line: str) -> str:
    cells = {mark: len(next(csv.reader([first_line], delimiter=mark), [])) for mark in ",;\t"}
    count = max(cells.values())
    if count > 1 and list(cells.values()).count(count) > 1:
        raise _fault(
            "The first line of the table has equal numbers of commas, semicolons or tabs.",
            "Write the one that separates the cells, such as separator=','.",
        )
    return max(cells, key=lambda mark: cells[mark])


def _read_parquet(path: Path) -> pd.DataFrame:
    parquet = import_extra("pyarrow.parquet", "files")
    try:
        # Whole numbers with missing cells would become floats, which cannot hold long ids.
        frame: pd.DataFrame = parquet.read_table(path).to_pandas(integer_object_nulls=True)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    # A column that pandas stored as the index is a column of the file.
    return frame.reset_index() if any(name is not None for name in frame.index.names) else frame


def _read_workbook(path: Path) -> pd.DataFrame:
    import_extra("openpyxl", "files")
    options: dict[str, Any] = {"header": None, "dtype": object, "keep_default_na": False}
    try:
        sheets = pd.read_excel(path, sheet_name=None, engine="openpyxl", **options)
    except (OSError, ValueError, KeyError, SyntaxError, BadZipFile) as error:
        raise _unreadable(path, error) from error
    filled = {str(name): sheet for name, sheet in sheets.items() if not sheet.empty}
    if len(filled) > 1:
        raise _fault(
            f"The workbook {path.name!r} has several sheets: {format_names(filled)}.",
            "Save one alone, or pass the DataFrame of pandas.read_excel(path, sheet_name=…).",
        )
    return next(iter(filled.values()), pd.DataFrame())


def _use_first_row_as_names(cells: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Turn row 0 into names; columns without a name (row numbers, margins) are left out."""
    if cells.empty:
        raise _fault(f"The table {path.name!r} is empty.", "Write a line of names first.")
    names = [str(name).strip() if pd.notna(name) else "" for name in cells.iloc[0]]
    frame = cells.iloc[1:].reset_index(drop=True)
    frame.columns = pd.Index(names)
    return frame.loc[:, [bool(name) for name in names]]


def _absent_note(path: Path) -> Note:
    if os.path.isdir(path):
        return Note("source", "", f"The table {str(path)!r} is a folder.", "Name a file in it.")
    names = sorted(os.listdir(path.parent)) if os.path.isdir(path.parent) else []
    fix = nearest_names(path.name, names) if names else "Check the path."
    return Note("source", "", f"There is no file {str(path)!r}.", fix)


def _unreadable(path: Path, error: Exception) -> TableError:
    return _fault(
        f"The table {path.name!r} cannot be read ({type(error).__name__}).",
        "Check that the file is complete and that its ending shows its format.",
    )


def _fault(text: str, fix: str) -> TableError:
    return TableError(Note("source", "", text, fix))
