"""Calls of the passes: what they read, what they write, and how the work is cut."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from deconfound.layers.pmdn.kernels import passes, tiles
from deconfound.layers.pmdn.kernels.kernel import MOST_REMEMBERED, Call, may_overlap
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
def _cross(n: int, d: int, x_row: int, itemsize: int, q: int, regressors: tuple[int, ...], tile: Tile | None) -> Call:
    tile = tile or tiles.products(n, d)
    constants = {**strides("R", regressors), "Q": q, "QP": power_of_two(q), **_cut(tile, n, d, x_row, itemsize, q)}
    return Call(passes.sum_products, (blocks(d, tile.features),), (n, d, x_row), constants, tile.warps)


def subtract(features: Tensor, removal: Tensor, coefficients: Tensor, tile: Tile | None = None) -> Tensor:
    """`f − c β`, `(n, d)`, in the type of the features."""
    features, coefficients = row_by_row(features), row_by_row(coefficients)
    n, d = features.shape
    out = features.new_empty((n, d))
    rows_apart = (features.stride(0), coefficients.stride(0))
    call = _subtract(n, d, rows_apart, features.element_size(), removal.shape[1], removal.stride(), tile)
    call(features, out, removal, coefficients)
    return out


@lru_cache(MOST_REMEMBERED)
def _subtract(
    n: int, d: int, rows_apart: tuple[int, int], itemsize: int, q: int, removal: tuple[int, ...], tile: Tile | None
) -> Call:
    tile = tile or tiles.subtraction(n, d)
    row_blocks = blocks(n, tile.rows)
    constants = {**strides("C", removal), "Q": q, **_cut(tile, n, d, rows_apart[0], itemsize, 0)}
    grid = (row_blocks * blocks(d, tile.features),)
    return Call(passes.subtract_only, grid, (n, d, *rows_apart, row_blocks), constants, tile.warps)


def move(
    features: Tensor,
    coefficients: Tensor,
    regressors: Tensor,
    removal: Tensor,
    gram: Tensor | None,
    numbers: Tensor,
    flag: Tensor | None,
    skipped: Tensor | None,
    keep: bool = True,
    tile: Tile | None = None,
    early: bool = False,
) -> Tensor:
    """Move `coefficients` `(q, d)` in place and return `f − b c β`, or `− b c β` in float32; see the kernel.

    `early` promises that the kernel before this one began when features and regressors were complete.
    """
    n, d = features.shape
    q = coefficients.shape[0]
    if q > tiles.MOST_IN_ONE_KERNEL:
        return _move_in_two(features, coefficients, regressors, removal, gram, numbers, flag, skipped, keep)
    out = features.new_empty((n, d), dtype=features.dtype if keep else torch.float32)
    call = _move(
        n, d, features.stride(0), features.element_size(), q, removal.shape[1], regressors.stride(), removal.stride(),
        gram is not None, keep, tile, early and may_overlap(features.device),
    )  # fmt: skip
    call(features, out, coefficients, regressors, removal, numbers if gram is None else gram, numbers, flag, skipped)
    return out


@lru_cache(MOST_REMEMBERED)
def _move(
    n: int,
    d: int,
    x_row: int,
    itemsize: int,
    q: int,
    confounds: int,
    regressors: tuple[int, ...],
    removal: tuple[int, ...],
    gram: bool,
    keep: bool,
    tile: Tile | None,
    early: bool,
) -> Call:
    tile = tile or tiles.whole_pass(n, d, q, itemsize)
    constants = {
        **strides("R", regressors), **strides("C", removal), "Q": q, "QC": confounds, "QP": power_of_two(q),
        "GRAM": gram, "KEEP": keep, "HOLD": tile.hold, "EARLY": early, "EVEN": n % tile.rows == 0,
        **_cut(tile, n, d, x_row, itemsize, q),
    }  # fmt: skip
    grid = (blocks(d, tile.features),)
    return Call(passes.move_and_subtract, grid, (n, d, x_row), constants, tile.warps, tile.registers, early)


def _move_in_two(
    features: Tensor,
    coefficients: Tensor,
    regressors: Tensor,
    removal: Tensor,
    gram: Tensor | None,
    numbers: Tensor,
    flag: Tensor | None,
    skipped: Tensor | None,
    keep: bool,
) -> Tensor:
    """The same by two kernels, which both read the features, for more regressors than one program can hold."""
    q = len(coefficients)
    towards = cross(features, regressors).mul_(numbers[q])
    # The same kernel, so that no setting of torch lowers the precision of a product.
    towards -= coefficients if gram is None else cross(coefficients, gram)
    new = torch.addcmul(coefficients, numbers[:q, None], towards)
    finite = new.isfinite().all(0)
    coefficients.copy_(torch.where(finite, new, coefficients))
    if flag is not None and skipped is not None:
        bad = ~finite.all()
        skipped += bad & (flag == 0)
        flag.logical_or_(bad)
    scaled = coefficients[: removal.shape[1]] * numbers[q + 1]
    return subtract(features if keep else features.new_zeros(features.shape, dtype=torch.float32), removal, scaled)


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


def _cut(tile: Tile, n: int, d: int, x_row: int, itemsize: int, q: int) -> dict[str, int | bool]:
    """How a pass is cut, and what its kernel need not look at."""
    beside = tile.side_by_side(itemsize)
    wide = max(n * x_row, max(n, q) * d) >= 2**31
    shape: dict[str, int | bool] = {"BA": tile.rows // beside, "BB": beside, "BD": tile.features}
    return {**shape, "WIDE": wide, "EDGE": d % tile.features != 0}
