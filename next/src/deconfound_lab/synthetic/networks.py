"""The networks that learn the synthetic images: the paper's CNN, a GRU and a transformer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from deconfound.errors import OptionError

HIDDEN, PATCH = 32, 8
# The ReLU of the first fully connected layer, in each network. What it receives, the layer's output
# after normalisation, is what the paper measures.
MEASURED_BEFORE = "last_relu"
# Pixels are at most a tenth. Gates and attention learn from inputs near one.
PIXEL_SCALE = 16.0


class SyntheticCNN(nn.Module):
    """The paper's CNN: two convolutions, two fully connected layers, and a norm before each ReLU.

    Args:
        norm: "none", "batch" or "layer": what stands at `norm1`, `norm2` and `norm3`. Methods
            attach their layers to these modules, so that they stand before the ReLU as well, and
            after a LayerNorm, as published.
    """

    default_at = ("norm1", "norm2", "norm3")

    def __init__(self, norm: str = "none") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5)
        self.norm1 = make_norm(norm, 16, 28, 28)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(16, 32, 5)
        self.norm2 = make_norm(norm, 32, 24, 24)
        self.relu2 = nn.ReLU()
        self.fc1 = nn.Linear(32 * 24 * 24, 84)
        self.norm3 = make_norm(norm, 84)
        self.last_relu = nn.ReLU()
        self.fc2 = nn.Linear(84, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `(n, 1)` of images `(n, 1, 32, 32)`."""
        features = self.relu1(self.norm1(self.conv1(images)))
        features = self.relu2(self.norm2(self.conv2(features)))
        features = self.last_relu(self.norm3(self.fc1(features.flatten(1))))
        logits: Tensor = self.fc2(features)
        return logits


class RowReader(nn.Module):
    """A GRU that reads the 32 rows of an image in turn; its last output is classified."""

    default_at = ("reader", "fc1")

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.GRU(32, HIDDEN, batch_first=True)
        self.fc1 = nn.Linear(HIDDEN, 84)
        self.last_relu = nn.ReLU()
        self.fc2 = nn.Linear(84, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `(n, 1)` of images `(n, 1, 32, 32)`."""
        outputs, _ = self.reader(PIXEL_SCALE * images[:, 0])
        logits: Tensor = self.fc2(self.last_relu(self.fc1(outputs[:, -1])))
        return logits


class PatchTransformer(nn.Module):
    """A transformer of two blocks over 16 patches of an image; its mean output is classified."""

    default_at = ("blocks.layers.0", "blocks.layers.1", "fc1")

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(
            HIDDEN, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True, norm_first=True
        )
        self.embed = nn.Linear(PATCH**2, HIDDEN)
        self.positions = nn.Parameter(0.02 * torch.randn((32 // PATCH) ** 2, HIDDEN))
        self.blocks = nn.TransformerEncoder(block, num_layers=2, enable_nested_tensor=False)
        self.fc1 = nn.Linear(HIDDEN, 84)
        self.last_relu = nn.ReLU()
        self.fc2 = nn.Linear(84, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `(n, 1)` of images `(n, 1, 32, 32)`."""
        patches = functional.unfold(PIXEL_SCALE * images, PATCH, stride=PATCH).transpose(1, 2)
        features = self.blocks(self.embed(patches) + self.positions).mean(dim=1)
        logits: Tensor = self.fc2(self.last_relu(self.fc1(features)))
        return logits


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "cnn": SyntheticCNN,
    "gru": RowReader,
    "transformer": PatchTransformer,
}


def make_norm(norm: str, *shape: int) -> nn.Module:
    """Return a norm of features of this shape: "none", "batch" or "layer"."""
    if norm == "none":
        return nn.Identity()
    if norm == "layer":
        return nn.LayerNorm(shape)
    if norm == "batch":
        return nn.BatchNorm2d(shape[0]) if len(shape) == 3 else nn.BatchNorm1d(shape[0])
    raise OptionError(f"norm must be 'none', 'batch' or 'layer'; got {norm!r}.")
