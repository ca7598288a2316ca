"""A table column as the measures see it: numbers or levels, with its type found from its values."""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.design.table import as_column, as_numbers, is_missing, level_text, plain
from deconfound.errors import OptionError, TableError

Kind = Literal["numeric", "binary", "categorical"]
NAN = float("nan")


@dataclass(frozen=True)
class Column:
    """One variable: `values (n,)` float64, NaN where missing; for a category the codes of its `levels`."""

    name: str
    kind: Kind
    values: Tensor
    levels: tuple[str, ...] = ()

    @property
    def present(self) -> Tensor:
        """`(n,)` whether a row has a value."""
        return ~self.values.isnan()

    @property
    def encoded(self) -> Tensor:
        """`(n, k)` for distances: one column of numbers, or one 0/1 column per level (one for two)."""
        if self.kind == "categorical":
            return (self.values[:, None] == torch.arange(len(self.levels))).double()
        return self.values[:, None]

    def take(self, rows: Tensor) -> "Column":
        """The column at these rows (a mask or positions)."""
        return Column(self.name, self.kind, self.values[rows], self.levels)


def column(name: str, values: Any, kind: str | None = None, *, codes_to: int = 0) -> Column:
    """Read an array, list or Series as a column.

    Text and booleans are levels, numbers are numeric; two distinct values of any sort are binary.

    Args:
        name: used in messages.
        values: one value per row; None, NaN, empty text and BIDS' `n/a` are missing.
        kind: "numeric" or "categorical" where the values should be read otherwise.
        codes_to: up to this many distinct whole numbers are taken as codes of classes rather than numbers.

    Example:
        >>> [column("", values).kind for values in ([60, 71, 65], [0, 1, 1], ["SRI", "UCSD", "UCSF"])]
        ['numeric', 'binary', 'categorical']
    """
    if kind not in (None, "numeric", "categorical"):
        raise OptionError(f"types[{name!r}] must be 'numeric' or 'categorical'; got {kind!r}.")
    if kind is None and str(getattr(values, "dtype", "")) == "category":
        kind = "categorical"
    # A list stays a list of cells: numpy would write its numbers as texts where it holds one.
    array = as_column(np.array(values, dtype=object) if isinstance(values, list | tuple) else values, name)
    cells = [None if is_missing(value) else plain(value) for value in array.tolist()]
    found = {level_text(value): value for value in cells if value is not None}
    if not found:
        raise TableError(f"column {name!r} must hold at least one value; got {len(cells)} empty cells.")
    if kind == "numeric" or (kind is None and _is_numeric(found.values(), codes_to)):
        return Column(name, "numeric", _numbers(array, name))
    levels = sorted(found, key=lambda level: (isinstance(found[level], str), found[level]))
    code = {level: float(place) for place, level in enumerate(levels)}
    codes = torch.tensor([NAN if cell is None else code[level_text(cell)] for cell in cells], dtype=torch.float64)
    return Column(name, "binary" if len(levels) == 2 else "categorical", codes, tuple(levels))


def _numbers(array: NDArray[Any], name: str) -> Tensor:
    """A numeric column, NaN where a cell holds nothing; a design's options are no way out here."""
    try:
        return torch.from_numpy(as_numbers(array, name))
    except TableError as error:
        advice = "Correct these cells, or leave them empty: an empty cell is missing."
        raise TableError(
            [replace(fault, advice=advice, option=None) if fault.option else fault for fault in error.faults]
        ) from error


def looks_like_codes(values: Any, up_to: int = 20) -> int:
    """How many distinct whole numbers a column holds, where they are few enough to be codes; else 0."""
    found = {plain(value) for value in np.asarray(values).tolist() if not is_missing(value)}
    few = 2 < len(found) <= up_to and _is_numeric(found, 0)
    return len(found) if few and all(float(value).is_integer() for value in found) else 0


def cells_of(columns: Sequence[Column]) -> tuple[Tensor, tuple[str, ...]]:
    """The combination of levels in each row: codes `(n,)` (-1 where one is missing) and their names."""
    if not columns:
        raise OptionError("columns must hold at least one column; got none.")
    values = torch.stack([item.values for item in columns], dim=1)
    present = ~values.isnan().any(1)
    found, inverse = torch.unique(values[present], dim=0, return_inverse=True)
    codes = torch.full((len(values),), -1)
    codes[present] = inverse
    names = tuple(
        " · ".join(_cell(item, value) for item, value in zip(columns, row, strict=True)) for row in found.tolist()
    )
    return codes, names


def category_codes(columns: Sequence[Column], n: int) -> Tensor:
    """`(n,)` codes of the combinations of categorical columns, without the numeric ones; zeros where there are none."""
    categories = [item for item in columns if item.kind != "numeric"]
    return cells_of(categories)[0] if categories else torch.zeros(n, dtype=torch.long)


def _cell(item: Column, value: float) -> str:
    text = item.levels[int(value)] if item.levels else f"{value:g}"
    return f"{item.name} {text}"


def _is_numeric(found: Collection[Any], codes_to: int) -> bool:
    if any(isinstance(value, str | bool) for value in found):
        return False
    finite = all(math.isfinite(value) for value in found)  # what is not is refused as a number, and is no level
    whole = finite and all(float(value).is_integer() for value in found)
    return not finite or not (len(found) == 2 or (whole and len(found) <= codes_to))


def tercile_codes(values: NDArray[np.float64] | Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Cut a numeric column into thirds: codes `(n,)` (-1 where missing) and the names of the ranges."""
    numbers = torch.as_tensor(values, dtype=torch.float64)
    present = ~numbers.isnan()
    thirds = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    cuts = torch.unique(torch.quantile(numbers[present], thirds))
    codes = torch.full((len(numbers),), -1)
    codes[present] = torch.bucketize(numbers[present], cuts)
    low, high = float(numbers[present].min()), float(numbers[present].max())
    edges = [low, *cuts.tolist(), high]
    names = tuple(f"{a:.4g} to {b:.4g}" for a, b in itertools.pairwise(edges))
    return codes, names
