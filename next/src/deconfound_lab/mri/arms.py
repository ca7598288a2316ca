"""The 3D network of the MRI experiment, and the ways in which it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from deconfound.errors import OptionError

HIDDEN = (128, 16)
FILTERS = (16, 32, 64, 32)


class MRINet(nn.Module):
    """The paper's network: a 3D ResNet of four blocks, then FC-ReLU-FC-ReLU-FC.

    The paper gives 3, 6, 9 and 6 filters and a flattened size of 2,048. At 64³ voxels both cannot
    hold: 6 channels of 4³ are 384. The default keeps the 2,048, with 32 channels in the last block;
    `filters=(3, 6, 9, 6)` is the other reading.

    Args:
        size: The number of voxels along each axis, a multiple of 2 for each block.
        filters: The channels of each block.
        norm: "none", "batch" or "layer": what stands at `norm1` and `norm2`, after the two
            FC-ReLUs. Layers that are attached there come after it.

    Example:
        >>> network = MRINet(norm="batch")
        >>> network.fc1.in_features
        2048
        >>> network(torch.zeros(2, 1, 64, 64, 64)).shape
        torch.Size([2, 2])
    """

    def __init__(
        self, size: int = 64, filters: Sequence[int] = FILTERS, norm: str = "none"
    ) -> None:
        super().__init__()
        if size % 2 ** len(filters):
            raise OptionError(f"size must be a multiple of {2 ** len(filters)}; got {size}.")
        pairs = zip((1, *filters), filters, strict=False)
        self.blocks = nn.Sequential(*(ResidualBlock(*channels) for channels in pairs))
        self.fc1 = nn.Linear(filters[-1] * (size // 2 ** len(filters)) ** 3, HIDDEN[0])
        self.relu1 = nn.ReLU()
        self.norm1 = make_norm(norm, HIDDEN[0])
        self.fc2 = nn.Linear(*HIDDEN)
        self.relu2 = nn.ReLU()
        self.norm2 = make_norm(norm, HIDDEN[1])
        self.fc3 = nn.Linear(HIDDEN[1], 2)

    def forward(self, scans: Tensor) -> Tensor:
        """Return logits of HIV and impairment `(n, 2)` from scans `(n, 1, size, size, size)`."""
        features = self.blocks(scans).flatten(1)
        features = self.norm1(self.relu1(self.fc1(features)))
        features = self.norm2(self.relu2(self.fc2(features)))
        logits: Tensor = self.fc3(features)
        return logits


class ResidualBlock(nn.Module):
    """Two convolutions of 3³ around a shortcut; the first one and the shortcut halve the volume."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(channels, filters, 3, stride=2, padding=1)
        self.conv2 = nn.Conv3d(filters, filters, 3, padding=1)
        self.shortcut = nn.Conv3d(channels, filters, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Return features `(n, filters, e / 2, e / 2, e / 2)` from `(n, channels, e, e, e)`."""
        return torch.relu(self.conv2(torch.relu(self.conv1(x))) + self.shortcut(x))


def make_norm(norm: str, features: int) -> nn.Module:
    """Return a norm of flat features."""
    kinds: dict[str, Callable[[int], nn.Module]] = {
        "none": nn.Identity,
        "batch": nn.BatchNorm1d,
        "layer": nn.LayerNorm,
    }
    if norm not in kinds:
        raise OptionError(f"norm must be one of {', '.join(map(repr, kinds))}; got {norm!r}.")
    return kinds[norm](features)


@dataclass(frozen=True)
class Arm:
    """One way of training the network.

    Attributes:
        title: What tables call it.
        method: A method of `deconfound.methods.make_method`.
        at: The modules to which it attaches.
        options: Options of the method.
        norm: What stands after each FC-ReLU, before the layer of the method.
        is_refitted: Whether coefficients are refitted to the validation people before the best
            epoch is chosen. The published methods are not.
        is_balanced: Whether people have overlap weights, under which each label is independent of
            the confounds.
        is_oracle: Whether it learns from as many other people whose labels are independent of the
            confounds: what a method can hope for.
    """

    title: str
    method: str = "none"
    at: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    norm: str = "none"
    is_refitted: bool = True
    is_balanced: bool = False
    is_oracle: bool = False


# The paper's places: after each FC-ReLU, and after the last FC.
AFTER_RELU = ("norm1", "norm2", "fc3")
BEFORE_RELU = ("fc1", "fc2", "fc3")
BLOCKS_TOO = ("blocks.0", "blocks.1", "blocks.2", "blocks.3", *BEFORE_RELU)
LITERAL = "deconfound_lab.baselines:LiteralPMDN"

# The weight of the adversary, β's learning rate, and the places of our PMDN, MDN and R-MDN have the
# least validation loss under balance on a cohort of another seed (release 0.2).
ADVERSARY = {"weight": 0.2, "warmup": 100}
ARMS = {
    "plain": Arm("Baseline"),
    "batchnorm": Arm("BN", norm="batch"),
    "adversarial": Arm("Adversarial", "adversarial", ("blocks",), ADVERSARY),
    "mdn": Arm("MDN", "mdn", AFTER_RELU),
    "pmdn-literal": Arm(
        "PMDN, published", LITERAL, AFTER_RELU, {"beta_rate": 0.045}, "layer", is_refitted=False
    ),
    "pmdn": Arm("PMDN", "pmdn", BLOCKS_TOO),
    "pmdn-before": Arm("PMDN before each ReLU", "pmdn", BEFORE_RELU),
    "pmdn-after": Arm("PMDN after each ReLU", "pmdn", AFTER_RELU),
    "mdn-before": Arm("MDN before each ReLU", "mdn", BEFORE_RELU),
    "rmdn": Arm("R-MDN before each ReLU", "rmdn", BEFORE_RELU),
    "plain-balanced": Arm("Baseline, balanced", is_balanced=True),
    "adversarial-balanced": Arm(
        "Adversarial, balanced", "adversarial", ("blocks",), ADVERSARY, is_balanced=True
    ),
    "mdn-balanced": Arm("MDN before each ReLU, balanced", "mdn", BEFORE_RELU, is_balanced=True),
    "rmdn-balanced": Arm("R-MDN before each ReLU, balanced", "rmdn", BEFORE_RELU, is_balanced=True),
    "pmdn-balanced": Arm("PMDN, balanced", "pmdn", BLOCKS_TOO, is_balanced=True),
    "oracle": Arm("Oracle", is_oracle=True),
}
# The arms of Table 2: the paper's five, and ours.
TABLE_ARMS = ("plain", "batchnorm", "adversarial", "mdn", "pmdn-literal", "pmdn")
