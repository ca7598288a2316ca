"""A method whose weight is chosen on the validation rows, trained in memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from deconfound.errors import DeconfoundWarning
from deconfound.methods.base import Criterion, Method
from deconfound.methods.choosing import Climb, HeldOutLoss, climb, held_out_loss
from deconfound.training.in_memory import train_in_memory
from deconfound.training.samples import Samples
from deconfound.training.schedule import Schedule, TrainingResult

Trained = tuple[Method, TrainingResult]


def train_choosing_weight(
    make: Callable[[Mapping[str, Any]], Method],
    train: Samples,
    validation: Samples,
    criterion: Criterion,
    schedule: Schedule,
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Climb[Trained]:
    """Train a method, climbing its ladder of weights (`deconfound.methods.choosing`); without one, once.

    It warns where the climb ends at weight 0, and so nothing is removed.

    Args:
        make: A new method under these options, on the device of the samples; of the same network every time.
        train: See `InMemoryTrainer`.
        validation: What chooses the epoch and the weight, and what is refitted on.
        criterion: One loss per row.
        schedule: Of each training.
        seed: See `InMemoryTrainer`.
        options: Those that the user gave.
    """
    given = dict(options or {})
    first = make(given)
    steps = schedule.steps or schedule.batches(len(train)) * (schedule.epochs or 0)
    rungs = type(first).rungs(given, steps) or [[{}]]
    held = validation.with_mean_weight_one()

    def run(chosen: Mapping[str, Any]) -> tuple[Trained, HeldOutLoss]:
        made = make({**given, **chosen})
        result = train_in_memory(made, train, validation, criterion, schedule, seed=seed)
        return (made, result), held_out_loss(made, held.batches(schedule.eval_batch), criterion)

    found = climb(rungs, run)
    if found.warning is not None:
        warnings.warn(found.warning, DeconfoundWarning, stacklevel=2)
    return found
