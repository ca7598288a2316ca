"""Small convolutional networks: for images and signals of any size, and that of the paper's synthetic experiment."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_KINDS = {
    1: (nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d, nn.AdaptiveAvgPool1d),
    2: (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d),
}


class ConvNet(nn.Module):
    """Blocks of convolution, batch normalisation, ReLU and pooling; the mean over places; `fc1`, ReLU and `out`.

    Args:
        dims: 1 for signals, 2 for images.
        channels: Of a sample.
        outputs: Number of logits.
        filters: Channels after each block; each block halves the edges.
        hidden: Width of `fc1`.
        dropout: Share of the features of `fc1` that each training step leaves out.

    Example:
        >>> import torch
        >>> ConvNet(2, 3)(torch.randn(2, 3, 37, 50)).shape
        torch.Size([2, 1])
        >>> ConvNet(1, 12, outputs=4)(torch.randn(2, 12, 500)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        dims: int,
        channels: int,
        outputs: int = 1,
        filters: Sequence[int] = (16, 32, 64),
        hidden: int = 64,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        conv, norm, pool, average = _KINDS[dims]
        self.blocks = nn.Sequential(
            *(
                # With ceil_mode an edge of 1 stays.
                nn.Sequential(conv(a, b, 3, padding=1, bias=False), norm(b), nn.ReLU(), pool(2, ceil_mode=True))
                for a, b in zip((channels, *filters), filters, strict=False)
            )
        )
        self.pool = nn.Sequential(average(1), nn.Flatten())
        self.fc1 = nn.Linear((channels, *filters)[-1], hidden)
        self.relu1 = nn.ReLU()
        self.dropout1 = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `(n, outputs)` of samples `(n, channels, …)`."""
        logits: Tensor = self.out(self.dropout1(self.relu1(self.fc1(self.pool(self.blocks(x))))))
        return logits


class SyntheticCNN(nn.Module):
    """Two 5×5 convolutions (16 and 32 filters), a fully connected layer of 84, and one logit; ReLU between.

    The paper puts its normalisation before each of the three ReLUs: `at=["conv1", "conv2", "fc1"]`.

    Example:
        >>> import torch
        >>> SyntheticCNN()(torch.randn(2, 1, 32, 32)).shape
        torch.Size([2])
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5)
        self.conv2 = nn.Conv2d(16, 32, 5)
        self.fc1 = nn.Linear(32 * 24 * 24, 84)
        self.fc2 = nn.Linear(84, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `(n,)` of images `(n, 1, 32, 32)`."""
        x = torch.relu(self.conv1(images))
        x = torch.relu(self.conv2(x))
        x = torch.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits.squeeze(1)
