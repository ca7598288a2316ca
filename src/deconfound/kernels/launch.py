"""Calls of the kernels: what they read, what they write, and how the work is cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deconfound.kernels import gains, passes, responses, tiles
from deconfound.kernels.tiles import Tile, power_of_two

# Blocks of the small kernels, which work on some 1,000 to 2,000 features.
ROWS, WIDTH, TREND = 8, 256, 4096
VOTES: dict[str, int] = {"BA": 4, "BB": 16, "BM": 32}


def cross(features: Tensor, regressors: Tensor, tile: Tile | None = None) -> Tensor:
    """`Rᵀf`, `(q, d)`, in float32."""
    features = _rows(features)
    n, d = features.shape
    q = regressors.shape[1]
    out = features.new_empty((q, d), dtype=torch.float32)
    tile = tile or tiles.products(n, d)
    passes.sum_products[(_blocks(d, tile.features),)](
        features, out, regressors, n, d, features.stride(0), *regressors.stride(),
        Q=q, QP=power_of_two(q), **_block(tile, features), **_limits(n, q, features, tile),
        num_warps=tile.warps,
    )  # fmt: skip
    return out


def subtract(features: Tensor, removal: Tensor, coefficients: Tensor, tile: Tile | None = None) -> Tensor:
    """`f − c β`, `(n, d)`, in the type of the features."""
    features, coefficients = _rows(features), _rows(coefficients)
    n, d = features.shape
    out = features.new_empty((n, d))
    tile = tile or tiles.subtraction(n, d)
    passes.subtract_only[(_blocks(n, tile.rows), _blocks(d, tile.features))](
        features, out, removal, coefficients, n, d, features.stride(0), *removal.stride(), coefficients.stride(0),
        Q=removal.shape[1], **_block(tile, features), **_limits(n, 0, features, tile), num_warps=tile.warps,
    )  # fmt: skip
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
    if q > tiles.MOST_REGRESSORS or n > tiles.MOST_SAMPLES:
        return _move_in_two(features, coefficients, regressors, removal, gram, numbers, flag, skipped, keep)
    out = features.new_empty((n, d), dtype=features.dtype if keep else torch.float32)
    tile = tile or tiles.whole_pass(n, d, features.element_size())
    passes.move_and_subtract[(_blocks(d, tile.features),)](
        features, out, coefficients, regressors, removal, numbers if gram is None else gram, numbers,
        flag, skipped, n, d, features.stride(0), *regressors.stride(), *removal.stride(),
        Q=q, QC=removal.shape[1], QP=power_of_two(q), BLOCKS=_blocks(n, tile.rows), **_block(tile, features),
        GRAM=gram is not None, KEEP=keep, **_limits(n, q, features, tile), num_warps=tile.warps,
    )  # fmt: skip
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
    """The same with features read twice, for more than one program can hold."""
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


def decide_step(
    features: Tensor,
    regressors: Tensor,
    weights: Tensor | None,
    gram: Tensor,
    count: Tensor,
    prior: Tensor,
    coefficients: Tensor,
    state: Sequence[Tensor],
    skipped: Tensor,
    groups: Sequence[int],
    stride: int,
    step: float,
    constants: Sequence[float],
    channels: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers and the flag for `move`, and the share of this batch in the averages; commits the gain's state.

    Args:
        features: `(n, d)`.
        regressors: R, `(n, q)`.
        weights: `(n,)` or None.
        gram: `RᵀR`, weighted.
        count: Rows that take part.
        prior: How many samples the start counts for, one per group.
        coefficients: β, `(q, d)`, contiguous, in the usual order of features.
        state: agreement, samples, step and trend of the gain.
        skipped: The layer's counter.
        groups: How many coefficients share a gain, three sizes.
        stride: Every how many features one is measured.
        step: 0 for the adaptive gain, −1 for the plain average, else a fixed step.
        constants: WINDOW, BATCHES and LONGEST of the gain.
        channels: Of features whose channels are last in memory.
    """
    n, d = features.shape
    q, m = coefficients.shape[0], state[3].shape[1]
    blocks, parts = _blocks(m, VOTES["BM"]), _blocks(m, WIDTH)
    errors, lengths, votes, sums, numbers = _scratch(
        features, n * m, parts * n, q * m, 2 * int(gains.GROUPS.value) * blocks, q + 2
    )
    rate = torch.empty(1, dtype=torch.float32, device=features.device)  # its own memory: backward may keep it for long
    flag = torch.empty((), dtype=torch.int32, device=features.device)
    common: dict[str, Any] = {"Q": q, "QP": power_of_two(q), "FIRST": groups[0], "SECOND": groups[0] + groups[1]}
    gains.measure_errors[(_blocks(n, ROWS), parts)](
        features, regressors, coefficients, errors, lengths, n, d, m, stride, features.stride(0),
        *regressors.stride(), Q=q, BN=ROWS, BM=WIDTH, CHANNELS=channels, POSITIONS=d // max(channels, 1),
    )  # fmt: skip
    gains.add_votes[(blocks,)](
        errors, regressors, regressors if weights is None else weights, lengths, state[3], votes, sums, n, m,
        *regressors.stride(), PARTS=parts, WEIGHTED=weights is not None, **VOTES, **common,
    )  # fmt: skip
    gains.decide_step[(1,)](
        sums, blocks, votes, gram, count, prior, *state, numbers, rate, flag, skipped, float(step), m,
        BLOCKS=power_of_two(blocks), BT=TREND, MODE=0 if step == 0 else 1 if step < 0 else 2,
        WINDOW=constants[0], BATCHES=constants[1], LONGEST=constants[2], **common,
    )  # fmt: skip
    return numbers, flag, rate


def decide_response(
    gradient: Tensor,
    removal: Tensor,
    mean: Tensor,
    scale: Tensor,
    spread: Tensor,
    state: Sequence[Tensor],
    rate: Tensor | None,
    positions: int,
    stride: int,
    constants: Sequence[float],
    channels: int = 0,
) -> Tensor:
    """The numbers for `move` in backward; commits the state.

    Args:
        gradient: `(n, d)`, summed over positions.
        removal: c, `(n, q_C)`.
        mean: S, `(q_C, d)`, contiguous, in the usual order of features.
        scale: Logarithm of the gradients' size.
        spread: Of that logarithm.
        state: agreement, samples, step and trend of the gain.
        rate: A fixed share of this batch in S, or None.
        positions: How many the gradient was summed over.
        stride: Every how many features one is measured.
        constants: WINDOW, BATCHES and LONGEST of the gain, JUMP, SPREADS and LARGEST_DEVIATION of the scale.
        channels: Of features whose channels are last in memory.
    """
    n, d = gradient.shape
    q, m = mean.shape[0], state[3].shape[1]
    blocks, parts = _blocks(m, VOTES["BM"]), _blocks(m, WIDTH)
    gradients, squares, products, sizes, votes, sums, numbers = _scratch(
        gradient, n * m, parts * n, parts * n, parts, q * m, 2 * int(gains.GROUPS.value) * blocks, q + 2
    )
    jumps: dict[str, Any] = {"LOG_JUMP": math.log(constants[3]), "SPREADS": constants[4], "LARGEST": constants[5]}
    responses.measure_gradients[(_blocks(n, ROWS), parts)](
        gradient, removal, mean, gradients, squares, products, sizes, n, d, m, stride, gradient.stride(0),
        *removal.stride(), Q=q, BN=ROWS, BM=WIDTH, CHANNELS=channels, POSITIONS=d // max(channels, 1),
    )  # fmt: skip
    responses.add_responses[(blocks,)](
        gradients, removal, mean, squares, products, sizes, scale, spread, state[1], state[3], votes, sums,
        n, d, m, stride, *removal.stride(), Q=q, QP=power_of_two(q), PARTS=parts, **VOTES, **jumps,
    )  # fmt: skip
    responses.decide_response[(1,)](
        sums, blocks, votes, squares, *state, scale, spread, numbers, numbers if rate is None else rate,
        n, m, positions, float(constants[0]), Q=q, QP=power_of_two(q), PARTS=parts,
        BLOCKS=power_of_two(blocks), BT=TREND,
        FIXED=rate is not None, WINDOW=constants[0], BATCHES=constants[1], LONGEST=constants[2], **jumps,
    )  # fmt: skip
    return numbers


def _rows(matrix: Tensor) -> Tensor:
    return matrix if matrix.stride(1) == 1 or matrix.shape[1] == 1 else matrix.contiguous()


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _block(tile: Tile, features: Tensor) -> dict[str, int]:
    beside = tile.side_by_side(features.element_size())
    return {"BA": tile.rows // beside, "BB": beside, "BD": tile.features}


def _limits(n: int, q: int, features: Tensor, tile: Tile) -> dict[str, bool]:
    d = features.shape[1]
    wide = max(n * features.stride(0), max(n, q) * d) >= 2**31
    return {"WIDE": wide, "EDGE": d % tile.features != 0}


def _scratch(like: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    """Room for some floats each, from one allocation, each part on a boundary of 64 bytes."""
    padded = [-(-size // 16) * 16 for size in sizes]
    parts: tuple[Tensor, ...] = torch.empty(sum(padded), dtype=torch.float32, device=like.device).split(padded)
    return parts
