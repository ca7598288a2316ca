"""The CNN of the paper's synthetic experiment."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
