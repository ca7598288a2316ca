"""PMDN in one forward and one backward pass (Vento et al., MICCAI 2022, Algorithm 1).

Algorithm 1 alternates two steps on each batch:

    line 6    β ← β − η₁ ∇_β L*(f; M),   L* = ‖f − Mβ‖²      the network is frozen
    line 8    ŷ = ψ(f − Mβ)                                 with the new β
    line 9    W ← W − η₂ ∇_W L(ŷ, y)                        β is frozen

Line 6 needs the features only, so the layer takes it inside the forward pass: `_train` moves β on
the detached features and returns the residual with the new β. The user's own backward pass and
optimiser are line 9. One pass over the network is enough.

Where this file differs from the paper, and why:

- M is whitened, and only its confound part is subtracted (design room). Plain gradient descent on
  raw columns, such as age near 70 beside a 0/1 sex, converges too slowly.
- An intercept is fitted and never subtracted. Otherwise the mean of a feature would pass for an
  effect of the confounds.
- η₁ makes β an average over samples, not over steps, so that one setting serves all batch sizes.
  `step=` fixes η₁ instead, as in the paper.
- With several layers line 6 is taken layer by layer: the second layer's features were made with
  the first layer's new β.
- The network's gradient follows β (`gradient="bilevel"`). The paper poses this bi-level problem
  (Eq. 6 and 7), but line 9 treats β as a constant, which is `gradient="frozen"`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers.arithmetic import subtract_effect
from deconfound.layers.base import MetadataLayer
from deconfound.layers.batch import WhitenedBatch
from deconfound.layers.environment import average_over_processes, full_precision

# β = 0 counts as this many samples. Otherwise the first small batch would decide β alone.
PRIOR_SAMPLES = 30.0
# The gradient's average starts at zero as well, which counts as more samples: an average over few
# samples would push all features in one wrong direction.
GRADIENT_PRIOR_SAMPLES = 300.0
# The mean square of a feature's gradient may differ by this factor from its running average. A
# larger change means that the scale of the loss has changed.
USUAL_CHANGE = 1.4
# In a batch of n rows, sampling noise alone explains a factor of exp(NOISE / √n).
NOISE = 4.0


class PMDN(MetadataLayer):
    """Metadata normalisation whose coefficients are learned on all samples (Vento et al., 2022).

    In training each forward pass moves β by one step of gradient descent on the penalty
    `½ ‖f − Rβ‖²` and returns `r = f − C β_C` with the new β:

        β ← β + η Rᵀ(f − Rβ),   η = min(1 / (min(samples, memory) + 30), 1 / λ_max(RᵀR))

    β is thus a running average over about `memory` samples, whatever the batch size. In evaluation
    β is constant.

    Args:
        design: A fitted design.
        shape: The shape of one sample's features. Axes of size 1 are shared; see `MetadataLayer`.
        gradient: "bilevel" lets the network's gradient account for β following the features, as
            the paper's Eq. 6 and 7 ask. "frozen" treats β as a constant, as Algorithm 1 does: where
            label and confounds are strongly associated, features then grow without bound.
        memory: The number of samples over which β averages. A short memory follows a network that
            learns fast, but is noisier. `float("inf")` suits features that do not change.
        step: A fixed η₁ for the mean penalty instead of the average. With `gradient="frozen"` this
            is Algorithm 1 with plain SGD for β, except for the order of several layers.

    Example:
        >>> import torch, deconfound as dc
        >>> table = {"age": [61.5, 70.2, 78.9, 55.4]}
        >>> design = dc.Design(confounds=["age"]).fit(table)
        >>> layer = dc.PMDN(design, 1)
        >>> features = 0.5 * torch.tensor(table["age"])[:, None] + 3
        >>> for _ in range(800):  # each forward pass in training mode also learns
        ...     residual = layer(features, design.encode(table))
        >>> residual.ravel().round(decimals=2)  # the effect of age is gone, the mean stays
        tensor([36.2500, 36.2500, 36.2500, 36.2500])
        >>> layer.eval()(features[:1], design.encode({"age": [61.5]})).round(decimals=2)
        tensor([[36.2500]])
    """

    samples: Tensor
    cross_moment: Tensor
    mean_square: Tensor

    def __init__(
        self,
        design: Design,
        shape: int | Sequence[int],
        *,
        gradient: Literal["bilevel", "frozen"] = "bilevel",
        memory: float = 250.0,
        step: float | None = None,
    ) -> None:
        super().__init__(design, shape)
        if gradient not in ("bilevel", "frozen"):
            raise OptionError(f"gradient must be 'bilevel' or 'frozen', got {gradient!r}.")
        if not memory >= 1:
            raise OptionError(f"memory must be a number of samples, 1 or more, got {memory!r}.")
        if step is not None and not 0 < step <= 1:
            raise OptionError(f"step must lie between 0 and 1, got {step!r}.")
        self.gradient = gradient
        self.memory = memory
        self.step = step
        q, d = self._size
        self.register_buffer("beta", torch.zeros(q, d))
        self.register_buffer("samples", torch.zeros(1))
        self.register_buffer("cross_moment", torch.zeros(self.to_confounds.shape[1], d))
        self.register_buffer("mean_square", torch.zeros(d))

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        if self._may_learn:
            self._descend(self.pool(x.detach()), batch)  # line 6
        if self.gradient == "frozen" or not self.is_updating:
            return self.subtract_effect(x, batch.confounds)  # line 8
        residual: Tensor = BilevelResidual.apply(x, self, batch)
        return residual

    @torch.no_grad()
    def _descend(self, features: Tensor, batch: WhitenedBatch) -> None:
        """Take line 6 on features `(n, d)`. A feature that is not finite keeps its coefficients."""
        cross = batch.cross(features)
        if self.step is not None:
            beta = descend_penalty(self.beta, cross, batch, self.step)
        else:
            samples = self.samples.clamp(max=self.memory) + batch.rows
            beta = average_over_samples(self.beta, cross, batch, samples)
        is_finite = beta.isfinite().all(0)
        self.beta.copy_(torch.where(is_finite, beta, self.beta))
        self.samples.add_(batch.rows)
        self._count_skip(is_finite.all())

    def samples_with(self, batch: WhitenedBatch) -> Tensor:
        """Return the samples in memory including this batch, which `samples` counts already."""
        return (self.samples - batch.rows).clamp(0, self.memory) + batch.rows


def penalty_descent(beta: Tensor, cross: Tensor, batch: WhitenedBatch) -> Tensor:
    """Return RᵀW(f − Rβ), the negative gradient of the penalty ½ ‖f − Rβ‖², shape `(q, d)`.

    Args:
        beta: β, shape `(q, d)`.
        cross: RᵀWf, shape `(q, d)`.
        batch: The metadata of the same rows.
    """
    return torch.addmm(cross, batch.gram, beta, alpha=-1)


def descend_penalty(beta: Tensor, cross: Tensor, batch: WhitenedBatch, step: float) -> Tensor:
    """Take line 6 with a fixed step size η₁ for the mean penalty over rows."""
    return beta + step / batch.rows.clamp(min=1) * penalty_descent(beta, cross, batch)


def average_over_samples(
    beta: Tensor, cross: Tensor, batch: WhitenedBatch, samples: Tensor
) -> Tensor:
    """Take line 6 with the step size that makes β a running average over samples.

    For whitened metadata the mean of RᵀR is the identity, so that a step of 1 / samples for each
    row averages the rows' own estimates of β.

    Args:
        beta: β, shape `(q, d)`.
        cross: RᵀWf, shape `(q, d)`.
        batch: The metadata of the same rows.
        samples: The samples in memory, including this batch.
    """
    samples = samples.clamp(min=1)
    descent = penalty_descent(beta, cross, batch)
    # The intercept moves first, and without a prior; the others descend from there. Otherwise a
    # small batch would credit a large feature mean to the confounds.
    intercept_step = descent[-1] / samples
    descent = torch.addr(descent, batch.gram[:, -1], intercept_step, alpha=-1)
    # A rare site has a large λ_max, so that the averaging step alone could overshoot.
    rate = torch.minimum(1 / (samples + PRIOR_SAMPLES), batch.max_step)
    updated = torch.addcmul(beta, rate, descent)
    updated[-1] = beta[-1] + intercept_step
    return updated


class BilevelResidual(torch.autograd.Function):
    """Return f − C β_C, with a gradient that knows that β follows the features (Eq. 6 and 7).

    For whitened metadata β_C = E[z_C f]. A feature f_j therefore changes the loss directly and
    through β. With g = ∂L/∂r:

        ∂L/∂f_j = g_j − z_jᵀ S / n,   S = E[C · n g]

    Line 9 keeps the first term only. The gradient along the confounds then never vanishes where
    label and confounds are associated, although the layer removes whatever the network adds in
    that direction: features grow, β chases them, and training collapses.

    S belongs to the whole distribution, so that backward averages it over batches, like β.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: PMDN, batch: WhitenedBatch) -> Tensor:
        """Subtract C β_C."""
        ctx.layer, ctx.batch = layer, batch
        return layer.subtract_effect(x, batch.confounds)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Add to the gradient what reaches the features through β."""
        layer, batch = ctx.layer, ctx.batch
        with full_precision(gradient.device.type):
            summed = gradient.sum_to_size(gradient.shape[0], *layer.shape).flatten(1)
            follow_gradient(layer, summed, batch)
            z_confounds = batch.weighted[:, : batch.confounds.shape[1]]
            # A shared coefficient follows the mean of its positions, so that each position
            # receives its part of the mean's gradient.
            positions = gradient[0].numel() // summed.shape[1]
            scale = 1 / (gradient.shape[0] * positions)
            total = subtract_effect(gradient, z_confounds, layer.cross_moment, layer.shape, scale)
        return total, None, None


def follow_gradient(layer: PMDN, gradient: Tensor, batch: WhitenedBatch) -> None:
    """Move the running averages of C · n g and of (n g)² by one batch of gradients g `(n, d)`.

    A mean loss divides each row's gradient by n, so that n g has the same size at every batch size.
    """
    n = gradient.shape[0]
    new_cross, new_square = average_over_processes(
        n, batch.confounds.T @ gradient, n * gradient.square().sum(0)
    )
    share = batch.rows / (layer.samples_with(batch) + GRADIENT_PRIOR_SAMPLES)
    cross_moment, mean_square = average_gradient(
        layer.cross_moment, layer.mean_square, new_cross, new_square, batch.rows, share
    )
    layer.cross_moment.copy_(cross_moment)
    layer.mean_square.copy_(mean_square)


def average_gradient(
    cross_moment: Tensor,
    mean_square: Tensor,
    new_cross: Tensor,
    new_square: Tensor,
    rows: Tensor,
    share: Tensor,
) -> tuple[Tensor, Tensor]:
    """Average gradients whose scale may change at any step, feature by feature.

    A new weight of the loss or a GradScaler multiplies all gradients by a factor. The old average
    is then multiplied by the same factor at once, instead of fading out over many batches.

    Args:
        cross_moment: The average S so far, shape `(q_C, d)`.
        mean_square: The average of squared gradients so far, shape `(d,)`; 0 before the first.
        new_cross: S of this batch.
        new_square: The mean squared gradient of this batch.
        rows: The number of rows in this batch.
        share: The share of this batch in the new averages.

    Returns:
        The new averages. A feature whose gradient is not finite keeps the old ones.
    """
    ratio = new_square / mean_square
    largest_ratio = (2 * NOISE / rows.sqrt()).clamp(min=2 * math.log(USUAL_CHANGE)).exp()
    is_usual = (ratio < largest_ratio) & (ratio * largest_ratio > 1)
    # A gradient of zero, behind a ReLU that is off, says nothing about the scale of the loss.
    is_dead = new_square == 0
    keeps_scale = is_usual | is_dead | (mean_square == 0)
    rescaled = cross_moment * torch.where(keeps_scale, 1.0, ratio).sqrt()
    averaged_cross = torch.lerp(rescaled, new_cross, share)
    other_square = torch.where(is_dead, mean_square, new_square)
    averaged_square = torch.where(
        is_usual, torch.lerp(mean_square, new_square, share), other_square
    )
    is_finite = new_square.isfinite()
    return (
        torch.where(is_finite, averaged_cross, cross_moment),
        torch.where(is_finite, averaged_square, mean_square),
    )
