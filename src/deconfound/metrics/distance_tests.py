"""dcor² with its interval and p-value: one set of distances serves every permutation and bootstrap sample."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deconfound.metrics.checks import codes_of, ordinary, samples
from deconfound.metrics.conditional import SMALLEST_GROUP
from deconfound.metrics.pairs import distances
from deconfound.metrics.permutations import movable, permuted_rows
from deconfound.metrics.resampling import Estimate, Resampling, bootstrap_weights, estimate, interval
from deconfound.metrics.sorted_pairs import row_sums, sorted_products

if TYPE_CHECKING:
    from deconfound.metrics.checks import Samples

# With so few distinct rows of y, sums over level pairs by matrix products beat comparing all pairs of rows.
_FEW_LEVELS = 32
# From so many rows on, single columns are sorted instead of visiting all pairs.
_SORT_FROM = 400
# Numbers held at once.
_HELD = 2**24
Products = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Draws:
    """A statistic, its values over permuted tables `(permutations,)` and over bootstrap samples `(bootstraps,)`."""

    value: float
    null: Tensor
    replicates: Tensor
    n: int
    movable: int

    def estimate(self, statistic: str) -> Estimate:
        """The value with its interval and p-value."""
        if not self.n:
            return Estimate(statistic, float("nan"), 0)
        ends = interval(self.value, self.replicates, -1, 1)
        return estimate(statistic, self.value, self.n, self.null, ends, self.movable)


def dcor_test(
    x: "Samples",
    y: "Samples",
    cells: "Samples",
    units: "Samples | None",
    resampling: Resampling,
    statistic: str = "dcor_sqr",
) -> Estimate:
    """The bias-corrected dcor² within each cell, averaged over the cells, with its interval and p-value.

    One cell is plain dcor²; cells that are label groups give the within-group dcor². The null is that `x` and
    `y` are independent within every cell. Holds a few n × n matrices of the largest cell: draw a sample of rows
    first where n is large.

    Args:
        x: `(n, d)` outputs.
        y: `(n, q)` encoded confound.
        cells: `(n,)` codes; cells of fewer than 4 rows have no value and are left out.
        units: `(n,)` person of each row, or None.
        resampling: how many permutations and bootstrap samples.
        statistic: name of the result.
    """
    return dcor_draws(x, y, cells, units, resampling).estimate(statistic)


def dcor_draws(
    x: "Samples",
    y: "Samples",
    cells: "Samples",
    units: "Samples | None",
    resampling: Resampling,
    orders: Tensor | None = None,
) -> Draws:
    """What `dcor_test` is made of; the same seed draws the same permutations for every x and y.

    `orders (permutations, n)` are the permuted rows of y where they are not those of `permuted_rows`.
    """
    x, y = (ordinary(side.detach()) for side in samples(x, y, at_least=SMALLEST_GROUP))
    codes, people = codes_of(cells, len(x), "cells"), codes_of(units, len(x), "units")
    assert codes is not None
    counts = torch.bincount(codes)
    rows = (counts[codes] >= SMALLEST_GROUP).nonzero()[:, 0]
    if not len(rows):
        return Draws(float("nan"), torch.zeros(0), torch.zeros(0), 0, 0)
    generator = resampling.generator()
    if orders is None:
        x, y, codes = x[rows], y[rows], codes[rows]
        people = None if people is None else people[rows]
        orders = permuted_rows(codes, people, resampling.permutations, generator, y)
    weights = bootstrap_weights(codes, people, resampling.bootstraps, generator)
    parts = [(codes == code).nonzero()[:, 0] for code in torch.unique(codes) if counts[code] >= SMALLEST_GROUP]
    values, nulls, replicates = [], [], []
    for part in parts:
        cell = _Cell.of(x[part], y[part])
        values.append(cell.value())
        nulls.append(cell.permuted(y, orders[:, part], part))
        replicates.append(cell.resampled(weights[:, part].double()))
    used = sum(len(part) for part in parts)
    mean = [torch.stack(items).mean(0) for items in (values, nulls, replicates)]
    return Draws(float(mean[0]), mean[1], mean[2], used, movable(y, orders))


@dataclass(frozen=True)
class _Cell:
    """The rows of one cell: distances of both sides, those of x U-centred, and the root of both variances."""

    x: Tensor
    a: Tensor
    b: Tensor
    centred: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> "_Cell":
        a, b = _distances(x), _distances(y)
        x_centred, y_centred = _u_centred(a), _u_centred(b)
        variances = x_centred.square().sum(), y_centred.square().sum()
        # What equal rows leave is rounding.
        varies = all(v > 1e-13 / len(x) ** 2 * d.square().sum() for v, d in zip(variances, (a, b), strict=True))
        scale = (variances[0] * variances[1]).sqrt() if varies else torch.zeros((), dtype=torch.float64)
        return cls(x, a, b, x_centred, scale)

    def value(self) -> Tensor:
        """The bias-corrected dcor² of the rows as they are; zero where a side does not vary."""
        return (self.centred * self.b).sum() / self.scale if self.scale > 0 else self.scale

    def permuted(self, y: Tensor, orders: Tensor, rows: Tensor) -> Tensor:
        """The same, `(orders,)`, with row `rows[i]` taking the value of row `orders[k, i]` of the whole `y`."""
        if self.scale <= 0:
            return torch.zeros(len(orders), dtype=torch.float64)
        levels, codes = torch.unique(y, dim=0, return_inverse=True)
        one_hot = y.shape[1] > 1 and bool((levels.sum(1) == 1).all()) and bool(((levels == 0) | (levels == 1)).all())
        n = orders.shape[1]
        if self.x.shape[1] == y.shape[1] == 1 and n >= _SORT_FROM and len(levels) > 2:
            held, products = max(1, _HELD // (16 * n)), self._by_sorting(y)
        elif one_hot and len(levels) > 3 and bool((orders.sort(1).values == rows).all()):
            held, products = max(1, _HELD * len(levels) // n**2), self._by_partners(codes[rows], rows)
        elif len(levels) <= _FEW_LEVELS:
            held, products = max(1, _HELD // (n * len(levels))), self._by_level(levels, codes)
        elif one_hot:
            held, products = max(1, _HELD // n**2), self._by_equality(codes)
        else:
            held, products = max(1, _HELD // n**2), self._by_distance(y)
        return torch.cat([products(part) for part in torch.split(orders, held)]) / self.scale

    def _by_sorting(self, y: Tensor) -> Products:
        """Single columns: sums over pairs of sorted values, in O(n log n) for each order."""
        x = self.x[:, 0].double() - self.x.double().mean()
        values, n = y[:, 0].double() - y.double().mean(), len(x)
        a_rows = row_sums(x[None])[0]

        def products(orders: Tensor) -> Tensor:
            drawn = values[orders]
            b_rows = row_sums(drawn)
            rows, totals = b_rows @ a_rows, b_rows.sum(1) * a_rows.sum()
            return sorted_products(x, drawn) - 2 * rows / (n - 2) + totals / ((n - 1) * (n - 2))

        return products

    def _by_level(self, levels: Tensor, codes: Tensor) -> Products:
        between = _distances(levels)
        member = torch.nn.functional.one_hot(codes, len(levels)).double()

        def products(orders: Tensor) -> Tensor:
            drawn = member[orders].transpose(0, 1)
            reached = (self.centred @ drawn.flatten(1)).view_as(drawn)
            return torch.einsum("npk,npl,kl->p", drawn, reached, between)

        return products

    def _by_partners(self, codes: Tensor, rows: Tensor) -> Products:
        """Rows that share a level keep sharing it wherever they go: only their pairs are visited."""
        by_level = codes.argsort(stable=True)
        sizes = torch.bincount(codes)
        pairs = [torch.combinations(part, 2) for part in by_level.split(sizes[sizes > 0].tolist()) if len(part) > 1]
        first, second = torch.cat(pairs).T if pairs else torch.zeros(2, 0, dtype=torch.long)

        def products(orders: Tensor) -> Tensor:
            place = torch.searchsorted(rows, orders).argsort(1)
            return -(8**0.5) * self.centred[place[:, first], place[:, second]].sum(1)

        return products

    def _by_equality(self, codes: Tensor) -> Products:
        """Levels are all as far from each other: only whether two rows share one matters."""

        def products(orders: Tensor) -> Tensor:
            drawn = codes[orders]
            same = (drawn[:, :, None] == drawn[:, None, :]).double()
            return 2**0.5 * (self.centred.sum() - same.flatten(1) @ self.centred.flatten())

        return products

    def _by_distance(self, y: Tensor) -> Products:
        y = y.double()

        def products(orders: Tensor) -> Tensor:
            drawn = y[orders]
            if y.shape[1] == 1:
                between = (drawn - drawn.transpose(1, 2)).abs_()
            else:
                between = torch.cdist(drawn, drawn, compute_mode="donot_use_mm_for_euclid_dist")
            return between.flatten(1) @ self.centred.flatten()

        return products

    def resampled(self, weights: Tensor) -> Tensor:
        """dcor² for every bootstrap sample, in which row i counts `weights[k, i]` times."""
        if self.scale <= 0:
            return torch.zeros(len(weights), dtype=torch.float64)
        # float32 is exact enough for an interval, and twice as fast; sums are taken in float64.
        a, b, w = (self.a / self.a.max().clamp_min(1e-300)).float(), self.b.float(), weights.T.float()
        n = weights.T.sum(0)
        a_rows, b_rows = a @ w, b @ w

        def covariance(products: Tensor, first: Tensor, second: Tensor) -> Tensor:
            total = (w * (products @ w)).sum(0, dtype=torch.float64)
            rows = (w * first * second).sum(0, dtype=torch.float64)
            sums = (w * first).sum(0, dtype=torch.float64) * (w * second).sum(0, dtype=torch.float64)
            return total - 2 * rows / (n - 2) + sums / ((n - 1) * (n - 2))

        xy = covariance(a * b, a_rows, b_rows)
        xx, yy = covariance(a.square(), a_rows, a_rows), covariance(b.square(), b_rows, b_rows)
        scale = (xx * yy).clamp_min(0).sqrt()
        return torch.where(scale > 0, xy / torch.where(scale > 0, scale, 1), torch.nan)


def _distances(x: Tensor) -> Tensor:
    x = x.double() - x.double().median(0).values
    return distances(x, x)


def _u_centred(a: Tensor) -> Tensor:
    n = len(a)
    rows = a.sum(1)
    centred = a - rows[:, None] / (n - 2) - rows / (n - 2) + rows.sum() / ((n - 1) * (n - 2))
    return centred.fill_diagonal_(0)
