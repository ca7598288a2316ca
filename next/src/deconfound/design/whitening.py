"""Whitening: the linear map from standardised columns to white directions, keep first.

The map comes from a Cholesky factorisation of the weighted Gram matrix G = MᵀWM / Σw. Column by
column it orthonormalises what the columns before have not explained, as Gram–Schmidt would, but
needs p² numbers instead of n·p: 5,000 one-hot columns take seconds.

A Gram matrix squares the condition number. Where the table is small enough, a second pass
therefore factorises the Gram matrix of the whitened columns themselves, which removes what
rounding left. With 5,000 levels the first pass is already accurate, because the columns of one
category are nearly uncorrelated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, lapack

Array = NDArray[np.float64]

# A column whose remainder, after the columns before it, is below this share of its sd is redundant.
# Encoded metadata are float32, so a smaller remainder would be mostly rounding.
REDUNDANT = 1e-4
_BLOCK = 64


@dataclass(frozen=True)
class Whitening:
    """The whitening transform of a design, and the columns that it leaves out.

    Attributes:
        matrix: Shape `(p, q)`. Its rows follow the columns `[C | L]`; its first
            `confound_directions` columns are the white confound directions.
        confound_directions: q_C, the number of white confound directions.
        redundant: Columns within the span of earlier columns of the same role.
        shared: Confound columns within the span of confounds and keep together. Their common
            direction is credited to keep.
    """

    matrix: Array
    confound_directions: int
    redundant: tuple[int, ...]
    shared: tuple[int, ...]


def whiten(
    gram: Array, confounds: int, gram_of: Callable[[Array], Array] | None = None
) -> Whitening:
    """Return the transform T with TᵀGT = I.

    Keep columns are orthonormalised first, so that a direction that both roles share is credited to
    keep, and white keep directions do not depend on confounds: `matrix[:p_C, q_C:] == 0`.

    Args:
        gram: G, shape `(p, p)`, of the columns `[C | L]`.
        confounds: p_C, the number of confound columns.
        gram_of: Returns the Gram matrix of the columns M T for a given T, shape `(p, q)`. If
            given, it is used for the second pass.
    """
    p = len(gram)
    used = np.r_[confounds:p, :confounds]
    while True:
        columns, factor = _factorise(gram[np.ix_(used, used)], np.ones(len(used)))
        used = used[columns]
        transform = np.zeros((p, len(used)))
        transform[used] = _inverse(factor)
        if gram_of is None or not len(used):
            break
        # Remainders multiply, so a column that only rounding kept in the first pass goes now.
        columns, factor = _factorise(gram_of(transform), np.diag(factor))
        if len(columns) == len(used):
            transform = transform @ _inverse(factor)
            break
        used = used[columns]
    is_keep = used >= confounds
    matrix = transform[:, np.argsort(is_keep, kind="stable")]
    redundant, shared = _reasons(gram, confounds, used)
    return Whitening(matrix, int((~is_keep).sum()), redundant, shared)


def explained_share(gram: Array, predictors: NDArray[np.intp], targets: NDArray[np.intp]) -> Array:
    """Return R² of each target column on all predictor columns, shape `(targets,)`.

    Args:
        gram: Gram matrix of standardised columns, shape `(p, p)`.
        predictors: Indices of the predictor columns.
        targets: Indices of the target columns.
    """
    if not len(predictors) or not len(targets):
        return np.zeros(len(targets))
    block = gram[np.ix_(predictors, predictors)]
    # A tiny ridge makes redundant predictors harmless.
    block[np.diag_indices_from(block)] += 1e-9
    cross = gram[np.ix_(predictors, targets)]
    coefficients = cho_solve(cho_factor(block, overwrite_a=True), cross)
    explained = np.einsum("ij,ij->j", cross, coefficients)
    variance = np.diag(gram)[targets]
    share = np.where(variance > 0, explained / np.where(variance > 0, variance, 1.0), 0.0)
    return np.asarray(np.clip(share, 0.0, 1.0))


def _factorise(gram: Array, length: Array) -> tuple[NDArray[np.intp], Array]:
    """Return the independent columns, and their Cholesky factor R with RᵀR = G of these columns.

    A column is left out if `length` times its remainder is below `REDUNDANT`. It is the Cholesky
    factorisation that goes on after a zero pivot; the blocks make it a product of matrices.
    """
    p = len(gram)
    rows = np.zeros((p, p))
    used: list[int] = []
    for start in range(0, p, _BLOCK):
        stop, done = min(start + _BLOCK, p), len(used)
        rest = gram[start:stop, start:] - rows[:done, start:stop].T @ rows[:done, start:]
        for i, column in enumerate(range(start, stop)):
            pivot = np.sqrt(max(rest[i, i], 0.0))
            if pivot * length[column] < REDUNDANT:
                continue
            row = rest[i, i:] / pivot
            rows[len(used), column:] = row
            used.append(column)
            rest[i + 1 :, i + 1 :] -= np.outer(row[1 : stop - column], row[1:])
    columns = np.array(used, dtype=np.intp)
    return columns, rows[: len(used), columns]


def _inverse(factor: Array) -> Array:
    """Return the inverse of an upper triangular matrix with a positive diagonal."""
    if not len(factor):
        return factor
    inverse: Array = lapack.dtrtri(factor)[0]
    return inverse


def _reasons(
    gram: Array, confounds: int, used: NDArray[np.intp]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the redundant columns, and those dropped only because keep holds their direction."""
    varying = np.flatnonzero(np.diag(gram) > 0)
    dropped = np.setdiff1d(varying, used)
    if not (dropped < confounds).any() or confounds == len(gram):
        return tuple(dropped.tolist()), ()
    alone, _ = _factorise(gram[:confounds, :confounds], np.ones(confounds))
    shared = np.intersect1d(dropped, alone)
    return tuple(np.setdiff1d(dropped, shared).tolist()), tuple(shared.tolist())
