"""Launches of the passes: what they read, what they write, and their tiles."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from deconfound.layers.pmdn.kernels import passes, tiles
from deconfound.layers.pmdn.kernels.kernel import MOST_REMEMBERED, Launch, may_overlap
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
    features: Tensor,
    coefficients: Tensor,
    regressors: Tensor,
    confounds: Tensor,
    gram: Tensor | None,
    numbers: Tensor,
    flag: Tensor | None,
    skipped: Tensor | None,
    whole: bool = True,
    tile: Tile | None = None,
    early: bool = False,
) -> Tensor:
    """Move `coefficients` `(q, d)` in place and return `f − b c β`, or `− b c β` in float32; see the kernel.

    `early` promises that the kernel before this one began when features and regressors were complete.
    """
    n, d = features.shape
    q = coefficients.shape[0]
    if q > tiles.MOST_IN_ONE_KERNEL:
        return _move_in_two(features, coefficients, regressors, confounds, gram, numbers, flag, skipped, whole)
    out = features.new_empty((n, d), dtype=features.dtype if whole else torch.float32)
    call = _move(
        n, d, features.stride(0), features.element_size(), q, confounds.shape[1], regressors.stride(),
        confounds.stride(), gram is not None, whole, tile, early and may_overlap(features.device),
    )  # fmt: skip
    call(features, out, coefficients, regressors, confounds, numbers if gram is None else gram, numbers, flag, skipped)
    return out


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
    gram: bool,
    whole: bool,
    tile: Tile | None,
    early: bool,
) -> Launch:
    tile = tile or tiles.whole_pass(n, d, q, itemsize)
    constants = {
        **strides("R", regressors), **strides("C", confounds), "Q": q, "QC": directions, "QP": power_of_two(q),
        "GRAM": gram, "WHOLE": whole, "HOLD": tile.hold, "EARLY": early, "EVEN": n % tile.rows == 0,
        **_tiling(tile, n, d, x_row, itemsize, q),
    }  # fmt: skip
    grid = (blocks(d, tile.features),)
    return Launch(passes.move_and_subtract, grid, (n, d, x_row), constants, tile.warps, tile.registers, early)


def _move_in_two(
    features: Tensor,
    coefficients: Tensor,
    regressors: Tensor,
    confounds: Tensor,
    gram: Tensor | None,
    numbers: Tensor,
    flag: Tensor | None,
    skipped: Tensor | None,
    whole: bool,
) -> Tensor:
    """The same by two kernels, which both read the features, for more regressors than one program can hold."""
    q = len(coefficients)
    towards = cross(features, regressors).mul_(numbers[q])
    # The same kernel, so that no setting of torch lowers the precision of a product.
    towards -= coefficients if gram is None else cross(coefficients, gram)
    if gram is not None:  # the last coefficient is the intercept's, which the others come after
        towards[:-1] -= gram[:-1, -1:] * (towards[-1:] * numbers[q + 2])
    new = torch.addcmul(coefficients, numbers[:q, None], towards)
    finite = new.isfinite().all(0)
    coefficients.copy_(torch.where(finite, new, coefficients))
    if flag is not None and skipped is not None:
        bad = ~finite.all()
        skipped += bad & (flag == 0)
        flag.logical_or_(bad)
    scaled = coefficients[: confounds.shape[1]] * numbers[q + 1]
    return subtract(features if whole else features.new_zeros(features.shape, dtype=torch.float32), confounds, scaled)


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
