"""Columns of a table as features: numbers as they are, TRUE and FALSE as 1 and 0, text as one 0/1 column per level."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.files import digest
from deconfound.data.frames import OddCell
from deconfound.data.sources import ArraySource, SourceNote, fingerprint
from deconfound.data.tables import Columns, join, join_positions, read_table
from deconfound.design.table import Table, absent, category_columns, is_missing, level_text
from deconfound.design.units import amount_as_text, reads_as_number
from deconfound.errors import DeconfoundWarning, TableError

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
# Text with more levels is a remark or a name, not a category.
MOST_LEVELS = 20
# Longer numbers are ids: as floats, two of them could be one.
_MOST_DIGITS = 15


def open_table(
    path: str | Path | Table,
    *,
    table: str | Path | None = None,
    id: str | None = None,
    features: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    roles: Iterable[str] = (),
    text: Sequence[str] = (),
) -> ArraySource:
    """Open a table of features.

    Text columns with up to 20 levels, and what pandas calls categories, are coded as one 0/1 column per level, called
    `column[level]`; `notes` says so, and which columns are no features.

    Args:
        path: CSV, TSV, Parquet or XLSX, one row per sample; or a DataFrame.
        table: The table of people, if labels and confounds are not in `path`; its rows that `path` has are used, and a
            warning counts the others.
        id: The column that joins the two; it is kept as text. The one they share if None.
        features: Columns, globs or `column[level]` of `path`; every column without a role if None, except those that
            are called like names of rows or people (`IDENTIFIERS`).
        exclude: Columns or globs that are no features.
        roles: Columns with another role (labels, confounds, person, …), which are never features by default.
        text: Columns that stay text beside `id`, so that names of people keep their zeros.
    """
    given, path = path, Path(path) if isinstance(path, str | Path) else Path("the table")
    if table is not None and id is None:
        id = _shared(path, read_table(given), Path(str(table)), read_table(table))
    text = [*text, *([id] if id else [])]
    people = None if table is None else read_table(table, text)
    content = read_table(given, text)
    taken = {*roles, *([id] if id else [])}
    if not isinstance(given, str | Path):  # numbers that pandas calls a category are names
        for name in category_columns(given, [name for name in content if name not in taken]):
            content[name] = np.array(_texts(content[name]), dtype=object)
    numbers = None
    if people is not None:
        assert id is not None
        content, people, numbers = join(path, content, Path(str(table)), people, id)
    elif id in content:
        join_positions(path, content[id], id)
    faults = [fault for name in exclude if not _matching(name, content) for fault in _absent(name, content, "exclude")]
    if faults:
        raise TableError("\n".join(faults))
    dropped = {name for pattern in exclude for name in _matching(pattern, content)}
    if features is None:
        columns, notes = _by_default(path, content, taken, dropped)
    else:
        columns, notes = _named(content, features, taken, dropped)
    values = np.column_stack(list(columns.values()))
    everything = {**(people or {}), **{name: column for name, column in content.items() if name not in (people or {})}}
    if not isinstance(given, str | Path):
        content_digest = digest({name: repr(cells.tolist()) for name, cells in everything.items()})
        return ArraySource(values, everything, content_digest, tuple(columns), tuple(notes), row_numbers=numbers)
    files = [path, *([Path(str(table))] if table else [])]
    return ArraySource(values, everything, fingerprint(files), tuple(columns), tuple(notes), files, numbers)


def level_features(names: Sequence[str]) -> dict[str, list[str]]:
    """The levels by column of those features that are called `column[level]`."""
    found: dict[str, list[str]] = {}
    for name in names:
        if level := re.fullmatch(r"(.+?)\[(.*)\]", name, re.DOTALL):
            found.setdefault(level.group(1), []).append(level.group(2))
    return found


def check_same_features(known: Sequence[str], names: Sequence[str]) -> None:
    """Refuse features that are not the run's: text where it had numbers is coded by level, as 0/1 under other names."""
    if not len(known) or not len(names) or list(names) == list(known):
        return
    faults = []
    for name in known:
        levels = [each[len(name) + 1 : -1] for each in names if each.startswith(f"{name}[") and each not in known]
        if name not in names and levels:
            faults.append(
                f"{name} must be a number (or TRUE and FALSE), as in training; got {_no_number(levels)!r}. Write it as "
                "a number with a decimal point, or leave the cell empty where the value is not known."
            )
    if not faults:
        faults.append(
            f"samples must have the features of the run in its order, {_first(known)}; got {_first(names)}. Name and "
            "order them as in training."
        )
    raise TableError("\n".join(faults))


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _by_default(path: Path, content: Columns, taken: set[str], dropped: set[str]) -> tuple[Columns, list[SourceNote]]:
    """Every column that can be a feature and has no other role, coded; and what became of the others."""
    columns: Columns = {}
    notes = []
    for name, cells in content.items():
        if name in taken or name in dropped:
            continue
        if name.lower() in IDENTIFIERS:
            notes.append(SourceNote("identifier", name, f"{name} names rows or people and is no feature"))
            continue
        coded, note = _coded(name, cells)
        columns |= coded
        notes += [note] if note else []
    if not columns:
        raise TableError(f"{path} must have columns for features; got {', '.join(content)}.")
    return columns, notes


def _named(
    content: Columns, wanted: Sequence[str], taken: set[str], dropped: set[str]
) -> tuple[Columns, list[SourceNote]]:
    """The columns that the user names, coded."""
    columns: Columns = {}
    notes, faults = [], []
    unnamed: dict[str, list[str]] = {}
    for pattern in wanted:
        level = re.fullmatch(r"(.+)\[(.*)\]", pattern, re.DOTALL)
        if level and pattern not in content and (name := level.group(1)) in content:
            # A level that is not named is as an empty cell.
            named = [each[len(name) + 1 : -1] for each in wanted if each.startswith(f"{name}[") and each[-1] == "]"]
            columns[pattern] = _indicators(name, content[name], named)[pattern]
            unnamed[name] = _others(content[name], named)
            continue
        hits = [name for name in _matching(pattern, content) if (name not in taken or name == pattern)]
        faults += _absent(pattern, content, "features") if not _matching(pattern, content) else []
        for name in hits:
            if name in dropped or name in columns:
                continue
            coded, note = _coded(name, content[name])
            if not coded or (name in taken and content[name].dtype == object):
                got = _no_number([cell for cell in content[name].tolist() if cell is not None])
                faults.append(f"data.features must be columns of numbers; got {name!r}, which holds {got!r}.")
            columns |= coded
            notes += [note] if note else []
    if not wanted:
        faults.append("data.features must name at least one column; got none. Leave it out for all columns.")
    if faults:
        raise TableError("\n".join(dict.fromkeys(faults)))
    for name, cells in unnamed.items():
        if cells:
            warnings.warn(
                f"column {name} has levels that are no features: {_first(sorted(set(cells)))}. Cells that hold them "
                f"({len(cells):,} of {len(content[name]):,}) count as empty.",
                DeconfoundWarning,
                stacklevel=3,
            )
    return columns, notes


def _coded(name: str, cells: NDArray[Any]) -> tuple[Columns, SourceNote | None]:
    """The numbers of a column under their names; none where it can be no feature, with the reason."""
    if cells.dtype.kind in "biuf":
        return {name: cells.astype(np.float32)}, None
    filled = [cell for cell in cells.tolist() if cell is not None]
    odd = next((cell for cell in filled if isinstance(cell, OddCell)), None)
    if odd is not None:
        return {}, SourceNote("left out", name, f"{name} holds cells such as {odd}, no numbers or text: no feature")
    if all(isinstance(cell, bool) for cell in filled):
        return {name: np.array([np.nan if cell is None else cell for cell in cells.tolist()], np.float32)}, None
    levels = sorted({str(cell) for cell in filled})
    if len(levels) > MOST_LEVELS:
        text = (
            f"{name} is text with {len(levels)} different cells and is no feature; a category has at most {MOST_LEVELS}"
        )
        if amount := amount_as_text(filled):
            text += f". Its cells are numbers with other text, such as {amount!r}: write plain numbers to use them"
        return {}, SourceNote("left out", name, text)
    shown = ", ".join(levels[:4]) + (", …" if len(levels) > 4 else "")
    note = SourceNote("coded", name, f"{name} is text with {len(levels)} levels ({shown}): one 0/1 feature for each")
    return _indicators(name, cells, levels), note


def _no_number(cells: Sequence[Any]) -> Any:
    """The first cell that is neither a number nor TRUE or FALSE; the first of all if there is none."""
    words = ("true", "false")
    odd = (cell for cell in cells if not reads_as_number(str(cell)) and str(cell).lower() not in words)
    return next(odd, cells[0] if cells else None)


def _indicators(name: str, cells: NDArray[Any], levels: Sequence[str]) -> Columns:
    texts = as_levels(np.array(_texts(cells), dtype=object), levels).tolist()
    known = np.array([text in levels for text in texts])
    return {
        f"{name}[{level}]": np.where(known, np.array([text == level for text in texts]), np.nan).astype(np.float32)
        for level in levels
    }


def _others(cells: NDArray[Any], levels: Sequence[str]) -> list[str]:
    """The cells that hold text which is none of the levels."""
    texts = as_levels(np.array(_texts(cells), dtype=object), levels).tolist()
    return [text for text in texts if text is not None and text not in levels]


def as_levels(cells: NDArray[Any], levels: Sequence[Any]) -> NDArray[Any]:
    """Cells as the levels that they stand for, where another table has given them another type.

    1, 1.0 and "1" are one level, and so are True and "TRUE"; "01" is another. A cell stays as it is where it is a
    level, stands for none of them, or could stand for two.

    Example:
        >>> as_levels(np.array([1, 2.0, True, "01"], dtype=object), ["1", "2", "TRUE"]).tolist()
        ['1', '2', 'TRUE', '01']
    """
    known: dict[str, list[Any]] = {}
    for level in levels:
        known.setdefault(_sense(level), []).append(level)
    exact = {(type(level), level) for level in levels}
    meant = {}
    for cell in {(type(cell), cell): cell for cell in cells.tolist()}.values():
        hits = [] if (type(cell), cell) in exact or is_missing(cell) else known.get(_sense(cell), [])
        if len(hits) == 1:
            meant[type(cell), cell] = hits[0]
    if not meant:
        return cells
    found = np.empty(len(cells), dtype=object)
    found[:] = [meant.get((type(cell), cell), cell) for cell in cells.tolist()]
    return found


def _sense(cell: Any) -> str:
    """The same text for all ways to write one number or truth."""
    text = level_text(cell).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    number = re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?", text, re.ASCII)
    return level_text(float(text)) if number and len(text) <= _MOST_DIGITS else text


def _texts(cells: NDArray[Any]) -> list[str | None]:
    return [None if is_missing(cell) else level_text(cell) for cell in cells.tolist()]


def _matching(pattern: str, content: Columns) -> list[str]:
    return [pattern] if pattern in content else [name for name in content if fnmatchcase(name, pattern)]


def _absent(name: str, content: Columns, option: str) -> list[str]:
    return absent([name], list(content), f"data.{option}")


def _shared(path: Path, content: Columns, table: Path, people: Columns) -> str:
    both = [name for name in people if name in content]
    if len(both) != 1:
        what = f"{', '.join(both)}" if both else "none"
        raise TableError(
            f"{path.name} and {table.name} must share one column to be joined by; got {what}. Set data.id."
        )
    return both[0]
