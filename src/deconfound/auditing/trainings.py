"""Trainings that failed: what to look for in a finished training before its numbers are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

ProblemKind = Literal[
    "loss at chance",
    "best epoch is the first",
    "best epoch is the last",
    "constant outputs",
    "skipped steps",
    "not finite",
    "nothing removed",
]
# A validation loss within this share of chance has learnt nothing to speak of.
_NEAR_CHANCE = 0.995
# Beyond this share of skipped steps, training was not what the config says.
_MANY_SKIPPED = 0.01


@dataclass(frozen=True)
class TrainingProblem:
    """One training that should not be read as a result of its method.

    Attributes:
        kind: What is wrong.
        fold: Of which fold.
        seed: Of which seed.
        text: The same with its numbers, in words.
    """

    kind: ProblemKind
    fold: int
    seed: int
    text: str


def training_problems(
    *,
    fold: int,
    seed: int,
    validation_losses: Sequence[float],
    best_epoch: int,
    chance_loss: float | None = None,
    outputs: Any = None,
    skipped_steps: int = 0,
    steps: int | None = None,
    stopped_early: bool = False,
    nothing_removed: str | None = None,
) -> list[TrainingProblem]:
    """What speaks against one finished training.

    Args:
        fold: its number.
        seed: its seed.
        validation_losses: one per epoch.
        best_epoch: the chosen epoch, counted from 0.
        chance_loss: the loss of a constant prediction on the same rows, where it is known.
        outputs: `(n,)` or `(n, k)` outputs of the test rows.
        skipped_steps: steps that were left out because a gradient was not finite.
        steps: steps in all.
        stopped_early: whether training ended before its last epoch; then the last epoch is nobody's best.
        nothing_removed: why the weight of a method was chosen as 0, where it was.

    Example:
        >>> found = training_problems(fold=0, seed=0, validation_losses=[0.69, 0.7, 0.8], best_epoch=0)
        >>> [problem.kind for problem in found]
        ['best epoch is the first']
    """
    losses = np.asarray(validation_losses, dtype=float)
    found: list[tuple[ProblemKind, str]] = []
    if not np.isfinite(losses).all():
        found.append(("not finite", f"the validation loss is not finite in {int((~np.isfinite(losses)).sum())} epochs"))
    elif chance_loss is not None and losses[best_epoch] >= _NEAR_CHANCE * chance_loss:
        text = f"the best validation loss, {losses[best_epoch]:.4g}, is no better than chance ({chance_loss:.4g})"
        found.append(("loss at chance", text))
    if len(losses) > 1 and best_epoch == 0:
        found.append(("best epoch is the first", f"the best of {len(losses)} epochs is the first: it only got worse"))
    if len(losses) > 1 and best_epoch == len(losses) - 1 and not stopped_early:
        found.append(("best epoch is the last", f"the best of {len(losses)} epochs is the last: train longer"))
    if outputs is not None and np.ptp(np.asarray(outputs, dtype=float), axis=0).max(initial=0) < 1e-9:
        found.append(("constant outputs", "every test row has the same output"))
    if steps and skipped_steps > _MANY_SKIPPED * steps:
        found.append(("skipped steps", f"{skipped_steps:,} of {steps:,} steps were skipped (gradients not finite)"))
    if nothing_removed is not None:
        found.append(("nothing removed", nothing_removed))
    return [TrainingProblem(kind, fold, seed, f"fold {fold}, seed {seed}: {text}") for kind, text in found]
