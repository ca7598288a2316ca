"""A small convolutional network for signals, images and volumes of any size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from torch import Tensor, nn

from deconfound.networks.arguments import Shape, check_arguments

# By the number of axes of a sample, which include the channels.
CONVOLUTIONS = {2: nn.Conv1d, 3: nn.Conv2d, 4: nn.Conv3d}
POOLS = {2: nn.MaxPool1d, 3: nn.MaxPool2d, 4: nn.MaxPool3d}


class ConvNet(nn.Module):
    """Blocks of convolution and pooling, the mean over all positions, and two linear layers.

    Each of `blocks.0`, `blocks.1`, … is a convolution of width 3, group normalisation, ReLU, and
    max-pooling that halves each axis. An axis of length 1 stays as it is. `head.fc` and `head.out`
    follow. Group normalisation treats each sample alone. Batch normalisation would mix the samples
    of a batch, and their confounds with them.

    Args:
        shape: Shape of one sample: `(channels, length)`, `(channels, height, width)` or
            `(channels, x, y, z)`. The network also reads samples of another size with the same
            number of channels.
        outputs: Number of logits.
        channels: Number of channels of each block.
        hidden: Width of `head.fc`.
        groups: Largest number of groups in which channels are normalised. Each block takes the
            largest number up to this one that divides its channels into groups of at least two.
        dropout: Probability with which a feature of `head.fc` is set to 0 in training.

    Example:
        >>> import torch
        >>> from deconfound.networks import ConvNet
        >>> ConvNet((3, 37, 50), 1)(torch.randn(2, 3, 37, 50)).shape
        torch.Size([2, 1])
        >>> ConvNet((12, 500), 4, channels=(8, 16))(torch.randn(2, 12, 500)).shape
        torch.Size([2, 4])
    """

    default_at: ClassVar[tuple[str, ...]] = ("head.fc", "head.out")

    def __init__(
        self,
        shape: Shape,
        outputs: int,
        *,
        channels: Sequence[int] = (16, 32, 64, 64),
        hidden: int = 64,
        groups: int = 8,
        dropout: float = 0.0,
    ) -> None:
        counts = {"outputs": outputs, "hidden": hidden, "groups": groups}
        check_arguments("A ConvNet", shape, [2, 3, 4], counts, {"channels": channels}, dropout)
        super().__init__()
        self.blocks, self.head = nn.Sequential(), nn.Sequential()
        sizes = [shape[0], *channels]
        for inputs, width in pairwise(sizes):
            self.blocks.append(_make_block(len(shape), inputs, width, groups))
        self.head.add_module("fc", nn.Linear(sizes[-1], hidden))
        self.head.add_module("relu", nn.ReLU())
        self.head.add_module("dropout", nn.Dropout(dropout))
        self.head.add_module("out", nn.Linear(hidden, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(n, outputs)` of samples `(n, channels, …)`."""
        positions = self.blocks(x).flatten(start_dim=2)
        logits: Tensor = self.head(positions.mean(dim=2))
        return logits


def _make_block(axes: int, inputs: int, channels: int, groups: int) -> nn.Sequential:
    # A group of one channel has a single number where all axes have length 1, and is always 0.
    largest = max(1, min(groups, channels // 2))
    divisors = [count for count in range(1, largest + 1) if channels % count == 0]
    return nn.Sequential(
        CONVOLUTIONS[axes](inputs, channels, 3, padding=1),
        nn.GroupNorm(divisors[-1], channels),
        nn.ReLU(),
        # ceil_mode keeps an axis of length 1, and the last position of an odd axis.
        POOLS[axes](2, ceil_mode=True),
    )
