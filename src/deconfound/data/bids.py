"""Which scans there are, and the row of the table for each: a BIDS folder, or a table with a column of paths."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from deconfound.data.tables import Columns, read_table
from deconfound.design.table import absent, is_missing
from deconfound.errors import ScanError, TableError

TEXT = ("participant_id", "session_id", "session", "person")
Row = dict[str, Any]


@dataclass(frozen=True)
class Listing:
    """Scans with their rows, what is wrong with the matching, and the files that the rows come from.

    `numbers` are the rows of the table as given, and `names` what `path_column` calls each scan there, if one does.
    """

    paths: list[Path]
    rows: list[Row]
    faults: list[str]
    numbers: list[int]
    path_column: str | None = None
    names: Sequence[str] = ()
    tables: tuple[Path, ...] = ()


def list_bids(root: Path, table: Columns | None, pattern: str, text: Sequence[str] = TEXT) -> Listing:
    """The scans of a BIDS folder, each with the row of its participant and session.

    A table instead of `participants.tsv` must have `participant_id`, and may have `session_id`. Columns of `text` are
    read as such.
    """
    source = root / "participants.tsv" if table is None else root
    columns = read_table(source, text) if table is None else table
    lacking = absent(["participant_id"], list(columns), "the identifiers")
    if lacking:
        raise TableError(f"{source}: {lacking[0]}")
    by_session = next((name for name in ("session_id", "session") if name in columns), None)
    people: dict[tuple[str, str | None], Row] = {}
    number_of: dict[tuple[str, str | None], int] = {}
    faults = []
    for number, row in enumerate(_rows(columns)):
        key = (_label(row["participant_id"], "sub"), _label(row[by_session], "ses") if by_session else None)
        if is_missing(row["participant_id"]):
            faults.append(f"{source}: row {number} has no participant_id")
        elif key in people:
            faults.append(f"{source}: row {number} is a second row of {_name(key)}")
        else:
            people[key], number_of[key] = row, number
    files = sorted(path for path in root.glob(f"sub-*/**/{pattern}") if path.name.startswith("sub-"))
    sessions: dict[str, dict[str, Row]] = {}
    paths, rows, numbers, seen = [], [], [], set()
    for path in files:
        person, session = _entity(path, "sub"), _entity(path, "ses")
        assert person is not None
        key = (person, session if by_session else None)
        if key not in people:
            faults.append(f"{path}: this scan has no row in {source.name}")
            continue
        seen.add(key)
        if person not in sessions:
            sessions[person] = _sessions(root, person, text)
        row = people[key] | {k: v for k, v in sessions[person].get(session or "", {}).items() if not is_missing(v)}
        row |= {"participant_id": f"sub-{person}"} | ({"session_id": f"ses-{session}"} if session else {})
        paths.append(path)
        numbers.append(number_of[key])
        rows.append({**row, "path": path.relative_to(root).as_posix()})
    faults += [f"{source}: {_name(key)} has no scan {pattern} in {root}" for key in people if key not in seen]
    for row in rows:
        row.setdefault("person", row["participant_id"])
    if len(set(numbers)) < len(numbers):  # a row with several scans cannot tell them apart
        numbers = list(range(len(paths)))
    return Listing(paths, rows, faults, numbers)


def list_paths(columns: Columns, path_column: str, folder: Path) -> Listing:
    """The scans that a table names in one of its columns; relative paths start at `folder`."""
    lacking = absent([path_column], list(columns), "path_column")
    if lacking:
        raise TableError(lacking[0])
    rows = _rows(columns)
    paths, kept, numbers, faults = [], [], [], []
    count = Counter(str(row[path_column]) for row in rows)
    seen: set[str] = set()
    for number, row in enumerate(rows):
        if is_missing(row[path_column]):
            faults.append(f"row {number} of the table has no {path_column!r}")
            continue
        text = str(row[path_column])
        if count[text] > 1:
            faults += [f"{text}: {count[text]} rows of the table name this file"] if text not in seen else []
            seen.add(text)
            continue
        paths.append(folder / text)
        kept.append(row)
        numbers.append(number)
        if "participant_id" in row:
            row.setdefault("person", row["participant_id"])
    names = [str(row[path_column]) for row in kept]
    return Listing(paths, kept, faults, numbers, path_column, names)


def _rows(columns: Mapping[str, NDArray[Any]]) -> list[Row]:
    names = list(columns)
    return [dict(zip(names, cells, strict=True)) for cells in zip(*(columns[n].tolist() for n in names), strict=True)]


def _label(value: Any, entity: str) -> str:
    return str(value).removeprefix(f"{entity}-")


def _name(key: tuple[str, str | None]) -> str:
    person, session = key
    return f"sub-{person}" + (f" ses-{session}" if session else "")


def _entity(path: Path, entity: str) -> str | None:
    found = re.search(rf"(?:^|_){entity}-([^_]+)", path.name)
    return found.group(1) if found else None


def _sessions(root: Path, person: str, text: Sequence[str]) -> dict[str, Row]:
    """The columns that `sub-…_sessions.tsv` gives each session of a person."""
    path = root / f"sub-{person}" / f"sub-{person}_sessions.tsv"
    if not path.is_file():
        return {}
    columns = read_table(path, text)
    if "session_id" not in columns:
        raise ScanError(f"{path} must have a column 'session_id'; got {', '.join(columns)}.")
    return {_label(row["session_id"], "ses"): row for row in _rows(columns)}
