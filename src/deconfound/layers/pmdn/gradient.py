"""The network's gradient when β follows the features: the answer to the paper's bi-level problem.

With `β = G⁻¹ E[w R f]` and `G = E[w R Rᵀ]`, the identity for whitened metadata, a feature moves the loss directly and
through β:

    ∂L/∂f_j = g_j − z̃_jᵀ S / n,   S = E_i[c_i ĝ_i],   z̃_j = w_j (G⁻¹ R_j)_C / w̄,   g_i = ∂L/∂r_i,   ĝ_i = n g_i

S is a property of the whole distribution and is averaged over batches like β, from a start at zero that counts for
some samples: an S known from one small batch would push every feature the same wrong way. `ĝ` does not depend on
the batch size for a loss that is a mean over samples. It still carries the scale of the loss, which a user, a
schedule or a GradScaler may change at any step, so S is kept in units of the gradients' running size, which is measured
on the sampled features. A feature whose S would not be finite keeps the old one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deconfound.errors import DeconfoundError
from deconfound.layers import torch_private
from deconfound.layers.functional import products_and_sampled, residualize
from deconfound.layers.pmdn.gain import (
    TINY,
    WINDOW,
    GainState,
    Numbers,
    Sums,
    adaptive_gain,
    forgetting,
    host_sums,
    joined_numbers,
    split_numbers,
    sums,
)
from deconfound.layers.pmdn.sampled import Sampled
from deconfound.layers.tensors import full_precision, processes, sum_over_processes
from deconfound.layers.whitened import WhitenedBatch

# A change of the gradients' size by this factor, and by this many times their usual spread, is a change of
# the loss scale rather than noise.
JUMP = 1.4
SPREADS = 6.0
# So that one change of scale by a thousand does not pass for a wide spread.
LARGEST_DEVIATION = 2.0
# The least weight of a batch in the running size and its spread.
LEAST = 0.02


class ImplicitGradient(NamedTuple):
    """The running average that backward reads and writes.

    Attributes:
        mean: S in units of the gradients' size, `(q_C, d)`.
        size: Logarithm of the running size of ĝ, and the mean absolute deviation of that logarithm from batch to batch
            times √n, `(2,)`.
        gain: How far S moves towards a new batch.
    """

    mean: Tensor
    size: Tensor
    gain: GainState


class _Seen(NamedTuple):
    """One batch of gradients: `Σ c_i ĝ_i`, and `Σ ĝ_i²` of sampled features, weighted by ‖c_i‖² and by 1, `(2, m)`."""

    total: Tensor
    squares: Tensor
    rows: int | Tensor


def update(
    state: ImplicitGradient, gradient: Tensor, batch: WhitenedBatch, rate: float | Tensor | None, sampled: Sampled
) -> None:
    """Take one batch of `ĝ = n g` into the running average, in place.

    Args:
        state: The state so far.
        gradient: g, `(n, d)`.
        batch: The metadata of these rows.
        rate: A fixed share of this batch in S; None for the adaptive gain.
        sampled: The features that the gain is computed on.
    """
    n = len(gradient)
    total, some = products_and_sampled(gradient, batch.confounds, sampled.of)
    seen = _Seen(total * n, (batch.confound_squares() * (n * n)).T @ (some * some), n)
    if processes() > 1:
        rows = gradient.new_tensor(float(n))
        seen = _Seen(*sum_over_processes(seen.total, seen.squares, rows))
    if gradient.is_cpu and not torch.compiler.is_compiling():  # reading numbers back does not force a device sync
        _update_on_host(state, seen, rate, sampled)
    else:
        _update_on_device(state, seen, rate, sampled)


def _update_on_host(state: ImplicitGradient, seen: _Seen, rate: float | Tensor | None, sampled: Sampled) -> None:
    rows, numbers, sizes = float(seen.rows), state.gain.numbers.numpy(), state.size.numpy()
    (past,) = split_numbers(numbers.tolist())
    mean_square = float(seen.squares[1].numpy().mean()) / rows
    if not math.isfinite(mean_square):
        return
    size, spread = sizes.tolist()
    change = 0.5 * math.log(mean_square) - size if mean_square > 0 else 0.0
    weight = max(rows / (past.samples + rows), LEAST)
    jumped = abs(change) > max(SPREADS * spread / math.sqrt(rows), math.log(JUMP))
    size += change if jumped or not past.samples else weight * change
    if past.samples:
        spread += (min(abs(change), LARGEST_DEVIATION) * math.sqrt(rows) - spread) * weight
    unit = math.exp(-size)

    mean, total = sampled.of(state.mean), sampled.of(seen.total) * unit
    directions = torch.sub(total, mean, alpha=rows)
    squares = seen.squares * (unit * unit)
    own = torch.cat([squares[:1], total * mean, mean * mean])
    values, commit = host_sums(state.gain, directions, own, squares[1], rows, rows, past.samples)
    if not all(map(math.isfinite, values)):
        return
    adaptive, after = adaptive_gain(past, _sums_of(values, len(mean), rows), rows, rows, WINDOW)
    share = adaptive if rate is None else float(rate)
    new = torch.add(state.mean * (1 - share), seen.total, alpha=share * unit / rows)
    if not sampled.all and not math.isfinite(new.sum()):
        new = torch.where(torch.isfinite(new).all(0), new, state.mean)
    state.mean.copy_(new)
    sizes[:] = size, spread
    numbers[:] = joined_numbers([after])
    commit()


def _update_on_device(state: ImplicitGradient, seen: _Seen, rate: float | Tensor | None, sampled: Sampled) -> None:
    rows = seen.rows if isinstance(seen.rows, Tensor) else state.mean.new_tensor(float(seen.rows))
    past: Numbers = split_numbers(state.gain.numbers)
    of_features = seen.squares[1] / rows
    mean_square = of_features.mean()
    size, spread, started = state.size[0], state.size[1], past.samples > 0
    finite = torch.isfinite(mean_square)
    change = torch.where(finite & (mean_square > 0), 0.5 * mean_square.clamp(min=TINY).log() - size, 0.0)
    weight = (rows / (past.samples + rows)).clamp(min=LEAST)
    jumped = change.abs() > (SPREADS * spread / rows.sqrt()).clamp(min=math.log(JUMP))
    size = size + torch.where(jumped | ~started, change, weight * change)
    deviation = change.abs().clamp(max=LARGEST_DEVIATION) * rows.sqrt()
    spread = torch.lerp(spread, deviation, torch.where(started, weight, 0.0))
    unit = (-size).exp()

    forget = forgetting(past.samples, rows)
    scale = torch.lerp(state.gain.scale, of_features * unit.square(), forget)
    mean = sampled.of(state.mean)
    total = sampled.of(seen.total) * unit
    directions = total - rows * mean
    own = torch.cat([seen.squares[:1] * unit.square(), total * mean, mean * mean])
    values = sums(state.gain, directions, own, scale)
    usable = finite & torch.isfinite(values).all()
    q = len(mean)
    adaptive, numbers = adaptive_gain(past, _device_sums_of(values, q, rows), rows, rows, WINDOW)
    share = adaptive if rate is None else rate
    new = torch.lerp(state.mean, seen.total * (unit / rows), share * torch.ones_like(unit))
    moved = usable & torch.isfinite(new).all(0)
    state.mean.copy_(torch.where(moved, new, state.mean))
    joined = torch.cat([part.reshape(-1) for part in numbers])
    trend = torch.lerp(state.gain.trend, directions / rows, forget)
    for buffer, value in zip(
        (state.size, *state.gain), (torch.stack([size, spread]), joined, trend, scale), strict=True
    ):
        buffer.copy_(torch.where(usable, value, buffer))


def _sums_of(values: list[float], q: int, rows: float) -> Sums:
    """Of `c_i ĝ_i − S`, whose squares are `‖c_i ĝ_i‖² − 2 ⟨c_i ĝ_i, S⟩ + ‖S‖²`."""
    own = values[2 * q] - 2 * sum(values[2 * q + 1 : 3 * q + 1]) + rows * sum(values[3 * q + 1 :])
    return Sums(sum(values[:q]), sum(values[q : 2 * q]), max(own, 0.0))


def _device_sums_of(values: Tensor, q: int, rows: Tensor) -> Sums:
    square, product, first, cross, mean = values.split([q, q, 1, q, q])
    own = first.sum() - 2 * cross.sum() + rows * mean.sum()
    return Sums(square.sum().reshape(1), product.sum().reshape(1), own.clamp(min=0).reshape(1))


def refuse_second_derivatives() -> None:
    """Backward under `create_graph=True` while learning: what it learns has no derivative."""
    if torch.is_grad_enabled():
        raise DeconfoundError(
            "a backward with create_graph=True must not change what PMDN has learned; got one in training with "
            "gradient='bilevel'. Run it inside `with model.frozen_statistics():`, in eval, or with gradient='frozen'."
        )


class BilevelResidual(torch.autograd.Function):
    """`f − c β_C` forward; in backward the gradient that also goes through β."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        batch: WhitenedBatch,
        through: Tensor,
        beta: Tensor,
        rate: float | Tensor | None,
        learn: bool,
        sampled: Sampled,
        state: ImplicitGradient,
    ) -> Tensor:
        """Subtract `c β_C` from `x`, `(n, d)` or `(n, d, positions)`.

        Args:
            ctx: Of autograd.
            x: The features.
            batch: Their metadata.
            through: z̃, how a row's features move β_C, `(n, q_C)`.
            beta: β_C.
            rate: See `update`.
            learn: Whether backward moves S.
            sampled: See `update`.
            state: S.
        """
        # As many tensors as `FusedResidual` saves: activation checkpointing counts them when it recomputes.
        ctx.save_for_backward(batch.confounds, through)
        ctx.batch, ctx.rate, ctx.learn, ctx.sampled, ctx.state = batch, rate, learn, sampled, state
        return residualize(x, batch.confounds, beta)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Add the way through β to the gradient; in full precision, also where backward runs under autocast."""
        with full_precision(gradients[0].device):
            return BilevelResidual._backward(ctx, gradients[0])

    @staticmethod
    def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        _, through = ctx.saved_tensors
        state: ImplicitGradient = ctx.state
        if ctx.learn and learns_now(ctx, ctx.batch):
            refuse_second_derivatives()
            summed = gradient if gradient.ndim == 2 else gradient.sum(-1)
            update(state, summed, ctx.batch, ctx.rate, ctx.sampled)
        return (way_through(gradient, through, state), *[None] * 7)


def learns_now(ctx: Any, batch: WhitenedBatch) -> bool:
    """Whether the backward that runs is one of training, and not one for a saliency map."""
    if not batch.inputs_want_gradients or torch.compiler.is_compiling():
        return True
    return torch_private.backward_reaches_parameters(ctx)


def way_through(gradient: Tensor, through: Tensor, state: ImplicitGradient) -> Tensor:
    """`g − z̃ S / n`, for `(n, d)` or `(n, d, positions)`."""
    positions = gradient.shape[2] if gradient.ndim == 3 else 1
    count = len(gradient) * positions
    if gradient.ndim == 2 and gradient.is_cpu and not torch.compiler.is_compiling() and not torch.is_grad_enabled():
        return torch.addmm(gradient, through, state.mean, alpha=-math.exp(state.size[0].item()) / count)
    return residualize(gradient, through * (state.size[0].exp() / count), state.mean)
