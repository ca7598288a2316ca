"""Tables as sources of a run: columns of features, alone or joined with a table of people."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.delimited import read_delimited, typed
from deconfound.design.table import absent, is_missing
from deconfound.errors import DeconfoundError, TableError

Columns = dict[str, NDArray[Any]]
TABLES = (".csv", ".tsv", ".txt", ".parquet")
# Only what holds nothing: a site called "NA" or a drug called "None" is a level.
_EMPTY = ["", "n/a", "N/A", "NaN", "nan"]
# Columns that name rows and people. Where they are numbers they are no features all the same.
IDENTIFIERS = (
    "id",
    "participant",
    "participant_id",
    "patient",
    "patient_id",
    "person",
    "person_id",
    "rid",
    "scan_id",
    "session_id",
    "subject",
    "subject_id",
)
SHOWN = 5  # so many faults of one kind are named, the others counted


class TableSource:
    """Feature columns of a table, one sample a row; see `deconfound.data.source.Source`."""

    def __init__(self, values: NDArray[np.float32], names: Sequence[str], table: Columns, fingerprint: str) -> None:
        self.values = values
        self.names = tuple(names)
        self.table: Mapping[str, Any] = table
        self.shape: tuple[int, ...] = (values.shape[1],)
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self.values)

    def read(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """The features of these rows, NaN where a cell is empty."""
        read: NDArray[np.float32] = self.values[rows]
        return read


def open_table(
    path: str | Path,
    *,
    table: str | Path | None = None,
    id: str | None = None,
    features: Sequence[str] | None = None,
    roles: Iterable[str] = (),
) -> TableSource:
    """Open a table of features.

    Args:
        path: CSV, TSV or Parquet, one row per sample.
        table: The table of people, if labels and confounds are not in `path`; its rows that `path` has are used.
        id: The column that joins the two; it is kept as text. The one they share if None.
        features: Columns or globs of `path`; every numeric column without a role if None, except those that are
            called like names of rows or people (`IDENTIFIERS`).
        roles: Columns with another role (labels, confounds, person, …), which are never features by default.
    """
    path = Path(path)
    people = None if table is None else read_table(table, [id] if id else [])
    if people is not None and id is None:
        id = _shared(path, read_table(path), Path(str(table)), people)
        people = read_table(str(table), [id])
    content = read_table(path, [id] if id else [])
    if people is not None:
        assert id is not None
        content, people = joined(path, content, Path(str(table)), people, id)
    elif id in content:
        positions(path, content[id], id)
    chosen = _features(path, content, features, {*roles, *([id] if id else [])})
    values = np.column_stack([content[name].astype(np.float32) for name in chosen])
    everything = {**(people or {}), **{name: column for name, column in content.items() if name not in (people or {})}}
    return TableSource(values, chosen, everything, fingerprint([path, *([Path(str(table))] if table else [])]))


def read_table(path: str | Path, text: Sequence[str] = ()) -> Columns:
    """The columns of a CSV, TSV or Parquet file; those named in `text` stay text, so that an id keeps its zeros."""
    pandas = _pandas()
    path = Path(path)
    if not path.is_file():
        what = "a folder" if path.is_dir() else "nothing there"
        raise TableError(f"{path} must be a file; got {what}. Check the path.")
    kind = path.suffix.lower()
    if kind not in TABLES:
        raise TableError(
            f"{path} must end in {', '.join(TABLES)}; got {kind or 'no ending'!r}. Save the table as one of these."
        )
    columns = _parquet(pandas, path, text) if kind == ".parquet" else _delimited(pandas, path, text)
    if not columns or not len(next(iter(columns.values()))):
        raise TableError(f"{path} must have at least one row; got none.")
    return columns


def _parquet(pandas: Any, path: Path, text: Sequence[str]) -> Columns:
    try:
        frame = pandas.read_parquet(path)
    except (ValueError, OSError, ImportError) as error:  # pyarrow's own kinds are among these
        raise TableError(f"{path} must be a table that can be read; got {error}.") from error
    frame.columns = [str(name) for name in frame.columns]
    frame = frame.astype({name: str for name in text if name in frame})
    return {name: _cells(frame[name]) for name in frame.columns}


def _delimited(pandas: Any, path: Path, text: Sequence[str]) -> Columns:
    content = read_delimited(path)
    named = [content.names[place] for place in content.used]
    try:
        frame = pandas.read_csv(
            StringIO(content.text),
            sep=content.delimiter,
            decimal=content.decimal,
            header=0,
            names=[name or f"\0{place}" for place, name in enumerate(content.names)],
            usecols=named,
            index_col=False,
            dtype={name: str for name in text if name in named},
            keep_default_na=False,
            na_values=_EMPTY,
        )
    except ValueError as error:
        raise TableError(f"{path} must be a table that can be read; got {error}.") from error
    columns = {name: _cells(frame[name]) for name in frame.columns}
    return {name: _retyped(cells, name in text, content.decimal) for name, cells in columns.items()}


def _retyped(cells: NDArray[Any], keep_text: bool, decimal: str) -> NDArray[Any]:
    """Text without the blanks around it; numbers where a word for "nothing" kept pandas from seeing them."""
    if cells.dtype != object or not all(cell is None or isinstance(cell, str) for cell in cells.tolist()):
        return cells
    if keep_text:
        return np.array([None if cell is None else cell.strip() for cell in cells.tolist()], dtype=object)
    return typed(cells.tolist(), decimal)


def joined(path: Path, content: Columns, table_path: Path, people: Columns, id: str) -> tuple[Columns, Columns]:
    """The rows that both tables have, in the order of the table of people."""
    for where, columns in ((path, content), (table_path, people)):
        faults = absent([id], list(columns), f"data.id in {where.name}")
        if faults:
            raise TableError(faults[0])
    place = positions(path, content[id], id)
    positions(table_path, people[id], id)
    keep = np.array([row for row, name in enumerate(people[id].tolist()) if name in place], dtype=np.intp)
    if not keep.size:
        first, other = content[id].tolist()[0], people[id].tolist()[0]
        raise TableError(
            f"{path.name} and {table_path.name} must share values of {id!r}; got none in common "
            f"({first!r} there, {other!r} here)."
        )
    order = np.array([place[name] for name in people[id][keep].tolist()], dtype=np.intp)
    return {name: column[order] for name, column in content.items()}, {
        name: column[keep] for name, column in people.items()
    }


def positions(path: Path, names: NDArray[Any], id: str) -> dict[Any, int]:
    """The row of each id, each of which must be there once."""
    rows: dict[Any, list[int]] = {}
    for row, name in enumerate(names.tolist()):
        rows.setdefault(None if is_missing(name) else name, []).append(row)
    faults = [
        f"{'an empty cell' if name is None else repr(name)} in {_lines(found)}"
        for name, found in rows.items()
        if name is None or len(found) > 1
    ]
    if faults:
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise TableError(
            f"{path} must hold every {id!r} once; got {', '.join(faults[:SHOWN])}{more}. Use an id that names each "
            "row, such as that of the scan."
        )
    return {name: found[0] for name, found in rows.items()}


def _lines(rows: list[int]) -> str:
    """`line 4`, `lines 4 and 7`: where rows stand in the file, under its line of names."""
    told = [str(row + 2) for row in rows[:SHOWN]] + ([f"{len(rows) - SHOWN} more"] if len(rows) > SHOWN else [])
    return f"line {told[0]}" if len(told) == 1 else f"lines {', '.join(told[:-1])} and {told[-1]}"


def fingerprint(paths: Sequence[Path]) -> str:
    """A digest of the content of files, whatever they are called."""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def _features(path: Path, content: Columns, wanted: Sequence[str] | None, taken: set[str]) -> list[str]:
    numeric = [name for name, column in content.items() if column.dtype.kind in "biuf"]
    if wanted is None:
        chosen = [name for name in numeric if name not in taken and name.lower() not in IDENTIFIERS]
        if not chosen:
            raise TableError(f"{path} must have numeric columns for features; got {', '.join(content)}.")
        return chosen
    faults, found = [], []
    for pattern in wanted:
        hits = [pattern] if pattern in content else [name for name in content if fnmatchcase(name, pattern)]
        faults += absent([pattern], list(content), "data.features") if not hits else []
        found += [name for name in hits if name not in taken or name == pattern]
    faults += [
        f"data.features must be columns of numbers; got {name!r}, which holds {content[name].tolist()[0]!r}."
        for name in dict.fromkeys(found)
        if name not in numeric
    ]
    if not wanted:
        faults.append("data.features must name at least one column; got none. Leave it out for all columns of numbers.")
    if faults:
        raise TableError("\n".join(faults))
    return list(dict.fromkeys(found))


def _shared(path: Path, content: Columns, table: Path, people: Columns) -> str:
    both = [name for name in people if name in content]
    if len(both) != 1:
        what = f"{', '.join(both)}" if both else "none"
        raise TableError(
            f"{path.name} and {table.name} must share one column to be joined by; got {what}. Set data.id."
        )
    return both[0]


def _cells(column: Any) -> NDArray[Any]:
    """A column as numbers where it has them, else as text with None where a cell is empty."""
    array = column.to_numpy(dtype=object, na_value=None) if column.dtype.kind not in "biuf" else column.to_numpy()
    if array.dtype == object and all(value is None or isinstance(value, int | float) for value in array.tolist()):
        if any(isinstance(value, bool) for value in array.tolist()):
            return np.asarray(array)
        return np.array([np.nan if value is None else value for value in array.tolist()], dtype=np.float64)
    return np.asarray(array)


def _pandas() -> Any:
    try:
        import pandas  # type: ignore[import-untyped]
    except ImportError as error:
        raise DeconfoundError(
            "pandas must be installed to read tables. Run: pip install 'deconfound[tables]'"
        ) from error
    return pandas
