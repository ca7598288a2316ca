"""Scores of a model in many bootstrap samples of the same rows.

Every function takes the weights that the rows have in each sample, shape `(samples, n)`, and
returns one score for each sample, shape `(samples,)`. A row that was drawn twice has twice its
weight. A sample in which a score is not defined has NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import numpy as np
from numpy.typing import NDArray

from deconfound.metrics.arrays import Array

Flags = NDArray[np.bool_]
RowNumbers = NDArray[np.intp]

# Numbers that differ by less than this share of the largest are equal, apart from rounding.
ROUNDING = 1e-12


def auc_of_samples(scores: Array, is_case: Flags, weights: Array) -> Array:
    """Return the area under the ROC curve; pairs of equal scores count half.

    Args:
        scores: Shape `(n,)`.
        is_case: Shape `(n,)`.
        weights: Shape `(samples, n)`; a pair weighs the product of its rows' weights.
    """
    cases, controls = np.flatnonzero(is_case), np.flatnonzero(~is_case)
    controls = controls[np.argsort(scores[controls])]
    below = np.searchsorted(scores[controls], scores[cases], side="left")
    not_above = np.searchsorted(scores[controls], scores[cases], side="right")
    # Entry k is the weight of the k lowest controls.
    lowest = np.zeros((len(weights), len(controls) + 1))
    np.cumsum(weights[:, controls], axis=1, out=lowest[:, 1:])
    case_weights = weights[:, cases]
    won = np.einsum("sc,sc->s", case_weights, lowest[:, below] + lowest[:, not_above]) / 2
    return ratio(won, case_weights.sum(axis=1) * lowest[:, -1])


def auc_within_cells(
    scores: Array, is_case: Flags, cells: Sequence[RowNumbers], weights: Array
) -> Array:
    """Return the mean AUC of the cells, weighted by n₁ n₀ / (n₁ + n₀).

    Args:
        scores: Shape `(n,)`.
        is_case: Shape `(n,)`.
        cells: The rows of each cell, such as a site in a test fold.
        weights: Shape `(samples, n)`; n₁ and n₀ are sums of the weights of cases and controls.
    """
    total, importance = np.zeros(len(weights)), np.zeros(len(weights))
    for rows in cells:
        members, cell_weights = is_case[rows], weights[:, rows]
        if members.all() or not members.any():
            continue
        cases = cell_weights @ members
        controls = cell_weights @ ~members
        area = auc_of_samples(scores[rows], members, cell_weights)
        weight_of_cell = np.where(np.isnan(area), 0.0, ratio(cases * controls, cases + controls))
        total += np.nan_to_num(weight_of_cell * area)
        importance += np.nan_to_num(weight_of_cell)
    return ratio(total, importance)


def mean_of_classes(scores: Sequence[Array]) -> Array:
    """Return the mean over classes of their scores, without those that are NaN."""
    stacked = np.stack(scores)
    return ratio(np.nansum(stacked, axis=0), (~np.isnan(stacked)).sum(axis=0))


def accuracy_of_samples(is_correct: Flags, members: Flags, weights: Array) -> Array:
    """Return the share of correct rows among the members of a group.

    Args:
        is_correct: Shape `(n,)`.
        members: Which rows belong to the group, shape `(n,)`.
        weights: Shape `(samples, n)`.
    """
    return ratio(weights @ (is_correct & members), weights @ members)


def r_squared_of_samples(predicted: Array, truth: Array, weights: Array) -> Array:
    """Return 1 − Σ w (y − ŷ)² / Σ w (y − ȳ)² for ŷ and y of shape `(n,)`."""
    # A large common mean would cost digits in the squares.
    centred = centre(truth)
    total = weights.sum(axis=1)
    squares = weights @ centred**2
    variation = squares - ratio((weights @ centred) ** 2, total)
    # Where all rows with a weight have one truth, only rounding is left.
    variation = np.where(variation > ROUNDING * squares, variation, 0.0)
    return 1 - ratio(weights @ (truth - predicted) ** 2, variation)


def correlation_within_cells(
    x: Array, y: Array, cells: Sequence[RowNumbers], weights: Array
) -> Array:
    """Return the correlation of x and y, shape `(n,)`, after each loses the means of the cells."""
    moments = np.zeros((3, len(weights)))
    for rows in cells:
        a, b, w = centre(x[rows]), centre(y[rows]), weights[:, rows]
        total, sum_a, sum_b = w.sum(axis=1), w @ a, w @ b
        moments[0] += w @ (a * b) - np.nan_to_num(ratio(sum_a * sum_b, total))
        moments[1] += w @ a**2 - np.nan_to_num(ratio(sum_a**2, total))
        moments[2] += w @ b**2 - np.nan_to_num(ratio(sum_b**2, total))
    return ratio(moments[0], np.sqrt(np.maximum(moments[1] * moments[2], 0.0)))


def absolute_error_of_samples(
    predicted: Array, truth: Array, members: Flags, weights: Array
) -> Array:
    """Return the mean absolute error among the members of a group, all of shape `(n,)`."""
    return ratio(weights @ (np.abs(predicted - truth) * members), weights @ members)


def centre(values: Array) -> Array:
    """Return values minus their mean, without the rounding that equal values leave."""
    centred = values - values.mean()
    return np.where(np.abs(centred) > ROUNDING * np.abs(values).max(), centred, 0.0)


def ratio(top: Array, bottom: Array) -> Array:
    """Return top / bottom, elementwise, and NaN where the bottom is not positive."""
    undefined = np.full(np.shape(bottom), nan)
    quotient: Array = np.divide(top, bottom, out=undefined, where=np.asarray(bottom) > 0)
    return quotient
