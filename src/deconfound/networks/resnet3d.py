"""The 3D residual network of the paper's MRI experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from deconfound.errors import OptionError

Halving = Literal["pool", "stride"]


class ResNet3D(nn.Module):
    """Four residual blocks, each halving the image, then fully connected layers; ReLU between.

    The paper puts its normalisation after each fully connected layer's ReLU and after the last layer:
    `at=["relu1", "relu2", "fc3"]`. Its text gives 3, 6, 9 and 6 filters and a flattened size of 2048, which cannot both
    hold: 6 channels on 4³ are 384. The default keeps the 2048, with 32 channels last; `filters=(3, 6, 9, 6)` is the
    other reading. Nor does the text say how a block halves the image: a pool after it sees every voxel at full
    resolution, a stride in its first convolution costs an eighth and is what residual networks usually do.

    Args:
        size: Edge of the cubic image; a multiple of 16.
        filters: Channels after each block.
        hidden: Widths of the fully connected layers before the output.
        outputs: Number of logits.
        channels: Channels of the image.
        halving: "pool" after each block, or "stride" in its first convolution and its shortcut.

    Example:
        >>> import torch
        >>> network = ResNet3D()
        >>> network.fc1.in_features
        2048
        >>> network(torch.randn(1, 1, 64, 64, 64)).shape
        torch.Size([1, 2])
    """

    def __init__(
        self,
        size: int = 64,
        filters: Sequence[int] = (16, 32, 64, 32),
        hidden: tuple[int, int] = (128, 16),
        outputs: int = 2,
        channels: int = 1,
        halving: Halving = "pool",
    ) -> None:
        super().__init__()
        if halving not in ("pool", "stride"):
            raise OptionError(f"halving must be 'pool' or 'stride'; got {halving!r}.")
        edge = size // 2 ** len(filters)
        blocks = [ResidualBlock3D(a, b, halving) for a, b in zip((channels, *filters), filters, strict=False)]
        self.blocks = nn.Sequential(*blocks)
        self.fc1 = nn.Linear(filters[-1] * edge**3, hidden[0])
        self.relu1 = nn.ReLU()
        self.fc2 = nn.Linear(*hidden)
        self.relu2 = nn.ReLU()
        self.fc3 = nn.Linear(hidden[1], outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `(n, outputs)` of images `(n, channels, size, size, size)`."""
        x = self.blocks(images).flatten(1)
        x = self.relu1(self.fc1(x))
        x = self.relu2(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


class ResidualBlock3D(nn.Module):
    """`pool(relu(conv(relu(conv(x))) + project(x)))`: two 3³ convolutions around a shortcut, then a halving.

    With a stride, the first convolution and the shortcut halve instead of the pool.
    """

    def __init__(self, channels: int, filters: int, halving: Halving = "pool") -> None:
        super().__init__()
        stride = 2 if halving == "stride" else 1
        self.conv1 = nn.Conv3d(channels, filters, 3, stride, padding=1)
        self.conv2 = nn.Conv3d(filters, filters, 3, padding=1)
        self.project = nn.Conv3d(channels, filters, 1, stride)
        self.pool = nn.MaxPool3d(2) if halving == "pool" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """`(n, channels, e, e, e)` to `(n, filters, e/2, e/2, e/2)`."""
        inner = self.conv2(torch.relu(self.conv1(x)))
        halved: Tensor = self.pool(torch.relu(inner + self.project(x)))
        return halved
