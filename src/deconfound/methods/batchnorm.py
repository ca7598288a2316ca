"""`batchnorm`: BatchNorm at the same places, a normalisation that knows nothing of the confounds."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from deconfound.errors import ShapeError
from deconfound.methods.base import Criterion, Loss, Method, Setting, TrainingBatch
from deconfound.surgery import Place, insert_norms


@final
class BatchNormMethod(Method):
    """BatchNorm where the other methods put their layers (Ioffe & Szegedy 2015).

    A last batch of one sample, which has no spread, is normalised by the running statistics. Where rows have weights,
    means and variances are weighted.

    Args:
        momentum: Weight of the newest batch in the running statistics.
    """

    name: ClassVar[str] = "batchnorm"
    summary: ClassVar[str] = "BatchNorm at the same places"
    reads_confounds: ClassVar[bool] = False
    smallest_batch: ClassVar[int] = 2

    def __init__(self, network: nn.Module, setting: Setting, *, momentum: float = 0.1) -> None:
        super().__init__()
        self.model = network
        self.norms = insert_norms(network, setting.places(network), lambda place: ChannelNorm(place, momentum))

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """The task's loss, with the statistics of the batch under its weights."""
        norms = [norm for norm in self.norms.values() if isinstance(norm, ChannelNorm)]
        try:
            for norm in norms:
                norm.weight = batch.row_weight
            return super().loss(batch, criterion)
        finally:
            for norm in norms:
                norm.weight = None


class ChannelNorm(nn.Module):
    """BatchNorm of each channel over samples and positions, whatever the shape of the features.

    `weight` holds the weights of the rows for the length of one training forward.
    """

    weight: Tensor | None = None

    def __init__(self, place: Place, momentum: float) -> None:
        super().__init__()
        assert place.feature_shape is not None
        self.channel_axis = place.channel_axis if len(place.feature_shape) > 1 else 1
        channels = place.feature_shape[self.channel_axis % (len(place.feature_shape) + 1) - 1]
        assert channels is not None
        self.norm = nn.BatchNorm1d(channels, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        channels_second = x.movedim(self.channel_axis, 1)
        flat = channels_second.flatten(2) if x.ndim > 2 else x
        if self.training and flat[:, 0].numel() == 1:
            out: Tensor = self._one(flat)
        elif self.training and self.weight is not None:
            out = weighted_batch_norm(flat, self.weight, self.norm)
        else:
            out = self.norm(flat)
        return out.reshape(channels_second.shape).movedim(1, self.channel_axis)

    def _one(self, flat: Tensor) -> Tensor:
        """One value per channel: as in eval, if earlier batches have taught anything."""
        norm = self.norm
        if not norm.num_batches_tracked:
            raise ShapeError(
                "the batches of method 'batchnorm' must have at least 2 samples; got 1 before any larger one. "
                "Use a larger batch size, or a method that takes single samples (pmdn, rmdn)."
            )
        return torch.nn.functional.batch_norm(
            flat, norm.running_mean, norm.running_var, norm.weight, norm.bias, training=False, eps=norm.eps
        )


def weighted_batch_norm(flat: Tensor, weight: Tensor, norm: nn.BatchNorm1d) -> Tensor:
    """`(x − μ) / √(σ² + ε) · γ + b` with `μ = Σ w x / Σ w` and `σ² = Σ w (x − μ)² / Σ w`; running ones follow them.

    Of `flat`, `(n, channels)` or `(n, channels, positions)`. The running variance is unbiased for `(Σ w)² / Σ w²`
    effective rows. A batch without any weight counts evenly.
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    weight = weight.to(flat)
    weight = weight + (weight.sum() == 0)
    positions = flat[0, 0].numel()
    share = (weight / weight.sum() / positions).reshape(-1, *[1] * (flat.ndim - 1))
    axes = [axis for axis in range(flat.ndim) if axis != 1]
    mean = (share * flat).sum(axes, keepdim=True)
    centred = flat - mean
    variance = (share * centred.square()).sum(axes, keepdim=True)
    effective = weight.sum().square() / weight.square().sum() * positions
    with torch.no_grad():
        unbiased = variance.flatten() * effective / (effective - 1).clamp(min=1e-6)
        norm.running_mean.lerp_(mean.flatten().to(norm.running_mean), norm.momentum)
        norm.running_var.lerp_(
            torch.where(effective > 1, unbiased, variance.flatten()).to(norm.running_var), norm.momentum
        )
        norm.num_batches_tracked += 1
    return centred * (variance + norm.eps).rsqrt() * norm.weight.view_as(mean) + norm.bias.view_as(mean)
