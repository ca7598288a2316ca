"""Small convolutional networks for images and signals of any size."""

from __future__ import annotations

from collections.abc import Sequence

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
