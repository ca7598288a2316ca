"""The same sums over all pairs for two single columns, in O(n log n) by sorting."""

import torch
from torch import Tensor

from deconfound.metrics.pairs import PairSums


def sorted_pair_sums(x: Tensor, y: Tensor) -> PairSums:
    """Sum the products of pairwise distances of two columns `x (n,)` and `y (n,)`; not differentiable.

    With the rows in the order of `x`, `|x_j - x_i| |y_j - y_i|` is `(x_j - x_i)(y_j - y_i)`, with the sign
    turned where `y` descends. So the sum is a closed form less twice the sum over the descending pairs.
    """
    x, y = x.double() - x.double().mean(), y.double() - y.double().mean()
    order = x.argsort()
    u, v = x[order], y[order]
    all_pairs = len(x) * (u * v).sum() - u.sum() * v.sum()
    ab = 2 * (all_pairs - 2 * _descending_pairs(u, v))
    aa, bb = (2 * len(x) * column.square().sum() for column in (x, y))
    return PairSums(ab, aa, bb, _row_sums(x), _row_sums(y))


def _row_sums(x: Tensor) -> Tensor:
    """`Σ_j |x_i - x_j|` for every i: the k-th smallest value stands above k values and below the others."""
    values, order = x.sort()
    below = torch.arange(len(x), dtype=x.dtype, device=x.device)
    prefix = values.cumsum(0)
    sums = values * (2 * below + 2 - len(x)) + prefix[-1] - 2 * prefix
    return torch.empty_like(sums).index_copy_(0, order, sums)


def _descending_pairs(u: Tensor, v: Tensor) -> Tensor:
    """`Σ (u_j - u_i)(v_j - v_i)` over i < j with `v_j < v_i`.

    A pair descends when, at the first binary digit in which the ranks of `v` differ, the earlier row has
    a one. The rows are split digit by digit, keeping their order; as the ranks are 0 … n-1, the rows that
    share all higher digits lie together from position `digits << (bit + 1)` on, and running sums count the
    ones before each row.
    """
    n = len(u)
    rank = torch.empty(n, dtype=torch.long, device=v.device)
    rank[v.argsort()] = torch.arange(n, device=v.device)
    position = torch.arange(n, device=v.device)
    total = torch.zeros((), dtype=u.dtype, device=u.device)
    # Columns: 1, u, v, uv: the four moments in which (u_j - u_i)(v_j - v_i) is summed over i.
    moments = torch.stack([torch.ones_like(u), u, v, u * v])
    for bit in reversed(range(max(n - 1, 1).bit_length())):
        one = (rank >> bit) & 1
        start = (rank >> (bit + 1)) << (bit + 1)
        running = torch.nn.functional.pad((moments * one).cumsum(1), (1, 0))
        count, su, sv, suv = running[:, :-1] - running[:, start]
        m, mu, mv, muv = moments
        total += ((muv * count - mu * sv - mv * su + m * suv) * (1 - one)).sum()
        ones_before = count.round().long()
        place = torch.where(one == 1, start + (1 << bit) + ones_before, position - ones_before)
        moments = torch.empty_like(moments).index_copy_(1, place, moments)
        rank = torch.empty_like(rank).index_copy_(0, place, rank)
    return total
