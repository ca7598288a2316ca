"""The same sums over all pairs for single columns, in O(n log n) by sorting; many permuted columns at once."""

import torch
from torch import Tensor

from deconfound.metrics.pairs import PairSums


def sorted_pair_sums(x: Tensor, y: Tensor) -> PairSums:
    """Sum the products of pairwise distances of two columns `x (n,)` and `y (n,)`; not differentiable."""
    x, y = x.double() - x.double().mean(), y.double() - y.double().mean()
    aa, bb = (2 * len(x) * column.square().sum() for column in (x, y))
    return PairSums(sorted_products(x, y[None])[0], aa, bb, row_sums(x[None])[0], row_sums(y[None])[0])


def sorted_products(x: Tensor, ys: Tensor) -> Tensor:
    """`(p,)` sums `Σ_ij |x_i - x_j| |y_i - y_j|` of `x (n,)` with each row of `ys (p, n)`, all in float64.

    With the rows in the order of `x`, `|x_j - x_i| |y_j - y_i|` is `(x_j - x_i)(y_j - y_i)`, with the sign
    turned where `y` descends. So the sum is a closed form less twice the sum over the descending pairs.
    """
    order = x.argsort()
    u, v = x[order], ys[:, order]
    all_pairs = len(x) * (v @ u) - u.sum() * v.sum(1)
    return 2 * (all_pairs - 2 * _descending_pairs(u, v))


def row_sums(ys: Tensor) -> Tensor:
    """`(p, n)` sums `Σ_j |y_i - y_j|`: the k-th smallest value stands above k values and below the others."""
    values, order = ys.sort(1)
    below = torch.arange(ys.shape[1], dtype=ys.dtype, device=ys.device)
    prefix = values.cumsum(1)
    sums = values * (2 * below + 2 - ys.shape[1]) + prefix[:, -1:] - 2 * prefix
    return torch.empty_like(sums).scatter_(1, order, sums)


def _descending_pairs(u: Tensor, v: Tensor) -> Tensor:
    """`(p,)` sums `Σ (u_j - u_i)(v_j - v_i)` over i < j with `v_j < v_i`, for each row of `v (p, n)`.

    A pair descends when, at the first binary digit in which the ranks of `v` differ, the earlier row has
    a one. The rows are split digit by digit, keeping their order; as the ranks are 0 … n-1, the rows that
    share all higher digits lie together from position `digits << (bit + 1)` on, and running sums count the
    ones before each row.
    """
    many, n = v.shape
    position = torch.arange(n, device=v.device).expand(many, n)
    rank = torch.empty(many, n, dtype=torch.long, device=v.device).scatter_(1, v.argsort(1), position)
    total = torch.zeros(many, dtype=u.dtype, device=u.device)
    # 1, u, v, uv: the four moments in which (u_j - u_i)(v_j - v_i) is summed over i.
    moments = torch.stack([torch.ones_like(v), u.expand_as(v), v, u * v])
    for bit in reversed(range(max(n - 1, 1).bit_length())):
        one = (rank >> bit) & 1
        start = (rank >> (bit + 1)) << (bit + 1)
        running = torch.nn.functional.pad((moments * one).cumsum(2), (1, 0))
        count, su, sv, suv = running[:, :, :-1] - running.gather(2, start.expand(4, many, n))
        m, mu, mv, muv = moments
        total += ((muv * count - mu * sv - mv * su + m * suv) * (1 - one)).sum(1)
        ones_before = count.round().long()
        place = torch.where(one == 1, start + (1 << bit) + ones_before, position - ones_before)
        moments = torch.empty_like(moments).scatter_(2, place.expand(4, many, n), moments)
        rank = torch.empty_like(rank).scatter_(1, place, rank)
    return total
