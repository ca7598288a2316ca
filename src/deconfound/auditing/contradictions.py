"""Outputs that contradict each other, or the table, in what belongs to a row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from deconfound.auditing.files import JoinedFiles
from deconfound.design.table import Table, is_missing, level_text
from deconfound.errors import ShapeError, TableError

_TRUTH = {"true": "1", "false": "0"}


def refuse_other_values(files: JoinedFiles, name: str, used: NDArray[Any], folds: bool) -> None:
    """Refuse predictions whose own label or fold is not the one used: they would be measured as those of other rows."""
    source = files.table if name in files.table.columns else files.first
    for file in files.predictions:
        if file is source or name not in file.columns:
            continue
        order = files.rows_of(file)
        pairs = list(zip(file.columns[name][order].tolist(), used.tolist(), strict=True))
        other = [row for row, pair in enumerate(pairs) if not _agree(*pair, folds)]
        if not other:
            continue
        got, wanted = pairs[other[0]]
        who = f" ({files.key} {files.first.columns[files.key][other[0]]!s})" if files.key in files.first.columns else ""
        raise TableError(
            f"{source.path} and {file.path} must have the same {'test folds' if folds else 'labels'} to be audited "
            f"together; got {name!r} = {level_text(got)} in row {order[other[0]]} of {file.path}{who} and "
            f"{level_text(wanted)} in {source.path} ({len(other)} of {len(pairs)} rows differ). "
            + _what_to_do(files, name, folds)
        )


def _agree(mine: Any, used: Any, folds: bool) -> bool:
    """Whether two cells say the same; an empty label says nothing, and fractions may be rounded."""
    if is_missing(mine) or is_missing(used):
        return is_missing(mine) == is_missing(used) if folds else True
    if isinstance(mine, float) and isinstance(used, float) and not (mine.is_integer() and used.is_integer()):
        return math.isclose(mine, used, rel_tol=1e-5)
    if isinstance(mine, bool) or isinstance(used, bool):
        return _truth(mine) == _truth(used)
    return level_text(mine) == level_text(used)


def _truth(value: Any) -> str:
    """The text of a cell, true and false as 1 and 0: programs write the same label either way."""
    text = level_text(value)
    return _TRUTH.get(text.casefold(), text)


def _what_to_do(files: JoinedFiles, name: str, folds: bool) -> str:
    """How files that contradict each other can be audited all the same."""
    if folds:
        return "Audit them one at a time, or leave out --fold."
    if name in files.table.columns and files.table is not files.first:
        return f"Correct the one that is wrong, or take {name!r} out of the predictions."
    return "Audit them one at a time."


def refuse_other_order(given: Any, table: Table, space: str) -> None:
    """Refuse a Series or DataFrame whose index holds other rows than the table's: it would be read by position.

    An index that counts from 0 says nothing about rows of which the other holds some, nor does one without any of the
    other's rows.
    """
    if not hasattr(table, "iloc"):
        return
    rows = list(getattr(table, "index"))  # noqa: B009 - only a DataFrame has one
    counted = list(range(len(rows)))
    for model, values in given.items() if isinstance(given, Mapping) else [("model", given)]:
        other = list(values.index) if hasattr(values, "iloc") else rows
        if other == rows or len(other) != len(rows):
            continue
        what = f"{space} of {model!r} must be in the order of the table"
        if Counter(other) == Counter(rows):
            advice = "Write outputs.loc[table.index]" if len(set(rows)) == len(rows) else "Sort both alike"
            raise ShapeError(
                f"{what}; got its rows in another order. {advice}, or pass outputs.to_numpy() where the order is right "
                "and the index is not."
            )
        if counted not in (rows, other) and (shared := set(rows) & set(other)):
            absent = next(
                name for name in [*other, *rows] if name not in shared or other.count(name) != rows.count(name)
            )
            where = "the outputs" if other.count(absent) > rows.count(absent) else "the table"
            raise ShapeError(
                f"{what} and hold its rows; got an index that differs, as in {absent!r}, which is more often in "
                f"{where}. Bring both to the same rows, or pass outputs.to_numpy() where the order is right and the "
                "index is not."
            )
