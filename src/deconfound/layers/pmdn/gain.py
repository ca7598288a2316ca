"""How far a running average should move towards a new batch: a gain that measures drift and noise itself.

An average `m` follows a mean `μ` that drifts. Sample i says that `m` should move in the direction `v_i`, which is
`μ − m` plus noise of variance N. If `μ − m` has squared size E, then moving by η times the mean of n such directions
leaves `(1 − η)² E + η² N / n`, which is least at

    η = E / (E + N / n) = n ρ / (1 + (n − 1) ρ),   ρ = E / (E + N)

ρ is the mean product of the directions of two samples over their mean square `L²`, and is measured over all pairs
within a batch and all pairs with samples of the recent past. For a mean that stands still ρ falls like 1 / samples and
η is the plain average; when the mean moves the directions agree, and the average forgets. Nothing is left to tune.

L is one length for all samples: directions that were each scaled to length one would not average to zero at the right
`m` where noise is skewed. Each feature is divided by the running size of its own error, so that one large feature does
not hide the drift of the others.

Parts of an average may drift at different speeds: features' means move fastest, then the label's effect, then the
confounds'. Rows of the average are therefore put in groups with a gain each, so that one part's drift does not make
another part noisy.

The arithmetic is written once, for numbers and for tensors: on a CPU the state of a few numbers is Python's business,
which is ten times as fast as torch's; a device is never waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

# Samples over which ρ is averaged and directions are remembered: few enough to notice a drift soon.
WINDOW = 300.0
# And at least so many batches.
BATCHES = 5.0
# The plain average never reaches further back than this many samples.
LONGEST = 20_000.0
# Squares of errors below this are zero.
TINY = 1e-30


class GainState(NamedTuple):
    """What the gain remembers, all of it tensors.

    Attributes:
        numbers: Samples seen, then ρ, the step η / n and the squared length L² of each group, `(1 + 3 G,)`.
        trend: Running mean of the directions, `(q, sampled features)`.
        scale: Running mean square of each feature's errors, `(sampled features,)`.
    """

    numbers: Tensor
    trend: Tensor
    scale: Tensor


class Numbers(NamedTuple):
    """`GainState.numbers` of one group, as numbers, or of all groups, as tensors `(G,)`; samples are a scalar."""

    samples: Any
    agreement: Any
    step: Any
    length: Any


class Sums(NamedTuple):
    """What a batch says about one group, or about all groups as tensors `(G,)`.

    Attributes:
        square: `‖Σ w_i v_i‖²`.
        product: `⟨Σ w_i v_i, trend⟩`.
        own: `Σ w_i² ‖v_i‖²`.
    """

    square: Any
    product: Any
    own: Any


class _OfNumbers:
    maximum, minimum = max, min

    @staticmethod
    def where(condition: bool, yes: float, no: float) -> float:
        return yes if condition else no


class _OfTensors:
    @staticmethod
    def maximum(one: Any, two: Any) -> Any:
        return torch.clamp(one, min=two) if isinstance(one, Tensor) else torch.clamp(two, min=one)

    @staticmethod
    def minimum(one: Any, two: Any) -> Any:
        return torch.clamp(one, max=two) if isinstance(one, Tensor) else torch.clamp(two, max=one)

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        return torch.where(condition, yes, no)


def new_state(groups: int, rows: int, sampled: int) -> GainState:
    """The state before the first batch, for so many groups, rows of the average and sampled features."""
    return GainState(torch.zeros(1 + 3 * groups), torch.zeros(rows, sampled), torch.zeros(sampled))


def forgetting(samples: Any, rows: Any) -> Any:
    """How much of trend, scale and length a batch of so many rows replaces."""
    ops: Any = _OfTensors if isinstance(rows, Tensor) else _OfNumbers
    count = ops.maximum(rows, TINY)
    return ops.maximum(count / (samples + count), ops.minimum(count / WINDOW, 1.0))


def adaptive_gain(past: Numbers, seen: Sums, rows: Any, squares: Any, prior: Any) -> tuple[Any, Numbers]:
    """The gain for a batch, and the numbers after it.

    Args:
        past: What earlier batches left.
        seen: What this batch says.
        rows: `Σw`, samples in the batch.
        squares: `Σw²`; the number of rows where each counts once.
        prior: How many samples the start at zero counts for.
    """
    ops: Any = _OfTensors if isinstance(seen.square, Tensor) else _OfNumbers
    count = ops.maximum(rows, TINY)
    effective = count * count / ops.maximum(squares, TINY)
    others = ops.maximum(effective - 1, 0.0)
    usual = seen.own / ops.maximum(squares, TINY)
    length = past.length + (usual - past.length) * forgetting(past.samples, rows)
    unit = ops.maximum(length, TINY)

    within = (seen.square - seen.own) / ops.maximum(count * count - squares, TINY) / unit
    # A direction has moved the average by `step` times itself: later samples say less by what is left of that.
    undone = past.step / (1 + past.step * WINDOW)
    across = seen.product / count / unit + undone
    remembered = ops.minimum(past.samples, WINDOW)
    pairs = ops.maximum(others / 2 + remembered, 1.0)
    measured = (others / 2 * ops.where(others > 0, within, 0.0 * within) + remembered * across) / pairs
    measured = ops.where(past.samples + others > 0, measured, 1.0 + 0.0 * measured)

    average = count / (past.samples + count + prior)
    recent = ops.maximum(average, ops.minimum(count / WINDOW, 1 / BATCHES))
    agreement = past.agreement + (measured - past.agreement) * recent
    rho = ops.minimum(ops.maximum(agreement, 0.0), 1.0)
    gain = ops.maximum(effective * rho / (1 + others * rho), average)
    samples = ops.minimum(past.samples + count, LONGEST)
    return gain, Numbers(samples, agreement, gain / count, length)


def sums(state: GainState, directions: Tensor, squares: Tensor, scale: Tensor) -> Tensor:
    """What `adaptive_gain` reads, over the sampled features, each divided by its scale: one vector `(2 q + k,)`.

    Args:
        state: The state before this batch.
        directions: `Σ w_i v_i`, `(q, m)`.
        squares: Further rows of squares to be scaled and added up in the same way, `(k, m)`.
        scale: The scale of each feature after this batch, `(m,)`.
    """
    inverse = scale.clamp(min=TINY).reciprocal()
    return torch.cat([directions * directions, directions * state.trend, squares]) @ inverse


def host_sums(
    state: GainState, directions: Tensor, squares: Tensor, square: Tensor, count: float, rows: float, samples: float
) -> tuple[list[float], Callable[[], None]]:
    """`sums` of tensors on the CPU by NumPy, which takes a third of torch's time for so few numbers.

    Args:
        state: The state before this batch.
        directions: `Σ w_i v_i`, `(q, m)`.
        squares: Further rows of squares to be scaled and added up in the same way, `(k, m)`.
        square: The sum of each feature's squared errors, `(m,)`.
        count: What `square` is divided by.
        rows: `Σw`.
        samples: Samples seen before.

    Returns:
        The sums, and a function that takes this batch into trend and scale.
    """
    forget = forgetting(samples, rows)
    trend, scale, towards = state.trend.numpy(), state.scale.numpy(), directions.numpy()
    with np.errstate(all="ignore"):  # what is not finite shows in the sums
        new_scale = scale + (square.numpy() * (1 / count) - scale) * forget
        inverse = 1 / np.maximum(new_scale, TINY)
        scaled = towards * inverse
        found = [(scaled * towards).sum(1), (scaled * trend).sum(1), squares.numpy() @ inverse]

    def commit() -> None:
        scale[:] = new_scale
        np.multiply(trend, 1 - forget, out=trend)
        np.add(trend, towards * (forget / rows), out=trend)

    return np.concatenate(found).tolist(), commit


def grouped(values: list[float], sizes: Sequence[int]) -> list[Sums]:
    """The sums of each group from the numbers that `host_sums` returned."""
    q, found, start = sum(sizes), [], 0
    for group, size in enumerate(sizes):
        end = start + size
        found.append(Sums(sum(values[start:end]), sum(values[q + start : q + end]), values[2 * q + group]))
        start = end
    return found


def device_sums(values: Tensor, groups: Tensor) -> Sums:
    """The same without a look at the numbers, for a 0/1 matrix of groups `(q, G)`."""
    q = len(groups)
    both = values[: 2 * q].view(2, q) @ groups
    return Sums(both[0], both[1], values[2 * q : 2 * q + groups.shape[1]])


def split_numbers(numbers: Any) -> Any:
    """`GainState.numbers` by group: a list of `Numbers` of a list, one `Numbers` of a tensor."""
    groups = (len(numbers) - 1) // 3
    if isinstance(numbers, Tensor):
        return Numbers(numbers[0], *numbers[1:].view(3, groups))
    return [Numbers(numbers[0], *numbers[1 + group :: groups]) for group in range(groups)]


def joined_numbers(groups: Sequence[Numbers]) -> list[float]:
    """The inverse of `split_numbers`, for numbers."""
    return [groups[0].samples, *(getattr(group, name) for name in Numbers._fields[1:] for group in groups)]
