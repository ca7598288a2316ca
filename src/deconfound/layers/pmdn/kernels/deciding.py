"""Launches of the small kernels that decide how far a pass moves its coefficients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deconfound.layers.pmdn.kernels import gain_kernels, gradient_kernels
from deconfound.layers.pmdn.kernels.kernel import MOST_REMEMBERED, Launch, may_overlap
from deconfound.layers.pmdn.kernels.launch import blocks, strides
from deconfound.layers.pmdn.kernels.tiles import power_of_two

# Their tiles: at most 2,047 features are sampled.
ROWS, WIDTH, TREND = 2, 512, 4096
DIRECTIONS, WARPS = {"BA": 2, "BB": 64, "BM": 16}, 8
GROUPS = int(getattr(gain_kernels.GROUPS, "value", gain_kernels.GROUPS))


class _Launches(NamedTuple):
    """The two launches of a decision, and the sizes of what they hand on."""

    sizes: list[int]
    sample: Launch
    decide: Launch


def decide_step(
    features: Tensor,
    regressors: Tensor,
    weighted: Tensor,
    weights: Tensor | None,
    gram: Tensor,
    counts: Tensor,
    start: Tensor,
    coefficients: Tensor,
    state: Sequence[Tensor],
    skipped: Tensor,
    groups: Sequence[int],
    runs: Sequence[int],
    step: float,
    constants: Sequence[float],
    channels: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers and the flag for `move`, and the share of this batch in the averages; updates the gain's state.

    Args:
        features: `(n, d)`.
        regressors: R, `(n, q)`.
        weighted: R with each row times its weight.
        weights: `(n,)` or None.
        gram: `RᵀWR`.
        counts: `Σw` and `Σw²`.
        start: How many samples the start counts for, one per group.
        coefficients: β, `(q, d)`, contiguous, in the usual order of features.
        state: numbers, trend and scale of the gain.
        skipped: The layer's counter.
        groups: How many coefficients share a gain, three sizes.
        runs: How many neighbouring features are sampled, and how far such runs are apart.
        step: 0 for the adaptive gain, −1 for the plain average, else a fixed step.
        constants: WINDOW, BATCHES and LONGEST of the gain.
        channels: Of features whose channels are last in memory.
    """
    n, d = features.shape
    launches = _step_launches(
        n, d, features.stride(0), coefficients.shape[0], state[1].shape[1], regressors.stride(), weighted.stride(),
        weights is not None, tuple(groups), tuple(runs), float(step), tuple(constants), channels,
        may_overlap(features.device),
    )  # fmt: skip
    errors, lengths, directions, scales, sums, numbers, counter = _scratch(features, launches.sizes)
    rate = torch.empty(1, dtype=torch.float32, device=features.device)  # its own memory: backward may keep it for long
    flag = torch.empty((), dtype=torch.int32, device=features.device)
    some_weights = regressors if weights is None else weights
    launches.sample(features, regressors, some_weights, coefficients, errors, lengths, counter)
    launches.decide(
        errors, weighted, lengths, directions, scales, sums, counter, gram, counts, start, *state, numbers, rate, flag,
        skipped,
    )  # fmt: skip
    return numbers, flag, rate


@lru_cache(MOST_REMEMBERED)
def _step_launches(
    n: int,
    d: int,
    x_row: int,
    q: int,
    m: int,
    regressors: tuple[int, ...],
    weighted: tuple[int, ...],
    has_weights: bool,
    groups: tuple[int, ...],
    runs: tuple[int, ...],
    step: float,
    constants: tuple[float, ...],
    channels: int,
    early: bool,
) -> _Launches:
    programs, parts = blocks(m, DIRECTIONS["BM"]), blocks(m, WIDTH)
    groups_of = {"FIRST": groups[0], "SECOND": groups[0] + groups[1]}
    sample, decide = _known(d, q, m, runs[0], constants, channels, early)
    sample |= {**strides("R", regressors), **groups_of, "Q": q, "WEIGHTED": has_weights}
    decide |= {**strides("R", weighted), **groups_of, "MODE": 0 if step == 0 else 1 if step < 0 else 2}
    return _Launches(
        _padded(n * m, GROUPS * n, q * m, m, 3 * GROUPS * programs, q + 3, 1),
        Launch(gain_kernels.sample_errors, (blocks(n, ROWS), parts), (n, d, m, runs[1], x_row), sample),
        Launch(gain_kernels.direct_and_decide, (programs,), (n, m, programs, step), decide, WARPS, early=early),
    )


def decide_average(
    gradient: Tensor,
    confounds: Tensor,
    mean: Tensor,
    size: Tensor,
    state: Sequence[Tensor],
    rate: Tensor | None,
    positions: int,
    runs: Sequence[int],
    constants: Sequence[float],
    channels: int = 0,
) -> Tensor:
    """The numbers for `move` in backward; updates the state.

    Args:
        gradient: `(n, d)`, summed over positions.
        confounds: c, `(n, q_C)`.
        mean: S, `(q_C, d)`, contiguous, in the usual order of features.
        size: Logarithm of the gradients' size, and its spread.
        state: numbers, trend and scale of the gain.
        rate: A fixed share of this batch in S, or None.
        positions: How many the gradient was summed over.
        runs: How many neighbouring features are sampled, and how far such runs are apart.
        constants: WINDOW, BATCHES and LONGEST of the gain, JUMP, SPREADS and LARGEST_DEVIATION of the size.
        channels: Of features whose channels are last in memory.
    """
    n, d = gradient.shape
    launches = _average_launches(
        n, d, gradient.stride(0), mean.shape[0], state[1].shape[1], confounds.stride(), rate is not None, positions,
        tuple(runs), tuple(constants), channels, may_overlap(gradient.device),
    )  # fmt: skip
    gradients, squares, directions, scales, sums, numbers, counter = _scratch(gradient, launches.sizes)
    launches.sample(gradient, gradients, squares, counter)
    launches.decide(
        gradients, confounds, mean, squares, directions, scales, sums, counter, size, *state, numbers,
        numbers if rate is None else rate,
    )  # fmt: skip
    return numbers


@lru_cache(MOST_REMEMBERED)
def _average_launches(
    n: int,
    d: int,
    g_row: int,
    q: int,
    m: int,
    confounds: tuple[int, ...],
    fixed: bool,
    positions: int,
    runs: tuple[int, ...],
    constants: tuple[float, ...],
    channels: int,
    early: bool,
) -> _Launches:
    programs, parts = blocks(m, DIRECTIONS["BM"]), blocks(m, WIDTH)
    sample, decide = _known(d, q, m, runs[0], constants, channels, early)
    decide |= {
        **strides("C", confounds), "RUN": runs[0], "FIXED": fixed, "PARTS": parts,
        "LOG_JUMP": math.log(constants[3]), "SPREADS": constants[4], "LARGEST": constants[5],
    }  # fmt: skip
    numbers = (n, d, m, runs[1], programs, positions, float(constants[0]))
    return _Launches(
        _padded(n * m, parts * n, q * m, m, 3 * GROUPS * programs, q + 3, 1),
        Launch(gradient_kernels.sample_gradients, (blocks(n, ROWS), parts), (n, d, m, runs[1], g_row), sample),
        Launch(gradient_kernels.direct_and_average, (programs,), numbers, decide, WARPS, early=early),
    )


def _known(
    d: int, q: int, m: int, run: int, constants: Sequence[float], channels: int, early: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the first and the second kernel of either decision are told when they are compiled."""
    sample = {
        "BN": ROWS, "BM": WIDTH, "RUN": run, "CHANNELS": channels, "POSITIONS": d // max(channels, 1), "EARLY": early,
    }  # fmt: skip
    decide = {
        "Q": q, "QP": power_of_two(q), **DIRECTIONS, "BLOCKS": power_of_two(blocks(m, DIRECTIONS["BM"])), "BT": TREND,
        "WINDOW": constants[0], "BATCHES": constants[1], "LONGEST": constants[2], "EARLY": early,
    }  # fmt: skip
    return sample, decide


def _padded(*sizes: int) -> list[int]:
    """Floats that fill lines of 64 bytes."""
    return [-(-size // 16) * 16 for size in sizes]


def _scratch(like: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Room for so many floats each, from one allocation."""
    parts: tuple[Tensor, ...] = torch.empty(sum(sizes), dtype=torch.float32, device=like.device).split_with_sizes(sizes)
    return parts
