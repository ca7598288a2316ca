"""dcor² with its interval and p-value: one set of distances serves every resample."""

from dataclasses import dataclass

import torch
from torch import Tensor

from deconfound.metrics.conditional import SMALLEST_GROUP
from deconfound.metrics.distance import samples, u_distance_correlation_sqr
from deconfound.metrics.pairs import distances
from deconfound.metrics.resampling import Estimate, Resampling, bootstrap_weights, estimate, permuted_rows

# With so few distinct rows of y, sums over level pairs by matrix products beat moving the n × n distances
# about.
_FEW_LEVELS = 32
# Numbers held at once.
_HELD = 2**24


@dataclass(frozen=True)
class _Cell:
    """The rows of one cell: distances of both sides, those of x U-centred, and the root of both variances."""

    a: Tensor
    b: Tensor
    centred: Tensor
    scale: Tensor


def dcor_test(
    x: Tensor,
    y: Tensor,
    cells: Tensor,
    units: Tensor | None,
    resampling: Resampling,
    statistic: str = "dcor_sqr",
) -> Estimate:
    """The bias-corrected dcor² within each cell, averaged over the cells, with its interval and p-value.

    One cell is plain dcor²; cells that are label groups give the within-group dcor². The null is that `x` and
    `y` are independent within every cell. Holds a few n × n float32 matrices of the largest cell: draw a
    sample of rows first where n is large.

    Args:
        x: `(n, d)` outputs.
        y: `(n, q)` encoded confound.
        cells: `(n,)` codes; cells of fewer than 4 rows have no value and are left out.
        units: `(n,)` person of each row, or None.
        resampling: how many permutations and bootstrap samples.
        statistic: name of the result.
    """
    drawn = dcor_draws(x, y, cells, units, resampling)
    return drawn.estimate(statistic)


@dataclass(frozen=True)
class Draws:
    """A statistic, its values over permuted tables `(permutations,)` and over bootstrap samples `(bootstraps,)`."""

    value: float
    null: Tensor
    replicates: Tensor
    n: int

    def estimate(self, statistic: str) -> Estimate:
        """The value with its interval and p-value."""
        if not self.n:
            return Estimate(statistic, float("nan"), 0)
        return estimate(statistic, self.value, self.n, self.null, self.replicates, most=1)


def dcor_draws(x: Tensor, y: Tensor, cells: Tensor, units: Tensor | None, resampling: Resampling) -> Draws:
    """What `dcor_test` is made of; the same seed draws the same permutations for every x and y."""
    x, y = samples(x, y, at_least=SMALLEST_GROUP)
    generator = resampling.generator()
    values, nulls, replicates, used = [], [], [], 0
    for code in torch.unique(cells):
        rows = (cells == code).nonzero()[:, 0]
        if len(rows) < SMALLEST_GROUP:
            continue
        part = _cell(x[rows], y[rows])
        unit, one = None if units is None else units[rows], torch.zeros(len(rows))
        order = permuted_rows(one, unit, resampling.permutations, generator)
        weights = bootstrap_weights(one, unit, resampling.bootstraps, generator)
        values.append(u_distance_correlation_sqr(x[rows], y[rows]))
        nulls.append(_permuted(part, y[rows], order))
        replicates.append(_resampled(part, weights.float()))
        used += len(rows)
    if not values:
        return Draws(float("nan"), torch.zeros(0), torch.zeros(0), 0)
    return Draws(float(torch.stack(values).mean()), torch.stack(nulls).mean(0), torch.stack(replicates).mean(0), used)


def _cell(x: Tensor, y: Tensor) -> _Cell:
    a, b = _distances(x), _distances(y)
    x_centred, y_centred = _u_centred(a), _u_centred(b)
    scale = (x_centred.square().sum() * y_centred.square().sum()).sqrt()
    # float32 is exact enough for null values and replicates, and twice as fast.
    return _Cell(a.float(), b.float(), x_centred.float(), scale)


def _distances(x: Tensor) -> Tensor:
    x = x.double() - x.double().mean(0)
    return distances(x, x)


def _u_centred(a: Tensor) -> Tensor:
    n = len(a)
    rows = a.sum(1)
    centred = a - rows[:, None] / (n - 2) - rows / (n - 2) + rows.sum() / ((n - 1) * (n - 2))
    return centred.fill_diagonal_(0)


def _permuted(cell: _Cell, y: Tensor, order: Tensor) -> Tensor:
    """dcor² for every permutation of the rows of y; the distance variances do not change."""
    if cell.scale <= 0:
        return torch.zeros(len(order))
    levels, codes = torch.unique(y, dim=0, return_inverse=True)
    if len(levels) > _FEW_LEVELS:
        held = max(1, _HELD // (4 * len(y) ** 2))
        moved = [
            _moved_distances(cell, y, rows).flatten(1) @ cell.centred.flatten() for rows in torch.split(order, held)
        ]
        return torch.cat(moved) / cell.scale
    between = _level_distances(levels)
    member = torch.nn.functional.one_hot(codes, len(levels)).float()
    held = max(1, _HELD // (len(y) * len(levels)))
    products = []
    for rows in torch.split(order, held):
        drawn = member[rows].transpose(0, 1)
        reached = (cell.centred @ drawn.flatten(1)).view_as(drawn)
        products.append(torch.einsum("npk,npl,kl->p", drawn, reached, between))
    return torch.cat(products) / cell.scale


def _moved_distances(cell: _Cell, y: Tensor, orders: Tensor) -> Tensor:
    """`(orders, n, n)` distances of the permuted rows; those of one column are sooner computed than fetched."""
    if y.shape[1] == 1:
        values = (y[:, 0] - y.mean()).float()[orders]
        return (values[:, :, None] - values[:, None, :]).abs_()
    return torch.stack([cell.b.index_select(0, rows).index_select(1, rows) for rows in orders])


def _level_distances(levels: Tensor) -> Tensor:
    return _distances(levels).float()


def _resampled(cell: _Cell, weights: Tensor) -> Tensor:
    """dcor² for every bootstrap sample, in which row i counts `weights[k, i]` times."""
    w = weights.T
    n = w.sum(0).double()
    a_rows, b_rows = cell.a @ w, cell.b @ w

    def covariance(products: Tensor, first: Tensor, second: Tensor) -> Tensor:
        total = (w * (products @ w)).sum(0, dtype=torch.float64)
        rows = (w * first * second).sum(0, dtype=torch.float64)
        sums = (w * first).sum(0, dtype=torch.float64) * (w * second).sum(0, dtype=torch.float64)
        return total - 2 * rows / (n - 2) + sums / ((n - 1) * (n - 2))

    xy = covariance(cell.a * cell.b, a_rows, b_rows)
    xx, yy = covariance(cell.a.square(), a_rows, a_rows), covariance(cell.b.square(), b_rows, b_rows)
    scale = (xx * yy).clamp_min(0).sqrt()
    return torch.where(scale > 0, xy / torch.where(scale > 0, scale, 1), torch.nan)
