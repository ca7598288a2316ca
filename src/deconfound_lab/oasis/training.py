"""One training on OASIS-1: one arm, without one fold and without one part of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from deconfound.errors import RunError
from deconfound.training import Fold, Schedule, deal, kfold, stratum_codes
from deconfound_lab.mri.training import FoldTraining, Volumes
from deconfound_lab.oasis.plan import ARMS, Plan


def divide(plan: Plan, table: Mapping[str, Any], fold: int, member: int) -> Fold:
    """The rows of one training: people stay together, and every part has its share of ages and diagnoses."""
    age = np.digitize(table["age"], [40, 60, 75])
    strata, people = stratum_codes([np.asarray(table["dementia"]), age]), np.asarray(table["person"])
    outer = kfold(strata, people, folds=plan.folds, seed=plan.seed)[fold]
    rest = np.sort(np.concatenate([outer.train, outer.validation]))
    part = deal(strata[rest], people[rest], plan.members, plan.seed + 1000 * (fold + 1))
    return Fold(outer.name, rest[part != member], rest[part == member], outer.test)


def member_data(plan: Plan, volumes: Volumes, fold: int, member: int, balanced: bool = False) -> FoldTraining:
    """The data of one member of one fold."""
    seed = 10_000 * plan.seed + 100 * fold + member
    rows = divide(plan, volumes.table, fold, member)
    return FoldTraining(plan.network, volumes, rows, seed, plan.gamma, balanced=balanced)


def train_member(plan: Plan, data: FoldTraining, arm: str) -> dict[str, Any]:
    """Train a network for a fixed number of epochs, and predict the scans it was not trained on.

    Args:
        plan: How it is trained.
        data: On what.
        arm: One of `ARMS`.

    Returns:
        `held_out_rows`: scans of the training folds that this member was not trained on; `held_out`: their logits
        before the method is refitted on them; `test_rows`: scans of the test fold; `test`: their logits after the
        refit; `unrefitted`: the same before it; `features`: of the test scans at the last hidden layer; `losses`:
        training loss of each epoch; `seconds`: of training.
    """
    fold, volumes = data.fold, data.volumes
    made = data.prepare(ARMS[arm], plan.lr)
    schedule = Schedule(
        epochs=plan.epochs, batch_size=plan.batch_size, lr=plan.lr, weight_decay=plan.weight_decay, keep="last",
        rate=rate, autocast=data.autocast, capture=data.autocast is not None,
    )  # fmt: skip
    result = data.fit_all_epochs(made, schedule, plan.augment)
    losses = [epoch.training for epoch in result.history]
    if not math.isfinite(losses[-1]):
        raise RunError(f"the loss must be finite; got {losses[-1]} for {arm} in fold {fold.name}. Lower lr.")
    held_out = data.predict(made, volumes, fold.validation)
    unrefitted = data.predict(made, volumes, fold.test)
    data.refit(made)
    test = data.predict(made, volumes, fold.test)
    assert test.features is not None
    return {
        "held_out_rows": fold.validation,
        "held_out": held_out.logits[:, 0].numpy(),
        "test_rows": fold.test,
        "test": test.logits[:, 0].numpy(),
        "unrefitted": unrefitted.logits[:, 0].numpy(),
        "features": test.features.numpy(),
        "losses": losses,
        "seconds": result.seconds,
    }


def rate(share: float) -> float:
    """The learning rate after a share of the training: up over the first tenth, then down along a cosine to nothing.

    Example:
        >>> [round(rate(share), 2) for share in (0.05, 0.1, 0.55, 1.0)]
        [0.5, 1.0, 0.5, 0.0]
    """
    return min(1.0, 10 * share) * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, share - 0.1) / 0.9)))
