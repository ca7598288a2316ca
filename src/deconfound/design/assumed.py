"""Cells that a fitted design does not know, and in whose place it takes the mean of its training rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.design.codecs import Codec
from deconfound.design.table import in_rows, is_missing, plain


@dataclass(frozen=True)
class Assumed:
    """One value of one confound that says nothing to a design.

    Attributes:
        column: The confound.
        value: The level that was not in the training rows; None for empty cells.
        rows: Where it is.
    """

    column: str
    value: Any
    rows: tuple[int, ...]

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.column} is empty {in_rows(self.rows)}"
        return f"{self.column} {self.value!r}, {in_rows(self.rows)}, was not in the training rows"


def assumed(codecs: Mapping[str, Codec], columns: Mapping[str, NDArray[Any]]) -> tuple[Assumed, ...]:
    """Every value of these columns that their codecs do not know, in the order of the columns and rows."""
    found: list[Assumed] = []
    for name, values in columns.items():
        coded = codecs[name].encode(values, "mean")
        # The last distinct row of a category stands for what is no level.
        unknown = coded.missing if coded.index is None else np.flatnonzero(coded.index == len(coded.distinct) - 1)
        places: dict[Any, list[int]] = {}
        for row in unknown.tolist():
            value = plain(values[row])
            places.setdefault(None if is_missing(value) else value, []).append(row)
        found += [Assumed(name, value, tuple(rows)) for value, rows in places.items()]
    return tuple(found)
