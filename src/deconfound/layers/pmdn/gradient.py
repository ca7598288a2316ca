"""The network's gradient when β follows the features: the answer to the paper's bi-level problem.

For white regressors `β_C = E[z_C f]`, so a feature moves the loss directly and through β:

    ∂L/∂f_j = g_j − z_jᵀ S / n,   S = E_i[c_i ĝ_i],   g_i = ∂L/∂r_i,   ĝ_i = n g_i

S is a property of the whole distribution and is averaged over batches like β, from a start at zero that counts for
some samples: an S known from one small batch would push every feature the same wrong way. `ĝ` does not depend on
the batch size for a loss that is a mean over samples. It still carries the scale of the loss, which a user, a
schedule or a GradScaler may change at any step, so S is kept in units of the gradients' running size, which is measured
on the features that the gain is measured on. A feature whose S would not be finite keeps the old one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deconfound.layers.functional import products_and_some, residualize
from deconfound.layers.pmdn.gain import WINDOW, GainState, adaptive_gain
from deconfound.layers.pmdn.sampled import Measured
from deconfound.layers.precision import full_precision
from deconfound.layers.sync import add_tensors

# A change of the gradients' size by this factor, and by this many times their usual spread, is a change of
# the loss scale rather than noise.
JUMP = 1.4
SPREADS = 6.0
# So that one change of scale by a thousand does not pass for a wide spread.
LARGEST_DEVIATION = 2.0


class Response(NamedTuple):
    """The buffers that backward reads and writes.

    Attributes:
        mean: S in units of `exp(scale)`, `(q_C, d)`.
        scale: Logarithm of the running size of ĝ, a scalar.
        spread: Mean absolute deviation of that logarithm from batch to batch, times √n, a scalar.
        gain: How far S moves towards a new batch.
    """

    mean: Tensor
    scale: Tensor
    spread: Tensor
    gain: GainState


def follow(response: Response, gradient: Tensor, removal: Tensor, rate: Tensor | None, measured: Measured) -> Response:
    """Take in one batch of `ĝ = n g`.

    Args:
        response: The state so far.
        gradient: g, `(n, d)`.
        removal: c, `(n, q_C)`.
        rate: A fixed share of this batch in S; None for the adaptive gain.
        measured: The features that are measured.
    """
    n = len(gradient)
    rows = removal.new_full((), float(n))
    total, some = products_and_some(gradient, removal * n, measured.of)
    sizes = torch.linalg.vector_norm(some, dim=1) * n
    rows, square, total = add_tensors(rows, sizes.square().sum(), total)
    size = (square / (rows * some.shape[1])).sqrt()
    finite = torch.isfinite(size)
    started = response.gain.samples > 0

    change = torch.where(finite & (size > 0), size.log() - response.scale, 0.0)
    jumped = change.abs() > (SPREADS * response.spread / rows.sqrt()).clamp(min=math.log(JUMP))
    weight = (rows / (response.gain.samples + rows)).clamp(min=0.02)
    scale = response.scale + torch.where(jumped | ~started, change, weight * change)
    deviation = change.abs().clamp(max=LARGEST_DEVIATION) * rows.sqrt()
    spread = torch.lerp(response.spread, deviation, torch.where(started, weight, 0.0))

    unit = (-scale).exp()
    votes = _votes(measured.of(response.mean), some, n * unit, (sizes * unit).square(), removal)
    adaptive, gain = adaptive_gain(response.gain, votes, rows, [removal.shape[1]], prior=WINDOW)
    mean = torch.lerp(response.mean, total * (unit / rows), adaptive if rate is None else rate)
    look = finite.is_cpu and not torch.compiler.is_compiling()  # makes no CPU wait
    if not (look and torch.isfinite(mean.sum())):  # then so is every one of them
        mean = torch.where(torch.isfinite(mean).all(0), mean, response.mean)
    new = Response(mean, scale, spread, gain)
    if look:
        return new if finite else response
    return _where(finite, new, response)


def _votes(mean: Tensor, gradient: Tensor, unit: Tensor, squares: Tensor, removal: Tensor) -> Tensor:
    """Each sample's `c_i ĝ_i − S` scaled to length one and summed, over the measured features.

    Args:
        mean: S of the measured features, `(q_C, m)`.
        gradient: g of the measured features, `(n, m)`.
        unit: What turns g into ĝ in units of S.
        squares: `‖ĝ_i‖²` in units of S, `(n,)`.
        removal: c, `(n, q_C)`.
    """
    parts = removal.square().sum(1) * squares + mean.square().sum()
    squared = parts - 2 * unit * (removal * (gradient @ mean.T)).sum(1)
    # Where the two parts cancel, what is left is rounding and must not count as a full vote.
    lengths = torch.maximum(squared, 1e-6 * parts).clamp(min=torch.finfo(squared.dtype).tiny).rsqrt()
    votes = (removal * (unit * lengths).unsqueeze(1)).T @ gradient - lengths.sum() * mean
    (votes,) = add_tensors(votes)
    return votes


def _where(condition: Tensor, new: Response, old: Response) -> Response:
    gain = GainState(*(torch.where(condition, a, b) for a, b in zip(new.gain, old.gain, strict=True)))
    mean = torch.where(condition, new.mean, old.mean)
    scale = torch.where(condition, new.scale, old.scale)
    return Response(mean, scale, torch.where(condition, new.spread, old.spread), gain)


class BilevelResidual(torch.autograd.Function):
    """`f − c β_C` forward; in backward the gradient that also goes through β."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        removal: Tensor,
        pull: Tensor,
        beta: Tensor,
        rate: Tensor | None,
        update: bool,
        measured: Measured,
        *response: Tensor,
    ) -> Tensor:
        """Subtract `c β_C` from `x`, `(n, d)` or `(n, d, positions)`; `pull` is z_C; see `follow` for the rest."""
        ctx.save_for_backward(removal, pull)
        ctx.rate = rate
        ctx.update = update
        ctx.measured = measured
        ctx.response = response
        return residualize(x, removal, beta)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Add the way through β to the gradient; in full precision, also where backward runs under autocast."""
        with full_precision(gradients[0].device):
            return BilevelResidual._backward(ctx, gradients[0])

    @staticmethod
    def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        removal, pull = ctx.saved_tensors
        n, positions = len(gradient), gradient[0, 0].numel()
        mean, scale, spread, *gain = ctx.response
        response = Response(mean, scale, spread, GainState(*gain))
        summed = gradient if gradient.ndim == 2 else gradient.sum(-1)
        new = follow(response, summed, removal, ctx.rate, ctx.measured)
        if ctx.update:
            for buffer, value in zip(ctx.response, (new.mean, new.scale, new.spread, *new.gain), strict=True):
                buffer.copy_(value)
        else:
            new = response
        total = residualize(gradient, pull * (new.scale.exp() / (n * positions)), new.mean)
        return (total, *[None] * (6 + len(ctx.response)))
