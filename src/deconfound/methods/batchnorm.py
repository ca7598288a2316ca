"""`batchnorm`: BatchNorm at the same places, a normalisation that knows nothing of the confounds."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from deconfound.errors import ShapeError
from deconfound.methods.base import Method, Setting
from deconfound.surgery import Place, insert_norms


@final
class BatchNormMethod(Method):
    """BatchNorm where the other methods put their layers (Ioffe & Szegedy 2015).

    A last batch of one sample, which has no spread, is normalised by the running statistics.

    Args:
        network: Any module.
        setting: The problem.
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

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(x)
        return logits


class ChannelNorm(nn.Module):
    """BatchNorm of each channel over samples and positions, whatever the shape of the features."""

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
        out: Tensor = self._one(flat) if self.training and flat[:, 0].numel() == 1 else self.norm(flat)
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
