"""How long and how fast a training in memory goes, and what it noted on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from deconfound.errors import OptionError
from deconfound.training.step import OPTIMIZERS, number_of_batches, refuse_non_finite


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast a network is trained.

    Attributes:
        epochs: Passes over the training rows; or
        steps: Batches. One of the two is given.
        batch_size: Rows in a batch at most.
        lr: The learning rate.
        weight_decay: Of the optimiser.
        optimizer: "adam", "adamw" or "sgd".
        patience: After so many validations without a better one training stops; None trains to the end.
        validate_every: Steps between two validations; None validates after each epoch.
        keep: "best" goes back to the state with the lowest validation loss, "last" does not.
        rate: From the share of training that is done, between 0 and 1, to a factor of `lr`.
        autocast: A type in which torch computes where that is safe, such as `torch.bfloat16`.
        capture: On a GPU, replay steps and validations as CUDA graphs. All batches are then of one size: an epoch
            leaves out the rows of a short one.
        eval_batch: Rows in a batch of validation.
        draw_by_weight: Draw the rows of an epoch by their weights, instead of weighting their losses.
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 64
    lr: float = 1e-3
    weight_decay: float = 0.0
    optimizer: str = "adamw"
    patience: int | None = None
    validate_every: int | None = None
    keep: Literal["best", "last"] = "best"
    rate: Callable[[float], float] | None = None
    autocast: torch.dtype | None = None
    capture: bool = False
    eval_batch: int = 256
    draw_by_weight: bool = False

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise OptionError(f"a schedule must have epochs or steps; got epochs={self.epochs}, steps={self.steps}.")
        for name in ("epochs", "steps", "batch_size", "patience", "validate_every", "eval_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name} must be at least 1; got {value}.")
        if self.optimizer not in OPTIMIZERS:
            raise OptionError(f"optimizer must be one of {', '.join(OPTIMIZERS)}; got {self.optimizer!r}.")
        if self.capture and self.optimizer == "sgd":
            raise OptionError(
                "optimizer must be 'adam' or 'adamw' with capture=True; got 'sgd', which waits for the GPU."
            )

    def batches(self, rows: int) -> int:
        """In an epoch over so many rows."""
        return max(1, rows // self.batch_size) if self.capture else number_of_batches(rows, self.batch_size)


@dataclass(frozen=True)
class Epoch:
    """What a training noted at one validation; without validation rows, at the end of an epoch.

    Attributes:
        number: From 0.
        step: How many batches had been trained on.
        training: The mean training loss since the one before.
        validation: The loss on the validation rows; None where there are none.
        parts: Means of what the method's loss consists of.
    """

    number: int
    step: int
    training: float
    validation: float | None
    parts: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, step: int, noted: Mapping[str, Tensor]) -> Epoch:
        """An entry from means on a device; a loss that is not finite is refused."""
        values = {name: float(value) for name, value in noted.items()}
        training, validation = values.pop("loss"), values.pop("validation", None)
        named = {"the training loss": training, "the validation loss": 0.0 if validation is None else validation}
        refuse_non_finite(named, number, "Lower lr, or look for extreme inputs.")
        return cls(number, step, training, validation, values)


@dataclass(frozen=True)
class TrainingResult:
    """How a training went.

    Attributes:
        history: One entry for each validation.
        best: The number of the one whose weights were kept.
        best_step: How many steps had been trained by then.
        validation_loss: Its loss on the validation rows; None where there are none.
        skipped_batches: Batches that taught the layers nothing, because something was not finite.
        seconds: Of training.
    """

    history: tuple[Epoch, ...]
    best: int
    best_step: int
    validation_loss: float | None
    skipped_batches: int
    seconds: float
