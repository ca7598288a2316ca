"""What the MRI experiment trains: the paper's arms and one of our own, and how much of it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from deconfound.errors import OptionError
from deconfound.networks import Halving

PAPER_PLACES = ("relu1", "relu2", "fc3")
"""After each fully connected layer's ReLU, and after the last layer."""


@dataclass(frozen=True)
class Arm:
    """One column of Table 2.

    Attributes:
        title: As in the table.
        method: Of `deconfound.methods`.
        at: Where it acts in the 3D ResNet.
        options: Of the method.
        layer_norm: Modules after which a LayerNorm stands, before the method's layer.
        oracle: Whether it is trained on people in whom the labels are independent of the confounds: as many, for as
            many steps. What it reaches on the independent people is what a method can hope for.
    """

    title: str
    method: str
    at: tuple[str, ...] = PAPER_PLACES
    options: dict[str, Any] = field(default_factory=dict)
    layer_norm: tuple[str, ...] = ()
    oracle: bool = False


ARMS = {
    "baseline": Arm("Baseline", "none"),
    "bn": Arm("BN", "batchnorm", at=("relu1", "relu2")),
    # At weight 1, or from the first step on, the heads win before the network learns: see docs/results/mri-setup.md.
    "adversarial": Arm("Adversarial", "adversarial", at=("blocks",), options={"weight": 0.05, "warmup": 100}),
    "mdn": Arm("MDN", "mdn"),
    "rmdn": Arm("R-MDN", "rmdn"),
    "pmdn-paper": Arm("PMDN (paper)", "pmdn-alternating", options={"layer_norm": False}, layer_norm=("relu1", "relu2")),
    # After a ReLU a silent unit is −Cβ: the confounds themselves. Before it there is nothing to give them away.
    "pmdn": Arm("PMDN (ours)", "pmdn", at=("fc1", "fc2", "fc3")),
    "pmdn-after": Arm("PMDN (ours, after ReLU)", "pmdn"),
    "oracle": Arm("Oracle", "none", oracle=True),
}


@dataclass(frozen=True)
class Network:
    """The shape of the 3D ResNet.

    Attributes:
        size: Edge of the volumes.
        filters: Channels of the blocks.
        halving: How a block halves the image; see `ResNet3D`.
    """

    size: int
    filters: tuple[int, ...]
    halving: Halving


@dataclass(frozen=True)
class Plan:
    """How much is trained, and on what.

    Attributes:
        size: Edge of the volumes.
        people: Of the cohort; None for Table 1's 1,262.
        batch_sizes: One part of Table 2 each.
        folds: Into how many the cohort is divided.
        run_folds: How many of them are trained and tested on.
        arms: Names of `ARMS`.
        filters: Channels of the network's blocks.
        halving: How a block halves the image; see `ResNet3D`.
        epochs: The most epochs, unless these are fewer than `least_steps` steps.
        least_steps: So that a large batch, with few steps in an epoch, is not judged before it has learned.
        patience: Training stops after this share of the epochs without a better validation loss.
        lr: Learning rate at a batch of 20; it grows with the square root of the batch size.
        weight_decay: Of AdamW.
        gamma: Of the focal loss.
        seed: Of cohort, folds, networks and batches.
        anatomy: The cohort's base.
        bootstraps: For each interval of the correlations within groups.
        variant: Of the cohort, by its name; None for the paper's.
    """

    size: int = 64
    people: int | None = None
    batch_sizes: tuple[int, ...] = (20, 80, 160, 240)
    folds: int = 5
    run_folds: int = 5
    arms: tuple[str, ...] = tuple(name for name, arm in ARMS.items() if not arm.oracle)
    filters: tuple[int, ...] = (16, 32, 64, 32)
    halving: Halving = "stride"
    epochs: int = 30
    least_steps: int = 300
    patience: float = 0.25
    lr: float = 5e-4
    weight_decay: float = 1e-2
    gamma: float = 2.0
    seed: int = 0
    anatomy: str = "procedural"
    bootstraps: int = 200
    variant: str | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.arms if name not in ARMS]
        if unknown:
            raise OptionError(f"arms must be among {', '.join(ARMS)}; got {unknown[0]!r}.")
        if not 1 <= self.run_folds <= self.folds:
            raise OptionError(f"run_folds must lie between 1 and {self.folds}; got {self.run_folds}.")

    @property
    def network(self) -> Network:
        """What is trained."""
        return Network(self.size, self.filters, self.halving)

    def trainings(self) -> list[tuple[int, int, str]]:
        """Every training: batch size, fold and arm; the first fold of all comes first, so that parts compare."""
        folds = range(self.run_folds)
        return [(batch, fold, arm) for fold in folds for batch in self.batch_sizes for arm in self.arms]

    def epochs_for(self, batch_size: int, rows: int) -> int:
        """How many epochs a training on so many rows may have."""
        return max(self.epochs, math.ceil(self.least_steps / math.ceil(rows / batch_size)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        plain: dict[str, Any] = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        return plain


FULL = Plan()
QUICK = Plan(size=32, batch_sizes=(20,), run_folds=1, filters=(4, 8, 16, 8), epochs=10, patience=1.0, lr=1e-3)
