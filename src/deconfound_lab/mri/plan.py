"""What the MRI experiment trains: the paper's arms and one of our own, and how much of it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from deconfound.errors import OptionError
from deconfound.networks import Halving

PAPER_PLACES = ("relu1", "relu2", "fc3")
"""After each fully connected layer's ReLU, and after the last layer."""

BLOCKS = tuple(f"blocks.{number}" for number in range(4))


@dataclass(frozen=True)
class Arm:
    """One column of Table 2.

    Attributes:
        title: As in the table.
        method: Of `deconfound.methods`.
        at: Where it acts in the 3D ResNet.
        options: Of the method.
        layer_norm: Modules after which a LayerNorm stands, before the method's layer.
        balanced: Whether people are weighted so that each label is independent of the confounds (overlap weights).
        oracle: Whether it is trained on people in whom the labels are independent of the confounds: as many, for as
            many steps. What it reaches on the independent people is what a method can hope for.
    """

    title: str
    method: str
    at: tuple[str, ...] = PAPER_PLACES
    options: dict[str, Any] = field(default_factory=dict)
    layer_norm: tuple[str, ...] = ()
    balanced: bool = False
    oracle: bool = False


_AFTER, _BEFORE = PAPER_PLACES, ("fc1", "fc2", "fc3")
_BN = Arm("BN", "batchnorm", at=_AFTER[:2])
# Without a warm-up the heads win before the network has learned anything.
_ADVERSARIAL = Arm("Adversarial", "adversarial", at=("blocks",), options={"weight": 0.05, "warmup": 100})
_PUBLISHED = Arm("PMDN (paper)", "pmdn-alternating", options={"layer_norm": False}, layer_norm=_AFTER[:2])
_MDN, _RMDN, _OURS = Arm("MDN", "mdn"), Arm("R-MDN", "rmdn"), Arm("PMDN (ours)", "pmdn", at=_BEFORE)
SEARCHED: dict[str, dict[str, Arm]] = {
    "bn": {"after ReLU": _BN, "before ReLU": replace(_BN, at=_BEFORE[:2]), "blocks": replace(_BN, at=("blocks",))},
    "adversarial": {
        f"weight {w:g}": replace(_ADVERSARIAL, options={"weight": w, "warmup": 100}) for w in (0.05, 0.2, 1)
    },
    "mdn": {
        "after ReLU": _MDN,
        "before ReLU": replace(_MDN, at=_BEFORE),
        "blocks too": replace(_MDN, at=(*BLOCKS, *_BEFORE)),
    },
    "rmdn": {
        "after ReLU": _RMDN,
        "before ReLU": replace(_RMDN, at=_BEFORE),
        "before ReLU, forgetting 0.99": replace(_RMDN, at=_BEFORE, options={"forgetting": 0.99}),
    },
    "pmdn-paper": {
        "after ReLU": _PUBLISHED,
        "after ReLU, beta_lr 0.045": replace(_PUBLISHED, options={"layer_norm": False, "beta_lr": 0.045}),
        "before ReLU": replace(_PUBLISHED, at=_BEFORE, layer_norm=_BEFORE[:2]),
    },
    "pmdn": {
        "before ReLU": _OURS,
        "after ReLU": replace(_OURS, at=_AFTER),
        "blocks too": replace(_OURS, at=(*BLOCKS, *_BEFORE)),
    },
    "dependence": {
        f"weight {weight:g}": Arm("Dependence", "dependence", at=("fc1", "fc2"), options={"weight": weight})
        for weight in (0.3, 1, 3)
    },
    "erase": {
        "before ReLU": Arm("Erase", "erase", at=_BEFORE),
        "after ReLU": Arm("Erase", "erase", at=_AFTER),
        "the ResNet's output": Arm("Erase", "erase", at=("blocks",)),
    },
}
"""Three candidates of each method, the same budget for all; places are tried, since a rival may be better elsewhere."""

CHOSEN = {
    "bn": "after ReLU",
    "adversarial": "weight 0.2",
    "mdn": "before ReLU",
    "rmdn": "before ReLU",
    "pmdn-paper": "after ReLU, beta_lr 0.045",
    "pmdn": "blocks too",
    "dependence": "weight 3",
    "erase": "the ResNet's output",
}
"""Of each method the least validation loss under balance, on a cohort of another seed: docs/results/mri/search.json."""

_ARMS = {
    "baseline": Arm("Baseline", "none"),
    **{name: SEARCHED[name][candidate] for name, candidate in CHOSEN.items()},
    # After a ReLU a silent unit is −Cβ: the confounds themselves. Before it there is nothing to give them away.
    **{
        f"pmdn-{place}": replace(SEARCHED["pmdn"][candidate], title=f"PMDN (ours, {candidate})")
        for place, candidate in (("before", "before ReLU"), ("after", "after ReLU"), ("blocks", "blocks too"))
        if candidate != CHOSEN["pmdn"]
    },
}
ARMS = {
    **_ARMS,
    **{f"{name}-balanced": replace(arm, title=f"{arm.title}, balanced", balanced=True) for name, arm in _ARMS.items()},
    **{f"{name}: {candidate}": arm for name, tried in SEARCHED.items() for candidate, arm in tried.items()},
    "oracle": Arm("Oracle", "none", oracle=True),
}
"""All there are, each also with weights; `oracle` is what a method can hope for."""

# At every weight that the search tried, `dependence` says nothing about the labels: it is not trained further.
PAPER = tuple(name for name in _ARMS if name != "dependence")
_WEIGHTED = tuple(f"{name}-balanced" for name in ("baseline", "adversarial", "mdn", "rmdn", "pmdn", "erase"))
EVERY = ("oracle", *PAPER, *_WEIGHTED)
CENTRAL = ("baseline", "pmdn-paper", "pmdn", "pmdn-balanced")
"""The arms that are trained at every batch size and in every fold: plain, published, ours."""


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
class Part:
    """Some arms at some batch sizes in the first so many folds.

    Attributes:
        arms: Names of `ARMS`.
        batch_sizes: One part of Table 2 each.
        folds: How many of the plan's folds are trained and tested on.
    """

    arms: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    folds: int


@dataclass(frozen=True)
class Plan:
    """How much is trained, and on what.

    Attributes:
        size: Edge of the volumes.
        people: Of the cohort; None for Table 1's 1,262.
        parts: What is trained, in this order.
        folds: Into how many the cohort is divided.
        filters: Channels of the network's blocks.
        halving: How a block halves the image; see `ResNet3D`.
        epochs: The most epochs, unless these are fewer than `least_steps` steps.
        least_steps: So that a large batch, with few steps in an epoch, is not judged before it has learned.
        patience: Training stops after this share of the epochs without a better validation loss.
        lr: Learning rate at a batch of 20; it grows with the square root of the batch size.
        weight_decay: Of AdamW.
        gamma: Of the focal loss.
        seed: Of cohort and folds.
        start: Seed of networks and batches; None for `seed`.
        anatomy: The cohort's base.
        bootstraps: For each interval of the correlations within groups.
        variant: Of the cohort, by its name; None for the paper's.
    """

    size: int = 64
    people: int | None = None
    parts: tuple[Part, ...] = (
        Part(EVERY, (20, 160), 3),
        Part(CENTRAL, (20, 80, 160, 240), 5),
        Part(("bn", "adversarial", "mdn"), (80, 240), 1),  # what the paper's Table 2 and its t-SNE still ask for
    )
    folds: int = 5
    filters: tuple[int, ...] = (16, 32, 64, 32)
    halving: Halving = "stride"
    epochs: int = 30
    least_steps: int = 300
    patience: float = 0.25
    lr: float = 5e-4
    weight_decay: float = 1e-2
    gamma: float = 2.0
    seed: int = 0
    start: int | None = None
    anatomy: str = "procedural"
    bootstraps: int = 200
    variant: str | None = None

    def __post_init__(self) -> None:
        unknown = [name for part in self.parts for name in part.arms if name not in ARMS]
        if unknown:
            raise OptionError(f"arms must be among {', '.join(ARMS)}; got {unknown[0]!r}.")
        for part in self.parts:
            if not 1 <= part.folds <= self.folds:
                raise OptionError(f"folds of a part must lie between 1 and {self.folds}; got {part.folds}.")

    @property
    def arms(self) -> tuple[str, ...]:
        """The names of all arms, in the order of `ARMS`."""
        return tuple(name for name in ARMS if any(name in part.arms for part in self.parts))

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """All batch sizes, the smallest first."""
        return tuple(sorted({batch for part in self.parts for batch in part.batch_sizes}))

    @property
    def network(self) -> Network:
        """What is trained."""
        return Network(self.size, self.filters, self.halving)

    def trainings(self) -> list[tuple[int, int, str]]:
        """Every training: batch size, fold and arm; in a part fold by fold, so that arms compare."""
        found = [
            (batch, fold, arm)
            for part in self.parts
            for fold in range(part.folds)
            for batch in part.batch_sizes
            for arm in part.arms
        ]
        return list(dict.fromkeys(found))

    def epochs_for(self, batch_size: int, rows: int) -> int:
        """How many epochs a training on so many rows may have."""
        return max(self.epochs, math.ceil(self.least_steps / math.ceil(rows / batch_size)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        plain: dict[str, Any] = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        return plain


FULL = Plan()
SEARCH = Plan(seed=7, parts=(Part(tuple(f"{name}: {what}" for name in SEARCHED for what in SEARCHED[name]), (20,), 1),))
"""Every candidate on a cohort of another seed; the least validation loss under balance is taken, see docs/mri.md."""
QUICK = Plan(size=32, parts=(Part(PAPER, (20,), 1),), filters=(4, 8, 16, 8), epochs=10, patience=1.0, lr=1e-3)
