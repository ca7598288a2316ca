"""Launches of the passes: what they read, what they write, and their tiles."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from deconfound.layers.pmdn.kernels import passes, tiles
from deconfound.layers.pmdn.kernels.kernel import MOST_REMEMBERED, Launch
from deconfound.layers.pmdn.kernels.tiles import Tile, power_of_two


def cross(features: Tensor, regressors: Tensor, tile: Tile | None = None) -> Tensor:
    """`Rᵀf`, `(q, d)`, in float32."""
    features = row_by_row(features)
    n, d = features.shape
    q = regressors.shape[1]
    out = features.new_empty((q, d), dtype=torch.float32)
    call = _cross(n, d, features.stride(0), features.element_size(), q, regressors.stride(), tile)
    call(features, out, regressors)
    return out


@lru_cache(MOST_REMEMBERED)
def _cross(n: int, d: int, x_row: int, itemsize: int, q: int, regressors: tuple[int, ...], tile: Tile | None) -> Launch:
    tile = tile or tiles.products(n, d)
    constants = {**strides("R", regressors), "Q": q, "QP": power_of_two(q), **_tiling(tile, n, d, x_row, itemsize, q)}
    return Launch(passes.sum_products, (blocks(d, tile.features),), (n, d, x_row), constants, tile.warps)


def subtract(features: Tensor, confounds: Tensor, coefficients: Tensor, tile: Tile | None = None) -> Tensor:
    """`f − c β`, `(n, d)`, in the type of the features."""
    features, coefficients = row_by_row(features), row_by_row(coefficients)
    n, d = features.shape
    out = features.new_empty((n, d))
    rows_apart = (features.stride(0), coefficients.stride(0))
    call = _subtract(n, d, rows_apart, features.element_size(), confounds.shape[1], confounds.stride(), tile)
    call(features, out, confounds, coefficients)
    return out


@lru_cache(MOST_REMEMBERED)
def _subtract(
    n: int, d: int, rows_apart: tuple[int, int], itemsize: int, q: int, confounds: tuple[int, ...], tile: Tile | None
) -> Launch:
    tile = tile or tiles.subtraction(n, d)
    row_blocks = blocks(n, tile.rows)
    constants = {**strides("C", confounds), "Q": q, **_tiling(tile, n, d, rows_apart[0], itemsize, 0)}
    grid = (row_blocks * blocks(d, tile.features),)
    return Launch(passes.subtract_only, grid, (n, d, *rows_apart, row_blocks), constants, tile.warps)


def move(
    x: Tensor,
    coefficients: Tensor,
    regressors: Tensor,
    confounds: Tensor,
    rates: Tensor,
    by: Descent | Averaging,
    whole: bool = True,
    tile: Tile | None = None,
) -> Tensor:
    """Move `coefficients` `(q, d)` in place and return `x − c β`, or `− c β` in float32; see `move_and_subtract`.

    Args:
        x: Features or gradients, `(n, d)`.
        coefficients: β, or S in backward.
        regressors: What x is projected on.
        confounds: What coefficients are multiplied by.
        rates: How far they move; a scalar in backward.
        by: How.
        whole: Whether x is part of the result.
        tile: One program's share; None for the usual one.
    """
    n, d = x.shape
    out = x.new_empty((n, d), dtype=x.dtype if whole else torch.float32)
    forward = isinstance(by, Descent)
    call = _move(
        n, d, x.stride(0), x.element_size(), coefficients.shape[0], confounds.shape[1], regressors.stride(),
        confounds.stride(), forward, *((1.0, 1.0) if forward else by[1:]), whole, tile,
    )  # fmt: skip
    tensors = (*by, None) if isinstance(by, Descent) else (None, None, None, by.square)
    call(x, out, coefficients, regressors, confounds, rates, *tensors)
    return out


class Descent(NamedTuple):
    """A step on β: `RᵀWR`, whether a program has met a feature that is not finite, and the layer's counter."""

    gram: Tensor
    flag: Tensor
    skipped: Tensor


class Averaging(NamedTuple):
    """A step of S: gradients' running mean squares, `(1, d)`, what S is multiplied by, and when squares jump."""

    square: Tensor
    scale: float
    most: float


@lru_cache(MOST_REMEMBERED)
def _move(
    n: int,
    d: int,
    x_row: int,
    itemsize: int,
    q: int,
    directions: int,
    regressors: tuple[int, ...],
    confounds: tuple[int, ...],
    forward: bool,
    scale: float,
    most: float,
    whole: bool,
    tile: Tile | None,
) -> Launch:
    tile = tile or tiles.whole_pass(n, d, q, itemsize)
    constants = {
        **strides("R", regressors), **strides("C", confounds), "Q": q, "QC": directions, "QP": power_of_two(q),
        "FORWARD": forward, "WHOLE": whole, "HOLD": tile.hold, "EVEN": n % tile.rows == 0,
        **_tiling(tile, n, d, x_row, itemsize, q),
    }  # fmt: skip
    grid = (blocks(d, tile.features),)
    return Launch(passes.move_and_subtract, grid, (n, d, x_row, scale, most), constants, tile.warps, tile.registers)


def strides(name: str, of: tuple[int, ...]) -> dict[str, int]:
    """Known when a kernel is compiled, so that no address is computed twice."""
    row, col = of
    return {f"{name}_ROW": row, f"{name}_COL": col}


def blocks(size: int, block: int) -> int:
    """How many blocks hold so many."""
    return -(-size // block)


def row_by_row(matrix: Tensor) -> Tensor:
    """The matrix with the numbers of a row side by side in memory, as the kernels read it; rows may be apart."""
    return matrix if matrix.stride(1) == 1 or matrix.shape[1] == 1 else matrix.contiguous()


def _tiling(tile: Tile, n: int, d: int, x_row: int, itemsize: int, q: int) -> dict[str, int | bool]:
    """The tile as the kernels know it, and what they need not look at."""
    beside = tile.side_by_side(itemsize)
    wide = max(n * x_row, max(n, q) * d) >= 2**31
    shape: dict[str, int | bool] = {"BA": tile.rows // beside, "BB": beside, "BD": tile.features}
    return {**shape, "WIDE": wide, "EDGE": d % tile.features != 0}
