"""What is trained on OASIS-1: the arms of the MRI experiment and what they are trained with."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from deconfound.design import Spline
from deconfound.errors import OptionError
from deconfound.networks import Halving
from deconfound_lab.mri.plan import ARMS as MRI_ARMS
from deconfound_lab.mri.plan import PAPER, Arm, Network
from deconfound_lab.mri.training import Question
from deconfound_lab.oasis.augment import Augment

BEFORE = ("fc1", "fc2", "fc3")
ARMS = {
    **{name: MRI_ARMS[name] for name in (*PAPER, "baseline-balanced", "mdn-balanced", "pmdn-balanced")},
    # The weight of the search; its warm-up is longer than the 120 steps here, so a fifth of them, as `fit` would try.
    "adversarial": replace(MRI_ARMS["adversarial"], options={"weight": 0.2, "warmup": 24}),
    "pmdn-controls": Arm("PMDN (before ReLU, β from controls)", "pmdn", BEFORE, {"controls_only": True}),
    "input": Arm("inputs residualised", "input-residualize"),
}


@dataclass(frozen=True)
class Plan:
    """How much is trained, and how.

    Attributes:
        size: Edge of the volumes.
        folds: Into how many the people are divided; each is the test set once.
        members: Networks whose scores are averaged; each is trained without another part of the training people.
        arms: Names of `ARMS`.
        filters: Channels of the network's blocks.
        halving: How a block halves the image; see `ResNet3D`.
        epochs: Of every training; the last network is taken, none is chosen.
        batch_size: Scans in a step.
        lr: The highest learning rate; it rises over the first tenth of the steps and falls to zero.
        weight_decay: Of AdamW.
        gamma: Of the focal loss; 0 is cross-entropy.
        age_df: Columns of the spline of age; 1 is a straight line.
        augment: What is done to training scans.
        seed: Of folds, networks and batches.
        permutations: Of the audit, for each p-value and each interval.
        bootstraps: Of the measures, for each interval.
    """

    size: int = 48
    folds: int = 5
    members: int = 4
    arms: tuple[str, ...] = tuple(ARMS)
    filters: tuple[int, ...] = (8, 16, 32, 32)
    halving: Halving = "stride"
    epochs: int = 30
    batch_size: int = 64
    lr: float = 1e-3
    weight_decay: float = 5e-2
    gamma: float = 2.0
    age_df: int = 4
    augment: Augment | None = field(default_factory=Augment)
    seed: int = 0
    permutations: int = 199
    bootstraps: int = 1000

    def __post_init__(self) -> None:
        faults = []
        for name in self.arms:
            if name not in ARMS:
                near = difflib.get_close_matches(name, ARMS, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                faults.append(f"arms must be among {', '.join(ARMS)}; got {name!r}.{hint}")
        if self.members < 2:
            faults.append(f"members must be at least 2, so that each leaves people out; got {self.members}.")
        if faults:
            raise OptionError("\n".join(faults))

    @property
    def question(self) -> Question:
        """Dementia, without age and sex."""
        age = Spline("age", self.age_df) if self.age_df > 1 else "age"
        return Question((age, "sex"), ("dementia",), ("age", "sex"), None)

    @property
    def network(self) -> Network:
        """What is trained."""
        return Network(self.size, self.filters, self.halving)

    def trainings(self) -> list[tuple[int, str, int]]:
        """Every training: member, arm and fold; all folds of all arms have one member before any has two."""
        return [(m, arm, fold) for m in range(self.members) for arm in self.arms for fold in range(self.folds)]

    def to_dict(self) -> dict[str, Any]:
        """What decides the trainings, as plain values; how they are measured afterwards is not among it."""
        plain: dict[str, Any] = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        del plain["permutations"], plain["bootstraps"]
        return plain


FULL = Plan()
QUICK = Plan(size=32, members=2, arms=("baseline", "pmdn"), epochs=12, batch_size=32, permutations=99)
