"""The network's gradient when β follows the features: the answer to the paper's bi-level problem.

With `β = G⁻¹ E[w R f]` and `G = E[w R Rᵀ]`, the identity for whitened metadata, a feature moves the loss directly and
through β:

    ∂L/∂f_j = g_j − z̃_jᵀ S / n,   S = E_i[c_i ĝ_i],   z̃_j = w_j (G⁻¹ R_j)_C / w̄,   g_i = ∂L/∂r_i,   ĝ_i = n g_i

S is a property of the whole distribution and is averaged over batches like β (`update.py`). `ĝ` does not depend on the
batch size for a loss that is a mean over samples. It still carries the scale of the loss, which a user, a schedule or a
GradScaler may change at any step. So the running mean square of each feature's ĝ is kept beside its S, and where that
of a batch is far from it, S is multiplied by as much at once. That harms nothing where it was noise: S then has the
size of the gradients that it is added to. A feature whose S would not be finite keeps the old one.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deconfound.errors import DeconfoundError
from deconfound.layers import torch_private
from deconfound.layers.functional import cross_products, pool_positions, residualize
from deconfound.layers.pmdn.update import Plan, descend
from deconfound.layers.tensors import (
    Number,
    all_finite,
    full_precision,
    like_memory,
    on_host,
    rows_in_memory,
    sum_over_processes,
)
from deconfound.layers.whitened import WhitenedBatch

# A change of the gradients' size by this factor is a change of the loss scale; or, where a batch is small, by the
# exponential of this over the square root of its rows: noise of a batch's size falls as that does.
JUMP = 1.4
NOISE = 4.0


class ImplicitGradient(NamedTuple):
    """The running average that backward reads and writes.

    Attributes:
        mean: S, `(q_C, d)`.
        square: The running mean square of ĝ, 0 before the first, `(1, d)`.
    """

    mean: Tensor
    square: Tensor


def update(state: ImplicitGradient, gradient: Tensor, batch: WhitenedBatch, share: Number) -> Tensor:
    """Take one batch of `ĝ = n g` into the running average, in place.

    Args:
        state: The state so far.
        gradient: g, `(n, d)`.
        batch: The metadata of these rows.
        share: Of this batch in S, a scalar.

    Returns:
        Memory of the gradient's shape and type that this took and no longer needs.
    """
    n = float(gradient.shape[0])
    total = cross_products(gradient, batch.confounds)
    squares = gradient * gradient
    square = torch.mm(_counts(gradient, batch), squares)
    if batch.alone:
        average(state, total, square, largest_change(n), share)
    else:
        total, square, rows = sum_over_processes(total * n, square * n, gradient.new_full((), n))
        average(state, total / rows, square / rows, largest_change(rows), share)
    return squares


def _counts(gradient: Tensor, batch: WhitenedBatch) -> Tensor:
    """`(1, n)`, n in each place; only read."""
    n = gradient.shape[0]
    if batch.on_host:
        return _counts_on_host(n, gradient.dtype)
    return batch.once("counts", lambda: gradient.new_full((1, n), float(n)))


@lru_cache(maxsize=64)
def _counts_on_host(n: int, dtype: torch.dtype) -> Tensor:
    return torch.full((1, n), float(n), dtype=dtype, device="cpu")


def largest_change(n: Number) -> Number:
    """By what factor the mean square of n rows of gradients may be off the running one without a change of scale."""
    if isinstance(n, Tensor):
        return (2 * NOISE / n.sqrt()).clamp(min=2 * math.log(JUMP)).exp()
    return math.exp(max(2 * NOISE / math.sqrt(n), 2 * math.log(JUMP)))


def average(state: ImplicitGradient, total: Tensor, square: Tensor, most: Number, share: Number) -> None:
    """Move S and the running mean square by a batch with `Σ c_i ĝ_i / n` and the mean square of ĝ, in place.

    Args:
        state: The state so far.
        total: `(q_C, d)`.
        square: `(1, d)`.
        most: See `largest_change`.
        share: Of this batch in both, a scalar.
    """
    mean, old = state
    if on_host(square):
        heard, ratio = square, square / old
        usual = _is_usual(ratio, most)
        if not usual:  # but for dead features, which have no gradient
            dead = square == 0
            heard, usual = torch.where(dead, old, square), _is_usual(ratio.masked_fill_(dead, 1.0), most)
        if usual:
            mean.lerp_(total, share)
            old.lerp_(heard, share)
            return
    known = (old > 0) & (square > 0)
    ratio = torch.where(known, square / old, 1.0)
    jumped = torch.maximum(ratio, 1 / ratio) > most
    new = torch.lerp(mean * torch.where(jumped, ratio, 1.0).sqrt(), total, share)
    begins = jumped | (old == 0)
    squares = torch.where(begins, square, torch.where(known, torch.lerp(old, square, share), old))
    if on_host(square) and all_finite(new, square):
        mean.copy_(new)
        old.copy_(squares)
        return
    finite = torch.isfinite(new).all(0) & torch.isfinite(square)
    mean.copy_(torch.where(finite, new, mean))
    old.copy_(torch.where(finite, squares, old))


def _is_usual(ratio: Tensor, most: Number) -> bool:
    """Whether no feature jumps, begins, is dead or not finite."""
    low, high = torch.aminmax(ratio)
    return bool(most * low.item() > 1 and high.item() < most)


class Step(NamedTuple):
    """What a training step reads and moves beside the features; see `WhitenedBatch` and `PMDN`.

    It goes through autograd as one thing: looking at each of these tensors would cost more than launching a kernel.

    Attributes:
        batch: The metadata.
        plan: How far it moves things.
        through: z̃, how a row's features move β_C, `(n, q_C)`.
        beta: β, `(q, d)`.
        skipped: The layer's counter.
        gradient: The implicit gradient; without it β is a constant of the gradient.
        learn: Whether backward moves the implicit gradient.
        fused: Whether kernels move β and subtract in one pass.
        shared: Whether features are `(n, d, positions)`, with one coefficient for all positions.
    """

    batch: WhitenedBatch
    plan: Plan
    through: Tensor
    beta: Tensor
    skipped: Tensor
    gradient: ImplicitGradient | None
    learn: bool
    fused: bool
    shared: bool


class PMDNResidual(torch.autograd.Function):
    """`f − c β_C` forward; in backward the gradient that also goes through β."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Step) -> Tensor:
        """Move β and subtract `c β_C`; where kernels do it, in one pass. Nothing here is watched by autograd."""
        ctx.step = step
        batch, by = step.batch, step.plan.by
        confounds = batch.confounds
        if not step.fused:
            if by is not None:
                descend(step.beta, step.skipped, pool_positions(x), by, batch)
            return residualize(x, confounds, step.beta[: confounds.shape[1]])
        from deconfound.layers.pmdn.kernels import ops

        flat, channels = (_pooled(x), 0) if step.shared else rows_in_memory(x)
        out = ops.call(
            ops.pmdn_forward, flat, batch.weighted, confounds, batch.gram(), step.plan.rates, step.beta, step.skipped,
            channels, not step.shared,
        )  # fmt: skip
        return _add(x, out) if step.shared else like_memory(out, x, channels)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Add the way through β to the gradient; in full precision, also where backward runs under autocast."""
        gradient, step = gradients[0], ctx.step
        # Where nothing is learned β stands still, and is a constant of the gradient.
        if step.gradient is None or not step.learn or (step.batch.inputs_want_gradients and not _learns_now(ctx)):
            return gradient, None
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            _refuse_second_derivatives()
        if torch.is_autocast_enabled(gradient.device.type):
            with full_precision(gradient.device):
                return _through_beta(gradient, step, step.gradient), None
        return _through_beta(gradient, step, step.gradient), None


def _through_beta(gradient: Tensor, step: Step, state: ImplicitGradient) -> Tensor:
    if step.fused:
        return _fused_backward(gradient, step)
    mean = state.mean
    wide = gradient if gradient.dtype == mean.dtype else gradient.to(mean.dtype)
    if not step.shared and wide.ndim > 2:
        wide = wide.flatten(1)
    taken = update(state, wide if wide.ndim == 2 else wide.sum(-1), step.batch, step.plan.rates[-1])
    room = taken if wide.ndim == 2 and step.batch.on_host else None
    out = residualize(wide, step.through, mean, 1 / _count(wide), room)
    if out.dtype != gradient.dtype or out.ndim != gradient.ndim:
        out = out.reshape(gradient.shape).to(gradient.dtype)
    return out


def _fused_backward(gradient: Tensor, step: Step) -> Tensor:
    from deconfound.layers.pmdn.kernels import ops

    assert step.gradient is not None
    flat, channels = (_total(gradient), 0) if step.shared else rows_in_memory(gradient)
    scales = [1 / _count(gradient if step.shared else flat), float(largest_change(len(flat)))]
    out = ops.call(
        ops.pmdn_backward, flat, step.batch.confounds, step.through, step.plan.rates[-1], *step.gradient, scales,
        channels, not step.shared,
    )  # fmt: skip
    return _add(gradient, out) if step.shared else like_memory(out, gradient, channels)


def _count(gradient: Tensor) -> int:
    """Rows, or rows times positions."""
    return gradient.shape[0] * (gradient.shape[2] if gradient.ndim == 3 else 1)


def _refuse_second_derivatives() -> None:
    """Backward under `create_graph=True` while learning: what it learns has no derivative."""
    raise DeconfoundError(
        "a backward with create_graph=True must not change what PMDN has learned; got one in training with "
        "gradient='bilevel'. Run it inside `with model.frozen_statistics():`, in eval, or with gradient='frozen'."
    )


def _learns_now(ctx: Any) -> bool:
    """Whether the backward that runs is one of training, and not one for a saliency map."""
    return torch.compiler.is_compiling() or torch_private.backward_reaches_parameters(ctx)


def _pooled(x: Tensor) -> Tensor:
    return x if x.ndim == 2 else x.mean(-1, dtype=torch.float32)


def _total(gradient: Tensor) -> Tensor:
    return gradient if gradient.ndim == 2 else gradient.sum(-1, dtype=torch.float32)


def _add(x: Tensor, change: Tensor) -> Tensor:
    """The sum in the type of `x`, for a change `(n, d)` in full precision."""
    change = change if x.ndim == 2 else change.unsqueeze(-1)
    return torch.add(x, change).to(x.dtype)
