"""PMDN's training step by the kernels: one pass over the features forward, one over the gradients backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from deconfound.layers.memory import in_memory, like_memory
from deconfound.layers.pmdn import gain
from deconfound.layers.pmdn import gradient as bilevel
from deconfound.layers.pmdn.sampled import Measured
from deconfound.layers.rows import Fit

GAIN = [gain.WINDOW, gain.BATCHES, gain.LONGEST]
RESPONSE = [*GAIN, bilevel.JUMP, bilevel.SPREADS, bilevel.LARGEST_DEVIATION]


class Rule(NamedTuple):
    """What a layer fixes about its step.

    Attributes:
        groups: How many coefficients share a gain, three sizes.
        step: 0 for the adaptive gain, −1 for the plain average, else a fixed step.
        measured: The features that are measured.
        shared: Whether features are `(n, d, positions)`, with one coefficient for all positions.
    """

    groups: tuple[int, ...]
    step: float
    measured: Measured
    shared: bool


class Work(NamedTuple):
    """What a step reads and moves beside the features; see `Rows`, `Fit` and `PMDN`.

    It goes through autograd as one thing: looking at each of these tensors would cost more than launching the kernels.
    """

    removal: Tensor
    fit: Fit
    prior: Tensor
    beta: Tensor
    gain: tuple[Tensor, ...]
    skipped: Tensor
    response: tuple[Tensor, ...]


class FusedResidual(torch.autograd.Function):
    """What `PMDN._learn` and `BilevelResidual` do; without the response, the gradient takes β as a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rule: Rule, work: Work) -> Tensor:
        """Move β and the gain in place and return `f − c β_C`."""
        from deconfound.layers.pmdn.kernels import ops

        fit = work.fit
        flat, channels = (_pooled(x), 0) if rule.shared else in_memory(x)
        out, rate = ops.call(
            ops.descend, flat, fit.regressors, fit.weighted, fit.weights, work.removal, fit.gram, fit.count,
            work.prior, work.beta, *work.gain, work.skipped, list(rule.groups), list(rule.measured), rule.step, GAIN,
            channels, not rule.shared,
        )  # fmt: skip
        if work.response:
            ctx.save_for_backward(work.removal, fit.pull)
            ctx.response = work.response
            ctx.rate = None if rule.step == 0 else rate
            ctx.rule = rule
        else:
            ctx.response = ()
        return _add(x, out) if rule.shared else like_memory(out, x, channels)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        """Add the way through β to the gradient."""
        gradient = gradients[0]
        if not ctx.response:
            return gradient, None, None
        from deconfound.layers.pmdn.kernels import ops

        removal, pull = ctx.saved_tensors
        shared = ctx.rule.shared
        flat, channels = (_total(gradient), 0) if shared else in_memory(gradient)
        positions = gradient[0, 0].numel() if shared else 1
        out = ops.call(
            ops.respond, flat, removal, pull, *ctx.response, ctx.rate, positions, list(ctx.rule.measured), RESPONSE,
            channels, not shared,
        )  # fmt: skip
        return _add(gradient, out) if shared else like_memory(out, gradient, channels), None, None


def _pooled(x: Tensor) -> Tensor:
    return x if x.ndim == 2 else x.mean(-1, dtype=torch.float32)


def _total(gradient: Tensor) -> Tensor:
    return gradient if gradient.ndim == 2 else gradient.sum(-1, dtype=torch.float32)


def _add(x: Tensor, change: Tensor) -> Tensor:
    """The sum in the type of `x`, for a change `(n, d)` in full precision."""
    change = change if x.ndim == 2 else change.unsqueeze(-1)
    return torch.add(x, change).to(x.dtype)
