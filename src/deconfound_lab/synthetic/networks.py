"""The networks that learn the synthetic images: the paper's CNN, one that reads rows in turn, one that attends."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from deconfound.networks import SyntheticCNN

_HIDDEN, _PATCH = 32, 8
_SCALE = 16.0
"""Pixels are at most a tenth; gates and attention learn from inputs near one."""


class _Sequence(nn.Module):
    """A sequence made of the image, what reads it, and the CNN's two fully connected layers."""

    def __init__(self, reader: nn.Module) -> None:
        super().__init__()
        self.reader = reader
        self.fc1 = nn.Linear(_HIDDEN, 84)
        self.fc2 = nn.Linear(84, 1)

    def head(self, features: Tensor) -> Tensor:
        logits: Tensor = self.fc2(torch.relu(self.fc1(features)))
        return logits.squeeze(1)


class RowReader(_Sequence):
    """A GRU that reads the 32 rows of an image in turn; its last output is classified."""

    def __init__(self) -> None:
        super().__init__(nn.GRU(32, _HIDDEN, batch_first=True))

    def forward(self, images: Tensor) -> Tensor:
        """Logits `(n,)` of images `(n, 1, 32, 32)`."""
        return self.head(self.reader(_SCALE * images[:, 0])[0][:, -1])


class PatchTransformer(_Sequence):
    """A transformer of two blocks over the 16 patches of an image; the mean of its outputs is classified."""

    def __init__(self) -> None:
        block = nn.TransformerEncoderLayer(_HIDDEN, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        super().__init__(nn.TransformerEncoder(block, 2, enable_nested_tensor=False))
        self.embed = nn.Linear(_PATCH**2, _HIDDEN)
        self.places = nn.Parameter(0.02 * torch.randn((32 // _PATCH) ** 2, _HIDDEN))

    def forward(self, images: Tensor) -> Tensor:
        """Logits `(n,)` of images `(n, 1, 32, 32)`."""
        patches = unfold(_SCALE * images, _PATCH, stride=_PATCH).transpose(1, 2)
        return self.head(self.reader(self.embed(patches) + self.places).mean(1))


NETWORKS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "cnn": (SyntheticCNN, ("conv1", "conv2", "fc1")),
    "gru": (RowReader, ("reader", "fc1")),
    "transformer": (PatchTransformer, ("reader.layers.0", "reader.layers.1", "fc1")),
}
"""Each with the places where methods act: each block's output, and the first fully connected layer before its ReLU."""
