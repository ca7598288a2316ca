"""The leak of a confound: one statistic for the effect, its interval, and its permutation test.

The statistic is a sum over pairs of rows of two people,

    T_S = Σ_{i,j in S} √u_i √u_j K_ij a_i · a_j,

where K is the similarity of outputs, a the confound centred within cells, u = 1 / the number of
rows of a person, and S all rows or those of one label group. T grows with the number of pairs, so
a cell counts with its number of people. The effect relates T to its largest possible value:

    effect = (T − mean of permuted T) / (bound − mean of permuted T).

The effect is 0 on average for independent outputs, and 1 for outputs that equal a confound of two
levels with the same shares in all cells; otherwise its maximum is a little less. It is on the scale
of a squared correlation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import eigsh

from deconfound.errors import ShapeError
from deconfound.metrics.arrays import Array
from deconfound.metrics.bootstrap import Resampling, draw_people, percentile_interval
from deconfound.metrics.contrasts import Confound
from deconfound.metrics.leak_rows import LeakRows
from deconfound.metrics.permutations import changed_rows, draw_orders
from deconfound.metrics.similarity import OutputSimilarity

# Smaller label groups are not tested on their own.
FEWEST_PEOPLE = 8
# The share of the significance level for all pairs; the label groups divide the rest.
SHARE_OF_ALL_PAIRS = 2 / 3
# Equal statistics of two permuted tables differ by rounding. Below this they count as equal.
SLACK = 1e-9
# Columns in one product with K. More need memory and are not faster.
BATCH_COLUMNS = 400


@dataclass(frozen=True)
class Leak:
    """How much of a confound is left in the outputs, given the labels.

    Effect, interval, p and `independent` are NaN if no permutation changes anything, or if the
    outputs are constant within cells. All but p are NaN if the bound does not exceed chance.

    Attributes:
        effect: 0 for independence, 1 for the largest possible leak; over all pairs of rows.
        low: Lower end of the 95 % interval of the effect, clipped to 0 to 1.
        high: Upper end of the interval, clipped likewise.
        p: Of a label group, its p-value adjusted for all pairs and all groups (Westfall and
            Young). Of the whole, the smallest of these adjusted p-values.
        independent: The 95 % quantile of permuted effects.
        movable: Number of rows that a permutation can change.
        rows: Number of rows compared, of which there are at most 3,000.
        by_group: The leak within each label group that takes part in the test: those with at least
            8 people, in which outputs vary and something can be permuted. Empty if fewer than two
            take part.
    """

    effect: float
    low: float
    high: float
    p: float
    independent: float
    movable: int
    rows: int
    by_group: Mapping[Any, Leak] = field(default_factory=dict)


def leak(
    outputs: ArrayLike,
    confound: Sequence[Any] | ArrayLike,
    rows: LeakRows,
    *,
    categorical: bool,
    resampling: Resampling | None = None,
) -> Leak:
    """Measure and test what is left of one confound in outputs, given labels and folds.

    For several confounds of one model, make one `OutputSimilarity` and a `LeakTest` for each.

    Args:
        outputs: Scores or features, shape `(n,)` or `(n, d)`. Several columns are compared within
            folds only.
        confound: Levels, or numbers, shape `(n,)`.
        rows: Label group, fold, person, weight and numeric labels of the rows.
        categorical: True if the confound holds levels, False if it holds numbers.
        resampling: Numbers of permutations and bootstrap samples, and their seed.

    Example:
        >>> random = np.random.default_rng(0)
        >>> site, disease = random.integers(0, 2, 200), random.integers(0, 2, 200)
        >>> score = disease + 2.0 * site + random.normal(size=200)
        >>> leak(score, site, LeakRows.from_columns(200, group=disease), categorical=True).p
        0.002
    """
    resampling = resampling or Resampling()
    similarity = OutputSimilarity.from_outputs(outputs, rows, seed=resampling.seed)
    test = LeakTest.from_confound(
        similarity, confound, categorical=categorical, resampling=resampling
    )
    return test.result()


@dataclass(frozen=True, eq=False)
class LeakTest:
    """One confound against one set of outputs, with the statistics of permuted tables.

    Attributes:
        similarity: K of the outputs.
        confound: The confound, with rows in the order of `similarity`.
        contrasts: a of the table, shape `(n, q)`.
        groups: Codes of the label groups that take part in the test.
        movable: Whether a permutation can change the row, shape `(n,)`.
        statistics: T, shape `(1 + groups, 1 + permutations)`: all pairs, then each group that takes
            part; the table itself, then the permuted tables.
        resampling: Numbers of permutations and bootstrap samples, and their seed.
    """

    similarity: OutputSimilarity
    confound: Confound
    contrasts: Array
    groups: tuple[int, ...]
    movable: NDArray[np.bool_]
    statistics: Array
    resampling: Resampling

    @classmethod
    def from_confound(
        cls,
        similarity: OutputSimilarity,
        confound: Sequence[Any] | ArrayLike,
        *,
        categorical: bool,
        resampling: Resampling | None = None,
    ) -> LeakTest:
        """Permute a confound within cells and compute T of each permuted table.

        Args:
            similarity: K of the outputs.
            confound: Levels, or numbers, of all rows that `similarity` was drawn from.
            categorical: True if the confound holds levels, False if it holds numbers.
            resampling: Numbers of permutations and bootstrap samples, and their seed.
        """
        resampling = resampling or Resampling()
        rows, cells = similarity.rows, similarity.cells
        length = len(np.asarray(confound))
        if length != similarity.total_rows:
            raise ShapeError(
                f"`confound` has {length} rows, the outputs have {similarity.total_rows}. "
                "Pass the same rows in both."
            )
        column = Confound.from_values(confound, rows, similarity.used, categorical=categorical)
        contrasts = column.contrasts(rows, cells)[:, 0]
        random = np.random.default_rng(resampling.seed)
        movable = np.zeros(len(rows), dtype=bool)
        batches = [pair_sums(similarity.kernel, contrasts[:, None], rows)]
        for count in batch_sizes(resampling.permutations, contrasts.shape[1]):
            orders = draw_orders(rows.person, cells.codes, column.codes, count, random)
            movable |= changed_rows(column.values, orders)
            batches.append(pair_sums(similarity.kernel, contrasts[orders.T], rows))
        statistics = np.concatenate(batches, axis=1)
        # Residuals of two curves in one label vary together more than permuted residuals do.
        people = rows.votes.sum()
        curve_size = min(column.curve_size, similarity.curve_size)
        statistics[:, 1:] *= people / max(people - curve_size, 1.0)
        groups = groups_that_take_part(similarity, movable)
        statistics = statistics[[0, *(group + 1 for group in groups)]]
        return cls(similarity, column, contrasts, groups, movable, statistics, resampling)

    @property
    def parts(self) -> list[slice]:
        """The rows of each part: all of them, then those of each group that takes part."""
        slices = group_slices(self.similarity.rows)
        return [slice(None), *(slices[group] for group in self.groups)]

    @property
    def has_answer(self) -> bool:
        """False if outputs or confound are constant in each cell, or if nothing can be permuted."""
        varies = self.contrasts.any() and not self.similarity.is_constant
        return bool(varies and self.movable.any())

    def sums(self, kernel: Array, contrasts: Array) -> Array:
        """Return T of each part, shape `(1 + groups, draws)`; arguments as for `pair_sums`."""
        sums = pair_sums(kernel, contrasts, self.similarity.rows)
        return sums[[0, *(group + 1 for group in self.groups)]]

    def result(self) -> Leak:
        """Return the effects, their intervals and the p-values."""
        rows = self.similarity.rows
        if not self.has_answer:
            return Leak(nan, nan, nan, nan, nan, int(self.movable.sum()), len(rows))
        expected = self.statistics[:, 1:].mean(axis=1, keepdims=True)
        room = self._bounds() - expected
        # Without room between chance and bound there is no scale on which to report the effect.
        room[room <= SLACK * np.abs(self.statistics).max()] = nan
        effects = (self.statistics - expected) / room
        samples = (self._bootstrap() - expected) / room
        p_values = adjusted_p_values(self.statistics)
        leaks = []
        for part, one, draws, p in zip(self.parts, effects, samples, p_values, strict=True):
            low, high = np.clip(percentile_interval(draws, one[0]), 0.0, 1.0).tolist()
            leaks.append(
                Leak(
                    effect=float(one[0]),
                    low=low,
                    high=high,
                    p=float(p),
                    independent=float(np.quantile(one[1:], 0.95)),
                    movable=int(self.movable[part].sum()),
                    rows=len(self.movable[part]),
                )
            )
        names = [rows.group_names[group] for group in self.groups]
        by_group = dict(zip(names, leaks[1:], strict=True))
        return replace(leaks[0], p=float(p_values.min()), by_group=by_group)

    def _bounds(self) -> Array:
        """Return the largest possible T of each part, shape `(parts, 1)`."""
        kernel, votes = self.similarity.kernel, self.similarity.rows.votes
        weighted = self.contrasts * np.sqrt(votes)[:, None]
        bounds = [largest_sum(kernel[part, part], weighted[part]) for part in self.parts]
        return np.array(bounds)[:, None]

    def _bootstrap(self) -> Array:
        """Return T of samples of people drawn within cells, shape `(parts, bootstraps)`."""
        rows, cells = self.similarity.rows, self.similarity.cells
        draws, seed = self.resampling.bootstraps, self.resampling.seed
        counts = draw_people(rows.person, cells.codes, draws, seed).T.astype(np.float64)
        batches = [np.empty((len(self.statistics), 0))]
        first = 0
        for count in batch_sizes(draws, self.contrasts.shape[1]):
            sample = self.confound.contrasts(rows, cells, counts[:, first : first + count])
            batches.append(self.sums(self.similarity.kernel, sample))
            first += count
        return np.concatenate(batches, axis=1)


def adjusted_p_values(statistics: Array) -> Array:
    """Return the p-value of each part, adjusted for the number of parts, shape `(parts,)`.

    The p-value of each part is divided by its share of the level. The smallest of these is then
    compared with the smallest of each permuted table, so that the test keeps its level although
    the parts are dependent.

    Args:
        statistics: T, shape `(parts, tables)`; the table itself comes first, all pairs come first.
    """
    parts, tables = statistics.shape
    p_values = np.empty_like(statistics)
    for part, one in enumerate(statistics):
        # Ties count against the finding, also those that rounding hides.
        reached = np.sort(one + SLACK * np.abs(one).max())
        p_values[part] = 1 - np.searchsorted(reached, one, side="left") / tables
    if parts > 1:
        p_values[0] /= SHARE_OF_ALL_PAIRS
        p_values[1:] *= (parts - 1) / (1 - SHARE_OF_ALL_PAIRS)
    smallest = p_values.min(axis=0)
    return np.asarray((smallest <= p_values[:, :1] + SLACK).mean(axis=1))


def pair_sums(kernel: Array, contrasts: Array, rows: LeakRows) -> Array:
    """Return T over all pairs and over each label group, shape `(1 + groups, draws)`.

    Args:
        kernel: K, shape `(n, n)`.
        contrasts: a in each permuted table or bootstrap sample, shape `(n, draws, q)`.
        rows: Votes and label groups of the rows, which lie together by group.
    """
    n, draws, columns = contrasts.shape
    weighted = (contrasts * np.sqrt(rows.votes)[:, None, None]).reshape(n, -1)
    sums = quadratic_sums(kernel, weighted, group_slices(rows))
    return np.asarray(sums.reshape(len(sums), draws, columns).sum(axis=2))


def quadratic_sums(kernel: Array, vectors: Array, parts: list[slice]) -> Array:
    """Return vᵀKv over all rows and over the pairs within each part, shape `(1 + parts, r)`.

    Args:
        kernel: K, shape `(n, n)`.
        vectors: One v in each column, shape `(n, r)`.
        parts: Where the rows of each part lie; the parts hold each row once.
    """
    sums = np.zeros((1 + len(parts), vectors.shape[1]))
    for number, part in enumerate(parts, start=1):
        product = kernel[:, part] @ vectors[part]
        sums[0] += np.einsum("nr,nr->r", vectors, product)
        sums[number] = np.einsum("nr,nr->r", vectors[part], product[part])
    return sums


def largest_sum(kernel: Array, weighted: Array) -> float:
    """Return the upper bound Σ_c λ_c(K) μ_c(Σ u a aᵀ) of T (von Neumann's trace inequality).

    Args:
        kernel: K of some rows, shape `(n, n)`. λ are its largest eigenvalues, in descending order.
        weighted: √u a of these rows, shape `(n, q)`. μ are its squared singular values.
    """
    count = max(1, min(weighted.shape[1], len(kernel) - 2))
    # A fixed start vector makes the result reproducible.
    start = np.random.default_rng(0).normal(size=len(kernel))
    largest = eigsh(kernel, count, which="LA", return_eigenvectors=False, v0=start, tol=1e-6)
    largest = np.maximum(np.sort(largest)[::-1], 0)
    singular = np.linalg.svd(weighted, compute_uv=False)[:count]
    return float(largest @ singular**2)


def group_slices(rows: LeakRows) -> list[slice]:
    """Return where the rows of each label group lie, which are sorted by group."""
    ends = np.searchsorted(rows.group, np.arange(len(rows.group_names)), side="right")
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def groups_that_take_part(
    similarity: OutputSimilarity, movable: NDArray[np.bool_]
) -> tuple[int, ...]:
    """Return the codes of the label groups that are tested on their own; none if there is one."""
    groups = []
    for group, part in enumerate(group_slices(similarity.rows)):
        is_large = len(np.unique(similarity.rows.person[part])) >= FEWEST_PEOPLE
        if is_large and movable[part].any() and similarity.kernel[part, part].any():
            groups.append(group)
    return tuple(groups) if len(groups) > 1 else ()


def batch_sizes(draws: int, columns: int) -> Iterator[int]:
    """Yield numbers of draws that add up to `draws` and fit into one product with K."""
    size = max(1, BATCH_COLUMNS // columns)
    for first in range(0, draws, size):
        yield min(size, draws - first)
