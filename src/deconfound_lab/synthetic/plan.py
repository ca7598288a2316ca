"""What the synthetic experiment trains: a method at a batch size and a learning rate, for several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from deconfound_lab.synthetic.images import AMPLITUDES, Ranges

TRAINING_IMAGES = 2000
BATCHES = (1, 2, 20, 200, 1000, 2000)
METHODS = ("none", "batchnorm", "adversarial", "mdn", "rmdn", "pmdn-alternating", "pmdn", "erase", "dependence")
KINDS = ("two", "sites", "curved", "curved-linear", "width")
LEAST_STEPS = 1500
LEAST_EPOCHS = 10
LONG = 6000
# Up to this batch size the learning rate grows over the first epoch: Adam's first steps, each as large as any later
# one, otherwise kill all hidden units of some networks, plain ones too.
WARMED_BATCH = 20
# A validation costs as much as a large step, so it comes at most every so many steps.
VALIDATE_EVERY = 5


@dataclass(frozen=True)
class Setup:
    """What one cell trains.

    Attributes:
        method: A name of `deconfound.methods`.
        batch: Images in a batch.
        lr: Adam's learning rate.
        problem: "one", or one of `KINDS`.
        options: The method's own options, beside those of `trained_with`.
        balanced: Whether images are weighted so that group and confounds are independent (overlap weights).
        steps: Training steps.
        long: Further steps after which the last network is measured again; 0 for none.
        seeds: One training each.
        stages: The main effect's ranges of each stage where the data drift; empty for the paper's experiment.
        network: A name of `NETWORKS`; the paper's is the CNN.
    """

    method: str
    batch: int
    lr: float = 1e-4
    problem: str = "one"
    options: dict[str, Any] = field(default_factory=dict)
    balanced: bool = False
    steps: int = LEAST_STEPS
    long: int = 0
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    stages: tuple[Ranges, ...] = ()
    network: str = "cnn"

    @property
    def warm_up(self) -> int:
        """Steps in which the learning rate grows to its value."""
        return min(TRAINING_IMAGES // self.batch, self.steps // 5) if self.batch <= WARMED_BATCH else 0

    @property
    def validate_every(self) -> int:
        """Steps between two validations: an epoch, unless that is very short."""
        return max(VALIDATE_EVERY, TRAINING_IMAGES // self.batch)

    @property
    def key(self) -> str:
        """What tells it from others of a grid."""
        options = "".join(f" {name}={value}" for name, value in sorted(self.options.items()))
        drift = " drifting" if self.stages else ""
        balanced = " balanced" if self.balanced else ""
        trained = f"batch={self.batch} lr={self.lr:g} steps={self.steps}"
        network = "" if self.network == "cnn" else f"{self.network} "
        return f"{network}{self.method}{options}{balanced} {self.problem}{drift} {trained}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON; the paper's network is not named, as cells of it are many."""
        plain = asdict(self)
        return plain if self.network != "cnn" else {name: v for name, v in plain.items() if name != "network"}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Setup:
        """From JSON."""
        stages = tuple(tuple(tuple(each) for each in stage) for stage in plain["stages"])
        return cls(**{**plain, "seeds": tuple(plain["seeds"]), "stages": stages})


def steps_for(batch: int) -> int:
    """1,500 steps or 10 epochs, whichever is more."""
    return max(LEAST_STEPS, LEAST_EPOCHS * TRAINING_IMAGES // batch)


def full_grid() -> list[Setup]:
    """The paper's grid, all methods with and without weights, other confounds, learning rates, drifting data."""
    small = [_setup(method, 1) for method in ("pmdn", "mdn", "rmdn", "none")]
    footing = [
        _setup(method, batch, balanced=balanced)
        for batch in (20, 200, 2)
        for balanced in (False, True)
        for method in METHODS
    ]
    large = [_setup(method, batch) for batch in (2000, 1000) for method in METHODS]
    kinds = [_setup(m, 200, problem=kind) for m in ("pmdn", "mdn", "rmdn", "none") for kind in KINDS]
    rates = [_setup("pmdn", batch, lr=lr) for batch in (20, 200, 2000, 2) for lr in (1e-3, 1e-5)]
    authors = [_setup("pmdn-authors", batch, lr=1e-5) for batch in (20, 200, 2000, 2)]
    norms = [replace(_setup("pmdn", batch), long=0, options={"layer_norm": True}) for batch in (20, 200)]
    return [*footing, *authors, *large, *small, *kinds, *rates, *norms, *_drifting()]


def quick_grid() -> list[Setup]:
    """Small enough for two cores in about five minutes: one seed, three batch sizes, few steps."""
    return [
        Setup(method, batch, lr=5e-4, steps=steps, seeds=(0,))
        for batch, steps in ((2, 500), (20, 300), (200, 120))
        for method in ("none", "mdn", "rmdn", "pmdn")
    ]


def network_grid() -> list[Setup]:
    """The paper's images for a recurrent network and a transformer, for minutes on two cores."""
    wanted = ((20, 600, ("none", "mdn", "pmdn-alternating", "pmdn")), (2, 1000, ("mdn", "pmdn")))
    return [
        Setup(method, batch, lr=1e-3, steps=steps, network=network, seeds=(0, 1, 2))
        for network in ("gru", "transformer")
        for batch, steps, methods in wanted
        for method in methods
    ]


def _setup(method: str, batch: int, lr: float = 1e-4, problem: str = "one", balanced: bool = False) -> Setup:
    followed = method in ("mdn", "rmdn", "pmdn") and lr == 1e-4 and problem == "one" and not balanced
    long = LONG if followed and batch in (20, 200) else 0
    return Setup(method, batch, lr, problem, balanced=balanced, steps=steps_for(batch), long=long)


def _drifting() -> list[Setup]:
    """Five stages in which the main effect fades from a half to no difference: ceilings 75 % to 50 %."""
    (low, high), _ = AMPLITUDES
    stages = tuple(((low, high), (low + shift, high + shift)) for shift in (1.5, 1.125, 0.75, 0.375, 0.0))
    methods: Sequence[str] = ("none", "mdn", "rmdn", "pmdn")
    return [Setup(m, 200, stages=stages, balanced=balanced) for balanced in (False, True) for m in methods]
