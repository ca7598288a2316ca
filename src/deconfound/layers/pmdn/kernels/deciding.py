"""Calls of the small kernels that decide how far a pass moves its coefficients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deconfound.layers.pmdn.kernels import gains, responses
from deconfound.layers.pmdn.kernels.kernel import MOST_REMEMBERED, Call, may_overlap
from deconfound.layers.pmdn.kernels.launch import blocks, strides
from deconfound.layers.pmdn.kernels.tiles import power_of_two

# How their work is cut: at most 2,047 features are measured.
ROWS, WIDTH, TREND = 2, 512, 4096
VOTES, WARPS = {"BA": 2, "BB": 64, "BM": 16}, 8


class _Plan(NamedTuple):
    """The two calls, and the sizes of what they hand on."""

    sizes: list[int]
    measure: Call
    decide: Call


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
    plan = _step_plan(
        n, d, features.stride(0), coefficients.shape[0], state[3].shape[1], regressors.stride(), weights is not None,
        tuple(groups), tuple(runs), float(step), tuple(constants), channels, may_overlap(features.device),
    )  # fmt: skip
    errors, lengths, units, votes, sums, numbers, counter = _scratch(features, plan.sizes)
    rate = torch.empty(1, dtype=torch.float32, device=features.device)  # its own memory: backward may keep it for long
    flag = torch.empty((), dtype=torch.int32, device=features.device)
    some_weights = regressors if weights is None else weights
    plan.measure(features, regressors, some_weights, coefficients, errors, lengths, units, counter)
    plan.decide(
        errors, regressors, units, lengths, votes, sums, counter, gram, count, prior, *state, numbers, rate, flag,
        skipped,
    )  # fmt: skip
    return numbers, flag, rate


@lru_cache(MOST_REMEMBERED)
def _step_plan(
    n: int,
    d: int,
    x_row: int,
    q: int,
    m: int,
    regressors: tuple[int, ...],
    weighted: bool,
    groups: tuple[int, ...],
    runs: tuple[int, ...],
    step: float,
    constants: tuple[float, ...],
    channels: int,
    early: bool,
) -> _Plan:
    programs, parts = blocks(m, VOTES["BM"]), blocks(m, WIDTH)
    groups_of = {"FIRST": groups[0], "SECOND": groups[0] + groups[1]}
    measure, decide = _known(d, q, m, runs[0], constants, channels, early)
    measure |= {**strides("R", regressors), **groups_of, "WEIGHTED": weighted}
    decide |= {**strides("R", regressors), **groups_of, "MODE": 0 if step == 0 else 1 if step < 0 else 2}
    return _Plan(
        _padded(n * m, parts * n, 3 * n, q * m, 2 * int(gains.GROUPS.value) * programs, q + 2, 1),
        Call(gains.measure_errors, (blocks(n, ROWS), parts), (n, d, m, runs[1], x_row), measure),
        Call(gains.vote_and_decide, (programs,), (n, m, programs, step), decide, WARPS, early=early),
    )


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
    plan = _response_plan(
        n, d, gradient.stride(0), mean.shape[0], state[3].shape[1], removal.stride(), rate is not None, positions,
        tuple(runs), tuple(constants), channels, may_overlap(gradient.device),
    )  # fmt: skip
    gradients, squares, products, sizes, votes, sums, numbers, counter = _scratch(gradient, plan.sizes)
    plan.measure(gradient, removal, mean, gradients, squares, products, sizes, counter)
    plan.decide(
        gradients, removal, mean, squares, products, sizes, votes, sums, counter, *state, scale, spread, numbers,
        numbers if rate is None else rate,
    )  # fmt: skip
    return numbers


@lru_cache(MOST_REMEMBERED)
def _response_plan(
    n: int,
    d: int,
    g_row: int,
    q: int,
    m: int,
    removal: tuple[int, ...],
    fixed: bool,
    positions: int,
    runs: tuple[int, ...],
    constants: tuple[float, ...],
    channels: int,
    early: bool,
) -> _Plan:
    programs, parts = blocks(m, VOTES["BM"]), blocks(m, WIDTH)
    measure, decide = _known(d, q, m, runs[0], constants, channels, early)
    measure |= strides("C", removal)
    decide |= {
        **strides("C", removal), "RUN": runs[0], "FIXED": fixed,
        "LOG_JUMP": math.log(constants[3]), "SPREADS": constants[4], "LARGEST": constants[5],
    }  # fmt: skip
    numbers = (n, d, m, runs[1], programs, positions, float(constants[0]))
    return _Plan(
        _padded(n * m, parts * n, parts * n, parts, q * m, 2 * int(gains.GROUPS.value) * programs, q + 2, 1),
        Call(responses.measure_gradients, (blocks(n, ROWS), parts), (n, d, m, runs[1], g_row), measure),
        Call(responses.vote_and_decide, (programs,), numbers, decide, WARPS, early=early),
    )


def _known(
    d: int, q: int, m: int, run: int, constants: Sequence[float], channels: int, early: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the first and the second kernel of either plan are told when they are compiled."""
    measure = {
        "Q": q, "BN": ROWS, "BM": WIDTH, "RUN": run, "CHANNELS": channels, "POSITIONS": d // max(channels, 1),
        "EARLY": early,
    }  # fmt: skip
    decide = {
        "Q": q, "QP": power_of_two(q), "PARTS": blocks(m, WIDTH), **VOTES,
        "BLOCKS": power_of_two(blocks(m, VOTES["BM"])), "BT": TREND,
        "WINDOW": constants[0], "BATCHES": constants[1], "LONGEST": constants[2], "EARLY": early,
    }  # fmt: skip
    return measure, decide


def _padded(*sizes: int) -> list[int]:
    """Floats that fill lines of 64 bytes."""
    return [-(-size // 16) * 16 for size in sizes]


def _scratch(like: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Room for so many floats each, from one allocation."""
    parts: tuple[Tensor, ...] = torch.empty(sum(sizes), dtype=torch.float32, device=like.device).split_with_sizes(sizes)
    return parts
