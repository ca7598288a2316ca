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

MEASURE_ERRORS, DECIDE_STEP = Kernel(gains.measure_errors), Kernel(gains.vote_and_decide)
MEASURE_GRADIENTS, DECIDE_RESPONSE = Kernel(responses.measure_gradients), Kernel(responses.vote_and_decide)
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
    runs: Sequence[int],
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
        runs: How many neighbouring features are measured, and how far such runs are apart.
        step: 0 for the adaptive gain, −1 for the plain average, else a fixed step.
        constants: WINDOW, BATCHES and LONGEST of the gain.
        channels: Of features whose channels are last in memory.
    """
    n, d = features.shape
    q, m = coefficients.shape[0], state[3].shape[1]
    programs, parts = blocks(m, VOTES["BM"]), blocks(m, WIDTH)
    errors, lengths, units, votes, sums, numbers, counter = _scratch(
        features, n * m, parts * n, 3 * n, q * m, 2 * int(gains.GROUPS.value) * programs, q + 2, 1
    )
    rate = torch.empty(1, dtype=torch.float32, device=features.device)  # its own memory: backward may keep it for long
    flag = torch.empty((), dtype=torch.int32, device=features.device)
    sizes = {"Q": q, "FIRST": groups[0], "SECOND": groups[0] + groups[1]}
    shape = {**sizes, "QP": power_of_two(q)}
    metadata = strides("R", regressors)
    MEASURE_ERRORS(
        (blocks(n, ROWS), parts),
        (
            features, regressors, regressors if weights is None else weights, coefficients, errors, lengths, units,
            counter,
        ),
        (n, d, m, runs[1], features.stride(0)),
        {
            **metadata, **sizes, "BN": ROWS, "BM": WIDTH, "RUN": runs[0], "WEIGHTED": weights is not None,
            "CHANNELS": channels, "POSITIONS": d // max(channels, 1),
        },
    )  # fmt: skip
    DECIDE_STEP(
        (programs,),
        (
            errors, regressors, units, lengths, votes, sums, counter, gram, count, prior, *state, numbers, rate, flag,
            skipped,
        ),
        (n, m, programs, float(step)),
        {
            **metadata, **shape, "PARTS": parts, **VOTES, "BLOCKS": power_of_two(programs), "BT": TREND,
            "MODE": 0 if step == 0 else 1 if step < 0 else 2,
            "WINDOW": constants[0], "BATCHES": constants[1], "LONGEST": constants[2],
        },
        WARPS,
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
    runs: Sequence[int],
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
        runs: How many neighbouring features are measured, and how far such runs are apart.
        constants: WINDOW, BATCHES and LONGEST of the gain, JUMP, SPREADS and LARGEST_DEVIATION of the scale.
        channels: Of features whose channels are last in memory.
    """
    n, d = gradient.shape
    q, m = mean.shape[0], state[3].shape[1]
    programs, parts = blocks(m, VOTES["BM"]), blocks(m, WIDTH)
    gradients, squares, products, sizes, votes, sums, numbers, counter = _scratch(
        gradient, n * m, parts * n, parts * n, parts, q * m, 2 * int(gains.GROUPS.value) * programs, q + 2, 1
    )
    jumps = {"LOG_JUMP": math.log(constants[3]), "SPREADS": constants[4], "LARGEST": constants[5]}
    shape, metadata = {"Q": q, "QP": power_of_two(q)}, strides("C", removal)
    MEASURE_GRADIENTS(
        (blocks(n, ROWS), parts),
        (gradient, removal, mean, gradients, squares, products, sizes, counter),
        (n, d, m, runs[1], gradient.stride(0)),
        {
            **metadata, "Q": q, "BN": ROWS, "BM": WIDTH, "RUN": runs[0],
            "CHANNELS": channels, "POSITIONS": d // max(channels, 1),
        },
    )  # fmt: skip
    DECIDE_RESPONSE(
        (programs,),
        (
            gradients, removal, mean, squares, products, sizes, votes, sums, counter, *state, scale, spread, numbers,
            numbers if rate is None else rate,
        ),
        (n, d, m, runs[1], programs, positions, float(constants[0])),
        {
            **metadata, **shape, "PARTS": parts, **VOTES, "RUN": runs[0], "BLOCKS": power_of_two(programs), "BT": TREND,
            "FIXED": rate is not None, "WINDOW": constants[0], "BATCHES": constants[1], "LONGEST": constants[2],
            **jumps,
        },
        WARPS,
    )  # fmt: skip
    return numbers


def _scratch(like: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    """Room for some floats each, from one allocation, each part on a boundary of 64 bytes."""
    padded = [-(-size // 16) * 16 for size in sizes]
    parts: tuple[Tensor, ...] = torch.empty(sum(padded), dtype=torch.float32, device=like.device).split(padded)
    return parts
