"""Sums over all pairs of rows, in blocks: what every distance statistic is made of.

With `a_ij = |x_i - x_j|` and `b_ij = |y_i - y_j|` the distance covariances need no more than the sum of
`a_ij b_ij` and the row sums of `a` and `b`. They are accumulated over square blocks, so the n × n matrices
are never held, and the backward pass goes over the same blocks again instead of remembering them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Block sides: on a CPU the temporaries stay in cache; a GPU wants fewer, larger launches.
_CPU_BLOCK, _GPU_BLOCK = 1024, 8192
# Up to this many columns the differences are taken one by one, which is exact; above it the matrix product is
# faster.
_DIRECT_COLUMNS = 16


@dataclass(frozen=True)
class PairSums:
    """Float64 sums over all ordered pairs of rows: `Σ ab`, `Σ a²`, `Σ b²` and the row sums of `a`, `b`."""

    ab: Tensor
    aa: Tensor
    bb: Tensor
    a_rows: Tensor
    b_rows: Tensor


def pair_sums(x: Tensor, y: Tensor, block: int | None = None) -> PairSums:
    """Sum the products of pairwise distances of `x (n, d)` and `y (n, q)` in O(n·(d+q) + block²) memory.

    Differentiable in both arguments; a pair of equal rows contributes a zero gradient.
    """
    # By the median: one far row must not push all others away from zero, where products round.
    x, y = x - x.detach().median(0).values, y - y.detach().median(0).values
    side = block or (_CPU_BLOCK if x.device.type == "cpu" else _GPU_BLOCK)
    (ab, aa, bb), a_rows, b_rows = _BlockedSums.apply(x, y, side)
    return PairSums(ab, aa, bb, a_rows, b_rows)


def distances(x: Tensor, z: Tensor) -> Tensor:
    """Euclidean distances `(len(x), len(z))` between rows that are centred near zero.

    Distances too small to be told from rounding are exactly zero, so that ties can be recognised.
    """
    if x.shape[1] == 1:
        return (x - z.T).abs_()
    if x.shape[1] <= _DIRECT_COLUMNS and x.is_cuda:
        # torch.cdist gives every pair a thread block of its own, which for a few columns is mostly idle.
        squared = (x[:, :1] - z[:, 0]).square_()
        for column in range(1, x.shape[1]):
            squared += (x[:, column, None] - z[:, column]).square_()
        return squared.sqrt_()
    if x.shape[1] <= _DIRECT_COLUMNS:
        return torch.cdist(x, z, compute_mode="donot_use_mm_for_euclid_dist")
    x_norms, z_norms = x.square().sum(1, keepdim=True), z.square().sum(1)
    squared = torch.addmm(z_norms, x, z.T, alpha=-2).add_(x_norms)
    rounding = 8 * torch.finfo(x.dtype).eps * (x_norms + z_norms)
    return squared.masked_fill_(squared <= rounding, 0).sqrt_()


def _blocks(n: int, side: int) -> Iterator[tuple[slice, slice]]:
    starts = range(0, n, side)
    return ((slice(i, i + side), slice(j, j + side)) for i in starts for j in starts if j >= i)


class _BlockedSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        ctx.side = side
        products = torch.zeros(3, dtype=torch.float64, device=x.device)
        a_rows, b_rows = torch.zeros(2, x.shape[0], dtype=torch.float64, device=x.device)
        for rows, columns in _blocks(x.shape[0], side):
            a, b = distances(x[rows], x[columns]), distances(y[rows], y[columns])
            for matrix, sums in ((a, a_rows), (b, b_rows)):
                sums[rows] += matrix.sum(1, dtype=torch.float64)
                if columns != rows:
                    sums[columns] += matrix.sum(0, dtype=torch.float64)
            # The squares have a closed form, but only sums of the same rounded distances cancel where they should.
            sums = [(a * b), a.square_(), b.square_()]
            times = 1 if columns == rows else 2
            products += times * torch.stack([item.sum(dtype=torch.float64) for item in sums])
        return products, a_rows, b_rows

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g_products: Tensor, g_a: Tensor, g_b: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, y = ctx.saved_tensors
        needs_x, needs_y = ctx.needs_input_grad[:2]
        g_ab, g_aa, g_bb = 2 * g_products.to(x.dtype)
        g_a, g_b = g_a.to(x.dtype), g_b.to(x.dtype)
        dx, dy = torch.zeros_like(x), torch.zeros_like(y)
        for rows, columns in _blocks(x.shape[0], ctx.side):
            a, b = distances(x[rows], x[columns]), distances(y[rows], y[columns])
            if needs_x:
                weight = g_ab * b + 2 * g_aa * a + g_a[rows, None] + g_a[columns]
                _add_gradient(dx, x, rows, columns, a, weight)
            if needs_y:
                weight = g_ab * a + 2 * g_bb * b + g_b[rows, None] + g_b[columns]
                _add_gradient(dy, y, rows, columns, b, weight)
        return (dx if needs_x else None), (dy if needs_y else None), None


def _add_gradient(out: Tensor, x: Tensor, rows: slice, columns: slice, a: Tensor, weight: Tensor) -> None:
    """Add `Σ_j weight_ij (x_i - x_j) / a_ij` to row i (and its mirror image to row j), ties giving zero."""
    force = torch.where(a > 0, weight / a.clamp_min(torch.finfo(a.dtype).tiny), 0)
    out[rows] += force.sum(1, keepdim=True) * x[rows] - force @ x[columns]
    if columns != rows:
        out[columns] += force.sum(0)[:, None] * x[columns] - force.T @ x[rows]
