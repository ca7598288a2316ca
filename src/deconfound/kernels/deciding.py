"""Calls of the small kernels that decide how far a pass moves its coefficients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from deconfound.kernels import gains, responses
from deconfound.kernels.kernel import Kernel
from deconfound.kernels.launch import blocks, strides
from deconfound.kernels.tiles import power_of_two

MEASURE_ERRORS, ADD_VOTES, DECIDE_STEP = map(Kernel, (gains.measure_errors, gains.add_votes, gains.decide_step))
MEASURE_GRADIENTS, ADD_RESPONSES, DECIDE_RESPONSE = map(
    Kernel, (responses.measure_gradients, responses.add_responses, responses.decide_response)
)
# How their work is cut: at most 2,047 features are measured.
ROWS, WIDTH, TREND = 2, 512, 4096
VOTES, WARPS = {"BA": 2, "BB": 64, "BM": 16}, 8


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
    programs, parts = blocks(m, VOTES["BM"]), blocks(m, WIDTH)
    errors, lengths, units, votes, sums, numbers = _scratch(
        features, n * m, parts * n, 3 * n, q * m, 2 * int(gains.GROUPS.value) * programs, q + 2
    )
    rate = torch.empty(1, dtype=torch.float32, device=features.device)  # its own memory: backward may keep it for long
    flag = torch.empty((), dtype=torch.int32, device=features.device)
    sizes = {"Q": q, "FIRST": groups[0], "SECOND": groups[0] + groups[1]}
    shape = {**sizes, "QP": power_of_two(q)}
    metadata = strides("R", regressors)
    MEASURE_ERRORS(
        (blocks(n, ROWS), parts),
        (features, regressors, regressors if weights is None else weights, coefficients, errors, lengths, units),
        (n, d, m, stride, features.stride(0)),
        {
            **metadata, **sizes, "BN": ROWS, "BM": WIDTH, "WEIGHTED": weights is not None,
            "CHANNELS": channels, "POSITIONS": d // max(channels, 1),
        },
    )  # fmt: skip
    ADD_VOTES(
        (programs,),
        (errors, regressors, units, lengths, state[3], votes, sums),
        (n, m),
        {**metadata, **shape, "PARTS": parts, **VOTES},
        WARPS,
    )
    DECIDE_STEP(
        (1,),
        (sums, votes, gram, count, prior, *state, numbers, rate, flag, skipped),
        (programs, float(step), m),
        {
            **shape, "BLOCKS": power_of_two(programs), "BT": TREND, "MODE": 0 if step == 0 else 1 if step < 0 else 2,
            "WINDOW": constants[0], "BATCHES": constants[1], "LONGEST": constants[2],
        },
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
    programs, parts = blocks(m, VOTES["BM"]), blocks(m, WIDTH)
    gradients, squares, products, sizes, votes, sums, numbers = _scratch(
        gradient, n * m, parts * n, parts * n, parts, q * m, 2 * int(gains.GROUPS.value) * programs, q + 2
    )
    jumps = {"LOG_JUMP": math.log(constants[3]), "SPREADS": constants[4], "LARGEST": constants[5]}
    shape, metadata = {"Q": q, "QP": power_of_two(q)}, strides("C", removal)
    MEASURE_GRADIENTS(
        (blocks(n, ROWS), parts),
        (gradient, removal, mean, gradients, squares, products, sizes),
        (n, d, m, stride, gradient.stride(0)),
        {
            **metadata, "Q": q, "BN": ROWS, "BM": WIDTH,
            "CHANNELS": channels, "POSITIONS": d // max(channels, 1),
        },
    )  # fmt: skip
    ADD_RESPONSES(
        (programs,),
        (gradients, removal, mean, squares, products, sizes, scale, spread, state[1], state[3], votes, sums),
        (n, d, m, stride),
        {**metadata, **shape, "PARTS": parts, **VOTES, **jumps},
        WARPS,
    )
    DECIDE_RESPONSE(
        (1,),
        (sums, votes, squares, *state, scale, spread, numbers, numbers if rate is None else rate),
        (programs, n, m, positions, float(constants[0])),
        {
            **shape, "PARTS": parts, "BLOCKS": power_of_two(programs), "BT": TREND, "FIXED": rate is not None,
            "WINDOW": constants[0], "BATCHES": constants[1], "LONGEST": constants[2], **jumps,
        },
    )  # fmt: skip
    return numbers


def _scratch(like: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    """Room for some floats each, from one allocation, each part on a boundary of 64 bytes."""
    padded = [-(-size // 16) * 16 for size in sizes]
    parts: tuple[Tensor, ...] = torch.empty(sum(padded), dtype=torch.float32, device=like.device).split(padded)
    return parts
