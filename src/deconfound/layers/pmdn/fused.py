"""PMDN's training step by the kernels: one pass over the features forward, one over the gradients backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from deconfound.layers.pmdn import gain
from deconfound.layers.pmdn import gradient as bilevel
from deconfound.layers.pmdn.update import UpdateRule
from deconfound.layers.tensors import like_memory, rows_in_memory
from deconfound.layers.whitened import WhitenedBatch

GAIN = [gain.WINDOW, gain.BATCHES, gain.LONGEST]
GRADIENT = [*GAIN, bilevel.JUMP, bilevel.SPREADS, bilevel.LARGEST_DEVIATION]


class FusedStep(NamedTuple):
    """What a training step reads and moves beside the features; see `WhitenedBatch` and `PMDN`.

    It goes through autograd as one thing: looking at each of these tensors would cost more than launching the kernels.

    Attributes:
        batch: The metadata.
        through: How a row's features move β_C.
        start: How many samples the start counts for, one number per group.
        beta: β, `(q, d)`.
        gain: Its gain.
        skipped: The layer's counter.
        gradient: The implicit gradient; without it β is a constant of the gradient.
        rule: What the layer fixes.
        shared: Whether features are `(n, d, positions)`, with one coefficient for all positions.
    """

    batch: WhitenedBatch
    through: Tensor
    start: Tensor
    beta: Tensor
    gain: gain.GainState
    skipped: Tensor
    gradient: bilevel.ImplicitGradient | None
    rule: UpdateRule
    shared: bool


class FusedResidual(torch.autograd.Function):
    """What `update.update` and `BilevelResidual` do, by the kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: FusedStep) -> Tensor:
        """Move β and the gain in place and return `f − c β_C`."""
        from deconfound.layers.pmdn.kernels import ops

        batch, rule = step.batch, step.rule
        flat, channels = (_pooled(x), 0) if step.shared else rows_in_memory(x)
        out, rate = ops.call(
            ops.pmdn_forward, flat, batch.regressors, batch.weighted, batch.weights, batch.confounds, batch.gram(),
            batch.counts(), step.start, step.beta, *step.gain, step.skipped, list(rule.sizes), list(rule.sampled),
            rule.step, GAIN, channels, not step.shared,
        )  # fmt: skip
        ctx.step = step
        if step.gradient is not None:
            ctx.save_for_backward(batch.confounds, step.through)
            ctx.rate = rate if rule.step else None
        return _add(x, out) if step.shared else like_memory(out, x, channels)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        """Add the way through β to the gradient."""
        from deconfound.layers.pmdn.kernels import ops

        gradient, step = gradients[0], ctx.step
        if step.gradient is None:
            return gradient, None
        if not bilevel.learns_now(ctx, step.batch):
            flat = gradient.float() if step.shared else gradient.float().flatten(1)
            through = bilevel.way_through(flat, ctx.saved_tensors[1], step.gradient)
            return through.reshape(gradient.shape).to(gradient.dtype), None
        if not torch.compiler.is_compiling():
            bilevel.refuse_second_derivatives()
        confounds, through = ctx.saved_tensors
        flat, channels = (_total(gradient), 0) if step.shared else rows_in_memory(gradient)
        positions = gradient[0, 0].numel() if step.shared else 1
        mean, size, state = step.gradient
        out = ops.call(
            ops.pmdn_backward, flat, confounds, through, mean, size, *state, ctx.rate, positions,
            list(step.rule.sampled), GRADIENT, channels, not step.shared,
        )  # fmt: skip
        return _add(gradient, out) if step.shared else like_memory(out, gradient, channels), None


def _pooled(x: Tensor) -> Tensor:
    return x if x.ndim == 2 else x.mean(-1, dtype=torch.float32)


def _total(gradient: Tensor) -> Tensor:
    return gradient if gradient.ndim == 2 else gradient.sum(-1, dtype=torch.float32)


def _add(x: Tensor, change: Tensor) -> Tensor:
    """The sum in the type of `x`, for a change `(n, d)` in full precision."""
    change = change if x.ndim == 2 else change.unsqueeze(-1)
    return torch.add(x, change).to(x.dtype)
