"""What speaks against a fold's training before its numbers are read: kept with the fold's result."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor

from deconfound.auditing import training_problems
from deconfound.methods import StratumCriterion
from deconfound.training.fold_data import FoldData
from deconfound.training.losses import chance_loss, criterion
from deconfound.training.step import number_of_batches


def fold_problems(
    data: FoldData,
    fold: int,
    history: list[dict[str, float]],
    best: int,
    outputs: Tensor,
    nothing_removed: str | None = None,
) -> list[dict[str, Any]]:
    """A record for each sign that a training failed, such as a loss at chance or constant outputs of the test rows.

    `nothing_removed` says why the weight of its method was chosen as 0, if it was.
    """
    config, task = data.problem.config, data.problem.task
    training = config.training
    loss = criterion(training.loss, task.kind, training.focal_gamma)
    chance = None
    if not isinstance(loss, StratumCriterion):
        weights = data.train.weight, data.validation.weight
        chance = chance_loss(loss, task.kind, data.train.target, data.validation.target, weights)
    found = training_problems(
        fold=fold,
        seed=config.run.seed,
        validation_losses=[epoch["val_loss"] for epoch in history],
        best_epoch=best,
        chance_loss=chance,
        outputs=outputs.numpy(),
        skipped_steps=int(history[-1].get("skipped_batches", 0)),
        steps=len(history) * number_of_batches(len(data.train.rows), training.batch_size),
        stopped_early=len(history) < training.epochs,
        nothing_removed=nothing_removed,
    )
    return [asdict(problem) for problem in found]
