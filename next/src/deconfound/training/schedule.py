"""How long and how fast a network is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from deconfound.errors import OptionError

OptimizerName = Literal["adamw", "adam", "sgd"]
RateName = Literal["constant", "cosine", "one-cycle"]

OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
# One cycle rises for this share of the steps, from 1/25 of the learning rate.
RISE, FIRST_RATE = 0.3, 1 / 25


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a network is trained.

    Attributes:
        epochs: The largest number of passes over the training rows.
        batch_size: The largest number of rows of a batch. The batches of an epoch have equal sizes,
            give or take one row.
        optimizer: "adamw", "adam" or "sgd" (with momentum .9).
        lr: The learning rate, the largest one if `rate` changes it.
        weight_decay: The weight decay passed to the optimiser.
        rate: "constant"; "cosine", which falls to zero; or "one-cycle", which rises and then falls.
        warmup_steps: The number of first steps over which the learning rate rises from zero.
        patience: Training stops after this number of validations in a row without a better loss.
            None trains for all epochs.
        clip: The largest norm of the gradient; None does not clip.
        validate_every: The number of steps between validations. None validates after each epoch.

    Example:
        >>> schedule = Schedule(rate="cosine")
        >>> [round(schedule.factor(step, steps=10), 2) for step in (0, 5, 10)]
        [1.0, 0.5, 0.0]
    """

    epochs: int = 30
    batch_size: int = 64
    optimizer: OptimizerName = "adamw"
    lr: float = 1e-3
    weight_decay: float = 1e-4
    rate: RateName = "constant"
    warmup_steps: int = 0
    patience: int | None = None
    clip: float | None = None
    validate_every: int | None = None

    def __post_init__(self) -> None:
        faults = []
        for name, least in (("epochs", 1), ("batch_size", 1), ("warmup_steps", 0)):
            if not getattr(self, name) >= least:
                faults.append(f"{name} must be {least} or more; got {getattr(self, name)!r}.")
        for name in ("patience", "clip", "validate_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                faults.append(f"{name} must be above 0, or None; got {value!r}.")
        if not (self.lr > 0 and self.weight_decay >= 0):
            given = f"lr={self.lr!r}, weight_decay={self.weight_decay!r}"
            faults.append(f"lr must be above 0 and weight_decay 0 or more; got {given}.")
        choices = (("optimizer", get_args(OptimizerName)), ("rate", get_args(RateName)))
        for name, known in choices:
            if getattr(self, name) not in known:
                listed = ", ".join(map(repr, known))
                faults.append(f"{name} must be one of {listed}; got {getattr(self, name)!r}.")
        if faults:
            raise OptionError("\n".join(faults))

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return an optimiser of those parameters that are not frozen."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        options: dict[str, Any] = {"momentum": 0.9} if self.optimizer == "sgd" else {}
        # One call for all parameters, which Fabric does not let it clip under mixed precision.
        options["fused"] = self.clip is None
        make: Any = OPTIMIZERS[self.optimizer]
        optimizer: Optimizer = make(trained, lr=self.lr, weight_decay=self.weight_decay, **options)
        return optimizer

    def factor(self, step: int, steps: int) -> float:
        """Return the share of the learning rate that a step takes.

        Args:
            step: The number of the step, from 0.
            steps: The number of steps of the whole training.
        """
        place = step / steps
        factor = 1.0
        if self.rate == "cosine":
            factor = _fall(place)
        elif self.rate == "one-cycle":
            rise = FIRST_RATE + (1 - FIRST_RATE) * (1 - _fall(place / RISE))
            factor = rise if place < RISE else _fall((place - RISE) / (1 - RISE))
        return factor * min(1.0, (step + 1) / (self.warmup_steps + 1))

    def set_rate(self, optimizers: Sequence[Optimizer], step: int, steps: int) -> None:
        """Give the optimisers the learning rate of a step; each keeps its own largest one."""
        factor = self.factor(step, steps)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def _fall(place: float) -> float:
    """Return half a cosine, from 1 at place 0 to 0 at place 1."""
    return 0.5 * (1 + math.cos(math.pi * place))
