"""Calls of the passes: what they read, what they write, and how the work is cut."""

from __future__ import annotations

import torch
from torch import Tensor

from deconfound.kernels import passes, tiles
from deconfound.kernels.kernel import Kernel
from deconfound.kernels.tiles import Tile, power_of_two

SUM_PRODUCTS, SUBTRACT = Kernel(passes.sum_products), Kernel(passes.subtract_only)
MOVE = Kernel(passes.move_and_subtract)


def cross(features: Tensor, regressors: Tensor, tile: Tile | None = None) -> Tensor:
    """`Rᵀf`, `(q, d)`, in float32."""
    features = row_by_row(features)
    n, d = features.shape
    q = regressors.shape[1]
    out = features.new_empty((q, d), dtype=torch.float32)
    tile = tile or tiles.products(n, d)
    constants = {**strides("R", regressors), "Q": q, "QP": power_of_two(q), **_cut(tile, n, q, features)}
    tensors = (features, out, regressors)
    SUM_PRODUCTS((blocks(d, tile.features),), tensors, (n, d, features.stride(0)), constants, tile.warps)
    return out


def subtract(features: Tensor, removal: Tensor, coefficients: Tensor, tile: Tile | None = None) -> Tensor:
    """`f − c β`, `(n, d)`, in the type of the features."""
    features, coefficients = row_by_row(features), row_by_row(coefficients)
    n, d = features.shape
    out = features.new_empty((n, d))
    tile = tile or tiles.subtraction(n, d)
    row_blocks = blocks(n, tile.rows)
    numbers = (n, d, features.stride(0), coefficients.stride(0), row_blocks)
    constants = {**strides("C", removal), "Q": removal.shape[1], **_cut(tile, n, 0, features)}
    grid = (row_blocks * blocks(d, tile.features),)
    SUBTRACT(grid, (features, out, removal, coefficients), numbers, constants, tile.warps)
    return out


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
) -> Tensor:
    """Move `coefficients` `(q, d)` in place and return `f − b c β`, or `− b c β` in float32; see the kernel."""
    n, d = features.shape
    q = coefficients.shape[0]
    if q > tiles.MOST_IN_ONE_KERNEL:
        return _move_in_two(features, coefficients, regressors, removal, gram, numbers, flag, skipped, keep)
    out = features.new_empty((n, d), dtype=features.dtype if keep else torch.float32)
    tile = tile or tiles.whole_pass(n, d, q, features.element_size())
    tensors = (
        features, out, coefficients, regressors, removal, numbers if gram is None else gram, numbers, flag, skipped,
    )  # fmt: skip
    constants = {
        **strides("R", regressors), **strides("C", removal), "Q": q, "QC": removal.shape[1], "QP": power_of_two(q),
        "GRAM": gram is not None, "KEEP": keep, "HOLD": tile.hold, "EVEN": n % tile.rows == 0,
        **_cut(tile, n, q, features),
    }  # fmt: skip
    MOVE((blocks(d, tile.features),), tensors, (n, d, features.stride(0)), constants, tile.warps, tile.registers)
    return out


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


def strides(name: str, matrix: Tensor) -> dict[str, int]:
    """Known when a kernel is compiled, so that no address is computed twice."""
    row, col = matrix.stride()
    return {f"{name}_ROW": row, f"{name}_COL": col}


def blocks(size: int, block: int) -> int:
    """How many blocks hold so many."""
    return -(-size // block)


def row_by_row(matrix: Tensor) -> Tensor:
    """The matrix with the numbers of a row side by side in memory, as the kernels read it; rows may be apart."""
    return matrix if matrix.stride(1) == 1 or matrix.shape[1] == 1 else matrix.contiguous()


def _cut(tile: Tile, n: int, q: int, features: Tensor) -> dict[str, int | bool]:
    """How a pass is cut, and what its kernel need not look at."""
    d = features.shape[1]
    beside = tile.side_by_side(features.element_size())
    wide = max(n * features.stride(0), max(n, q) * d) >= 2**31
    shape: dict[str, int | bool] = {"BA": tile.rows // beside, "BB": beside, "BD": tile.features}
    return {**shape, "WIDE": wide, "EDGE": d % tile.features != 0}
