"""The transform that makes metadata white on the training rows, and the directions it has to drop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A column whose remainder, after the columns before it, is smaller than this share of its sd is redundant.
# Encoded metadata are float32: below it the remainder would be mostly rounding.
REDUNDANT = 1e-4


@dataclass(frozen=True)
class Whitening:
    """Which columns stay, and the map from standardised `[C | L]` to white directions `[z_C | z_L]`.

    `matrix` is `(p, q)` with `q = confound_directions + keep directions`. Its confound rows do not reach z_L,
    so the coefficients of C are read off those of z_C alone: `β_C = matrix[:p_C, :q_C] b_C`.
    """

    matrix: NDArray[np.float64]
    confound_directions: int
    constant: tuple[int, ...]
    redundant: tuple[int, ...]
    shared: tuple[int, ...]


def whiten(standardised: NDArray[np.float64], confounds: int, weight: NDArray[np.float64]) -> Whitening:
    """Orthonormalise keep first, then what is left of each confound, column by column: `MᵀWM / Σw = I`.

    `standardised (n, p)` has columns `[C | L]`, the first `confounds` of them C, centred under `weight (n,)`. Keep
    comes first, so a direction that both share is credited to keep; a column inside the span of those before it is
    dropped, and its coefficient is zero.
    """
    n, p = standardised.shape
    standardised = standardised * np.sqrt(weight / weight.sum())[:, None]
    order = [*range(confounds, p), *range(confounds)]
    vectors = np.empty((min(n, p), n))
    triangle = np.zeros((min(n, p), min(n, p)))
    kept: list[int] = []
    constant: list[int] = []
    redundant: list[int] = []
    shared: list[int] = []
    for column in order:
        x = standardised[:, column]
        size = np.linalg.norm(x)
        if size < REDUNDANT:
            constant.append(column)
            continue
        x = x / size
        rank = len(kept)
        basis = vectors[:rank]
        weights = basis @ x
        rest = x - weights @ basis
        again = basis @ rest  # a second pass: one alone loses orthogonality where columns nearly agree
        rest -= again @ basis
        length = np.linalg.norm(rest)
        if length < REDUNDANT:
            peers = [index for index in kept if (index < confounds) == (column < confounds)]
            by_peers = _remainder(x, standardised[:, peers]) < REDUNDANT
            (redundant if by_peers else shared).append(column)
            continue
        triangle[:rank, rank] = size * (weights + again)
        triangle[rank, rank] = size * length
        vectors[rank] = rest / length
        kept.append(column)
    return Whitening(
        _map(kept, triangle, p, confounds),
        sum(index < confounds for index in kept),
        tuple(constant),
        tuple(redundant),
        tuple(shared),
    )


def _remainder(x: NDArray[np.float64], columns: NDArray[np.float64]) -> float:
    weights = np.linalg.lstsq(columns, x, rcond=None)[0]
    return float(np.linalg.norm(x - columns @ weights))


def _map(kept: list[int], triangle: NDArray[np.float64], p: int, confounds: int) -> NDArray[np.float64]:
    """Spread the inverse triangle over all p columns, white confound directions first."""
    inverse = np.linalg.inv(triangle[: len(kept), : len(kept)])
    keep_directions = sum(index >= confounds for index in kept)
    matrix = np.zeros((p, len(kept)))
    matrix[kept] = inverse
    return np.concatenate([matrix[:, keep_directions:], matrix[:, :keep_directions]], axis=1)
