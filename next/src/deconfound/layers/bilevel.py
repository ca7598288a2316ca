"""The gradient of PMDN's bi-level problem: a feature changes the loss also through β.

The paper's Eq. 6 and 7 minimise the task loss over the network under the constraint that β is the
minimiser of the penalty. Line 9 of Algorithm 1 leaves the constraint out: β is a constant there.
The gradient along the confounds then never vanishes where label and confounds are associated,
although the layer removes whatever the network adds in that direction: features grow, β follows
them, and training collapses.

For whitened metadata β_C = E[z_C f]. A feature f_j therefore changes the loss directly and through
β. With g = ∂L/∂r, row weights w, and means over a batch of n rows with Σw = W:

    ∂L/∂f_j = g_j − w_j z_jᵀ S / W,   S = E[C · n g]

S belongs to the whole distribution, so that backward averages it over batches, like β.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deconfound.layers.arithmetic import positive, subtract_effect
from deconfound.layers.batch import WhitenedBatch
from deconfound.layers.environment import average_over_processes, full_precision, world_size

if TYPE_CHECKING:
    from deconfound.layers.pmdn import PMDN

# S = 0 counts as this many samples, more than for β: an average over few samples would push all
# features in one wrong direction.
GRADIENT_PRIOR_SAMPLES = 300.0
# The root mean square of a feature's gradient may differ by this factor from its running average. A
# larger change means that the scale of the loss has changed.
USUAL_CHANGE = 1.4
# In a batch of n rows, sampling noise alone explains a factor of exp(NOISE / √n).
NOISE = 4.0


def subtract_bilevel(layer: PMDN, x: Tensor, batch: WhitenedBatch) -> Tensor:
    """Return x − C β_C, whose gradient accounts for β following the features."""
    residual: Tensor = _BilevelResidual.apply(x, layer, batch)
    return residual


class _BilevelResidual(torch.autograd.Function):
    """Subtract C β_C in forward, and add to the gradient what reaches features through β."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: PMDN, batch: WhitenedBatch) -> Tensor:
        ctx.layer, ctx.batch = layer, batch
        return layer.subtract_effect(x, batch.confounds)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        layer, batch = ctx.layer, ctx.batch
        with full_precision(gradient.device.type):
            summed = gradient.sum_to_size(gradient.shape[0], *layer.shape).flatten(1)
            follow_gradient(layer, summed, batch)
            # z_C times the row weight over the processes' Σw; the other processes' rows are no
            # part of this process's loss, but share its β.
            rows = positive(batch.rows) / world_size()
            weighted = batch.weighted[:, : batch.confounds.shape[1]] / rows
            # A shared coefficient follows the mean of its positions, so that each position
            # receives its part of the mean's gradient.
            scale = summed.shape[1] / gradient[0].numel()
            total = subtract_effect(gradient, weighted, layer.cross_moment, layer.shape, scale)
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
    # Behind a ReLU that is off the gradient is zero, whatever the scale of the loss.
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
