"""Checks and small sums on arrays that all measures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deconfound.errors import OptionError, ShapeError, TableError

Array = NDArray[np.float64]
Codes = NDArray[np.intp]


def as_matrix(values: ArrayLike, name: str) -> Array:
    """Return `values` as finite float64 numbers of shape `(n, d)`; a vector becomes one column.

    Args:
        values: Numbers of shape `(n,)`, `(n, d)` or `(n, …)`, which is flattened to `(n, d)`.
        name: The argument's name, for the message of an error.
    """
    try:
        matrix = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"`{name}` holds values that are not numbers. Pass an array of numbers; levels such "
            "as site names belong in an argument that takes levels."
        ) from error
    if matrix.ndim == 0 or matrix.size == 0:
        raise ShapeError(
            f"`{name}` has shape {matrix.shape}. Pass at least one row, with shape (n,) or (n, d)."
        )
    matrix = matrix.reshape(len(matrix), -1)
    rows = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if len(rows):
        raise TableError(
            f"`{name}` is NaN or infinite in {len(rows)} of {len(matrix)} rows, the first of which "
            f"is row {rows[0]}. Leave these rows out of all arrays."
        )
    return matrix


def as_vector(values: ArrayLike, name: str) -> Array:
    """Return `values` as finite float64 numbers of shape `(n,)`; one column is flattened."""
    matrix = as_matrix(values, name)
    if matrix.shape[1] != 1:
        raise ShapeError(
            f"`{name}` has {matrix.shape[1]} columns. Pass one number for each row, shape (n,)."
        )
    return matrix[:, 0]


def as_codes(values: ArrayLike | Sequence[Any], name: str) -> tuple[Codes, NDArray[Any]]:
    """Return whole-number codes, shape `(n,)`, and the sorted levels that they index.

    Args:
        values: One level for each row: text, whole numbers or booleans.
        name: The argument's name, for the message of an error.
    """
    levels = np.asarray(values)
    if levels.ndim != 1 or not len(levels):
        raise ShapeError(
            f"`{name}` has shape {levels.shape}. Pass one level for each row, shape (n,)."
        )
    # NaN is the only value that differs from itself.
    missing = [i for i, level in enumerate(levels.tolist()) if level is None or level != level]
    if missing:
        raise TableError(
            f"`{name}` is missing in {len(missing)} of {len(levels)} rows, the first of which is "
            f"row {missing[0]}. Leave these rows out of all arrays, or give them their own level."
        )
    try:
        names, codes = np.unique(levels, return_inverse=True)
    except TypeError as error:
        raise TableError(
            f"`{name}` mixes types that cannot be sorted, such as text and numbers. "
            "Convert all levels to text."
        ) from error
    return codes.astype(np.intp), names


def check_lengths(**arrays: NDArray[Any]) -> int:
    """Return the common number of rows of the named arrays, or raise an error that lists them."""
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"`{name}` has {length}" for name, length in lengths.items())
        raise ShapeError(f"The numbers of rows differ: {listed}. Pass the same rows in all.")
    return next(iter(lengths.values()))


def group_people(person: Codes, cell: Codes, *, count_rows: bool = False) -> Codes:
    """Return a group code for each person, shape `(people,)`: equal for rows in the same cells.

    Args:
        person: Codes 0, 1, … of the person of each row, shape `(n,)`.
        cell: Codes of the cell of each row, shape `(n,)`.
        count_rows: Whether people of one group must also have equally many rows in each cell.
    """
    pairs, counts = np.unique(np.column_stack([person, cell]), axis=0, return_counts=True)
    if not count_rows:
        counts = np.ones_like(counts)
    first_pairs = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
    cells_of_people = np.split(np.column_stack([pairs[:, 1], counts]), first_pairs[1:])
    groups: dict[bytes, int] = {}
    codes = [groups.setdefault(cells.tobytes(), len(groups)) for cells in cells_of_people]
    return np.array(codes, dtype=np.intp)
