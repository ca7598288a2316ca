"""Correlations of numbers and levels, and the paper's measure of a confound in the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from deconfound.errors import ShapeError
from deconfound.metrics.arrays import Array, as_codes, as_matrix, as_vector, check_lengths
from deconfound.metrics.distance import FEWEST_ROWS, u_distance_correlation_sqr

Levels = Sequence[Any] | ArrayLike


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Return Pearson's correlation of two columns of numbers; 0 if one of them is constant.

    Example:
        >>> round(pearson([1, 2, 3], [2, 4, 6]), 6)
        1.0
    """
    first, second = as_vector(x, "x"), as_vector(y, "y")
    check_lengths(x=first, y=second)
    product = float(_unit_length(first) @ _unit_length(second))
    return min(max(product, -1.0), 1.0)


def point_biserial(x: ArrayLike, levels: Levels) -> float:
    """Return the correlation of numbers with being in the second of two sorted levels.

    It equals (m₁ − m₀) √(p₀ p₁) / sd, where m are the means and p the shares of the levels.
    """
    codes, names = as_codes(levels, "levels")
    if len(names) > 2:
        raise ShapeError(
            f"`levels` has {len(names)} levels. Pass two levels, or use correlation_ratio."
        )
    check_lengths(x=as_vector(x, "x"), levels=codes)
    return pearson(x, codes == len(names) - 1)


def correlation_ratio(x: ArrayLike, levels: Levels) -> float:
    """Return η = √(sum of squares between levels / total sum of squares), from 0 to 1."""
    numbers = as_vector(x, "x")
    codes, _ = as_codes(levels, "levels")
    check_lengths(x=numbers, levels=codes)
    means = np.bincount(codes, _unit_length(numbers)) / np.bincount(codes)
    between = float(np.bincount(codes) @ means**2)
    return float(min(between, 1.0) ** 0.5)


def cramers_v(first: Levels, second: Levels) -> float:
    """Return Cramér's V = √(χ² / (n (m − 1))), m being the smaller number of levels.

    It lies between 0 and 1, and is 0 if one side has a single level.
    """
    rows, row_names = as_codes(first, "first")
    columns, column_names = as_codes(second, "second")
    n = check_lengths(first=rows, second=columns)
    smaller = min(len(row_names), len(column_names))
    if smaller == 1:
        return 0.0
    shape = (len(row_names), len(column_names))
    table = np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / n
    chi_squared = ((table - expected) ** 2 / expected).sum()
    return float(np.sqrt(chi_squared / (n * (smaller - 1))))


def paper_association(
    outputs: ArrayLike, confound: Levels, folds: Levels | None = None, *, categorical: bool
) -> float:
    """Return the paper's measure of a confound in the outputs.

    For numbers it is |r|, and for two levels the absolute point-biserial correlation. For more
    levels it is the bias-corrected dcor² of the one-hot levels. Each is averaged over the columns
    of the outputs within a fold, and then over folds.

    Args:
        outputs: Logits, shape `(n,)` or `(n, k)`.
        confound: Levels, or numbers, shape `(n,)`.
        folds: The fold of each row, shape `(n,)`. By default there is one.
        categorical: True if the confound holds levels, False if it holds numbers.

    Returns:
        The average. It is NaN if a fold has fewer than four rows.
    """
    columns = as_matrix(outputs, "outputs")
    if categorical:
        codes, names = as_codes(confound, "confound")
        encoding = np.eye(len(names))[codes]
    else:
        encoding = as_vector(confound, "confound")[:, None]
    fold, fold_names = as_codes(np.zeros(len(columns)) if folds is None else folds, "folds")
    check_lengths(outputs=columns, confound=encoding, folds=fold)
    members = [np.flatnonzero(fold == code) for code in range(len(fold_names))]
    return float(np.mean([_mean_association(columns[rows], encoding[rows]) for rows in members]))


def _mean_association(outputs: Array, encoding: Array) -> float:
    """Return the average over outputs `(n, k)` for numbers `(n, 1)` or one-hot levels `(n, q)`."""
    if len(outputs) < FEWEST_ROWS:
        return nan
    if encoding.shape[1] > 2:
        values = [u_distance_correlation_sqr(column, encoding) for column in outputs.T]
    else:
        values = [abs(pearson(column, encoding[:, -1])) for column in outputs.T]
    return float(np.mean(values))


def _unit_length(values: Array) -> Array:
    """Return numbers with mean 0 and length 1; zeros if they are constant."""
    centred = values - values[0]
    largest = np.abs(centred).max()
    if largest == 0:
        return np.zeros_like(values)
    centred = centred / largest
    centred = centred - centred.mean()
    return np.asarray(centred / np.linalg.norm(centred))
