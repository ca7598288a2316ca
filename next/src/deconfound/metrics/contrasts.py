"""A confound as columns of numbers that are centred within cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from deconfound.metrics.arrays import Array, Codes, as_codes, as_vector
from deconfound.metrics.cells import Cells
from deconfound.metrics.leak_rows import LeakRows
from deconfound.metrics.numeric_labels import mean_within_people, subtract_curves
from deconfound.metrics.permutations import varies_within
from deconfound.metrics.ranks import normal_scores, rank_shares

# The waves cos(2πr), cos(3πr), cos(4πr) of the rank share r: each has half a period more within the
# range than the one before. cos(πr) is left out, because it is almost the normal score.
WAVES = np.array([2, 3, 4])
# A variance below this share of the whole is rounding.
SMALLEST_VARIANCE = 1e-8
SMALLEST_EIGENVALUE = 1e-9
# What centring leaves of a constant, relative to the largest number.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Confound:
    """One confound in the rows of a test.

    Attributes:
        values: The numbers, or the codes of the levels, shape `(n,)`.
        codes: Codes of equal values with equal weights, shape `(n,)`.
        encoding: v, shape `(n, q)`: one column per level; or the normal score and three waves.
            Curves in numeric labels are subtracted.
        categorical: Whether the columns are levels.
        curve_size: Degrees of freedom of the curves.
    """

    values: Array
    codes: Codes
    encoding: Array
    categorical: bool
    curve_size: float

    @classmethod
    def from_values(
        cls, values: Sequence[Any] | ArrayLike, rows: LeakRows, used: Codes, *, categorical: bool
    ) -> Confound:
        """Encode a confound and subtract its curves in numeric labels.

        Args:
            values: Levels or numbers of the caller's rows.
            rows: Votes, weights and numeric labels of the rows of the test.
            used: The number of each row of the test in `values`.
            categorical: Whether the values are levels.
        """
        if categorical:
            numbers = as_codes(values, "confound")[0][used].astype(np.float64)
            encoding = (numbers[:, None] == np.unique(numbers)).astype(np.float64)
        else:
            numbers = as_vector(values, "confound")[used]
            encoding = encode_numbers(numbers, rows.votes)
        pairs = np.column_stack([numbers, rows.weight])
        codes = np.unique(pairs, axis=0, return_inverse=True)[1].astype(np.intp)
        curve_size = 0.0
        if rows.numeric_labels.shape[1]:
            labels = rows.numeric_labels
            # People who exchange a constant confound must have one residual each.
            if not varies_within(rows.person, codes):
                labels = mean_within_people(labels, rows)
            residuals, curve_size = subtract_curves(encoding, labels, rows)
            remains = residuals.var(axis=0) > SMALLEST_VARIANCE * encoding.var(axis=0)
            encoding = residuals * remains
        return cls(numbers, codes, encoding, categorical, curve_size)

    def contrasts(self, rows: LeakRows, cells: Cells, counts: Array | None = None) -> Array:
        """Return a, shape `(n, draws, q)`: the encoding centred in cells, times weights and counts.

        Levels are whitened: Σ u a aᵀ is the identity on the directions in which they vary. Without
        it a level would count with the square of its size, and a rare site not at all.

        Args:
            rows: Votes and weights of the rows.
            cells: The cells of the rows.
            counts: How often each row occurs in each bootstrap sample, shape `(n, draws)`. By
                default there is one sample, the table.
        """
        counts = np.ones((len(rows), 1)) if counts is None else counts
        votes = rows.votes[:, None] * counts
        weight = rows.weight[:, None]
        contrasts = cells.centre(self.encoding[:, None, :], (votes * weight)[:, :, None])
        contrasts = contrasts * weight[:, :, None]
        contrasts[np.abs(contrasts) < ROUNDING * np.abs(weight * self.encoding).max()] = 0.0
        if self.categorical:
            by_draw = contrasts.transpose(1, 0, 2)
            gram = (by_draw * votes.T[:, :, None]).transpose(0, 2, 1) @ by_draw
            contrasts = (by_draw @ inverse_root(gram)).transpose(1, 0, 2)
        return np.asarray(contrasts * counts[:, :, None])


def encode_numbers(numbers: Array, votes: Array) -> Array:
    """Return the normal score of numbers and three waves of their ranks, shape `(n, 4)`."""
    shares = rank_shares(numbers, votes)
    waves = np.sqrt(2) * np.cos(np.pi * np.outer(shares, WAVES)) / WAVES
    return np.column_stack([normal_scores(numbers[:, None], votes), waves])


def inverse_root(gram: Array) -> Array:
    """Return W with Wᵀ G W = I where G varies, and 0 elsewhere; G has shape `(…, q, q)`."""
    values, vectors = np.linalg.eigh(gram)
    varies = values > SMALLEST_EIGENVALUE * values[..., -1:]
    scale = np.where(varies, 1 / np.sqrt(np.where(varies, values, 1.0)), 0.0)
    return np.asarray(vectors * scale[..., None, :])
