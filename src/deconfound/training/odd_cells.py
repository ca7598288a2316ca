"""Cells, levels and columns of a table that are probably not what they are read as: one sentence for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from deconfound.auditing.table_checks import alike_levels, alike_sentence, holds_dates
from deconfound.data import Source
from deconfound.data.delimited import EMPTY_AMONG_NUMBERS
from deconfound.data.features import MOST_LEVELS
from deconfound.design.units import amount_as_text
from deconfound.training.checks import first_non_numeric_row


def words_for_nothing(rows: dict[str, Any]) -> list[str]:
    """Levels that are called as packages call an empty cell."""
    lines = []
    for name, values in rows.items():
        counts = Counter(value for value in values.tolist() if isinstance(value, str))
        lines += [
            f"{name} has the level {level!r} ({rows_in_words(count)}): if it means that nothing is known, empty these "
            "cells"
            for level, count in counts.items()
            if level.lower() in EMPTY_AMONG_NUMBERS
        ]
    return lines


def levels_written_differently(rows: dict[str, Any]) -> list[str]:
    """Labels and confounds whose levels were not written alike."""
    levels = {name: [value for value in values.tolist() if isinstance(value, str)] for name, values in rows.items()}
    return [alike_sentence(name, groups) for name, found in levels.items() if (groups := alike_levels(found))]


def dates(rows: dict[str, Any], columns: Sequence[str]) -> list[str]:
    """Confounds that are dates."""
    return [
        f"{name} holds dates as text, and each is a level of its own: write a number instead, such as days or years"
        for name in dict.fromkeys(columns)
        if holds_dates(rows[name])
    ]


def amounts_as_text(rows: dict[str, Any]) -> list[str]:
    """Labels and confounds whose levels are numbers with other text."""
    texts = {name: [value for value in values.tolist() if isinstance(value, str)] for name, values in rows.items()}
    return [
        f"{name} holds numbers with other text, such as {shown!r}, and each of its {len(set(cells)):,} values is a "
        f"level of its own: write plain numbers, or data.types: {{{name}: categorical}} if they are names"
        for name, cells in texts.items()
        if (shown := amount_as_text(cells)) is not None
    ]


def maybe_people(source: Source, roles: set[Any]) -> list[str]:
    """Text that is no category and stands in several rows: names of people, perhaps."""
    lines = []
    for name, values in source.table.items():
        cells = np.asarray(values).tolist()
        if name in roles or not all(isinstance(cell, str) for cell in cells) or holds_dates(values):
            continue
        counts = Counter(cells)
        if len(counts) > MOST_LEVELS and max(counts.values()) > 1:
            several = sum(count > 1 for count in counts.values())
            lines.append(
                f"{name} has {several:,} of its {len(counts):,} values in several rows: if it names people, give "
                f"--person '{name}', for rows of one person must not be trained on and tested on"
            )
    return lines


def almost_numeric(source: Source, roles: set[Any]) -> list[str]:
    """Columns that would be features but for a cell."""
    lines = []
    for name in source.table:
        row = None if name in roles else first_non_numeric_row(np.asarray(source.table[name]))
        if row is not None:
            cell = np.asarray(source.table[name])[row]
            lines.append(
                f"{name} is no feature, for it holds {cell!r} in row {row} among numbers: fix or empty the cell"
            )
    return lines


def rows_in_words(count: int) -> str:
    """So many rows."""
    return counted(count, "row", "rows")


def counted(count: int, one: str, several: str) -> str:
    """A count and what was counted, in the singular or the plural."""
    return f"{count:,} {one if count == 1 else several}"
