"""One training on OASIS-1: one arm, without one fold and without one part of the others."""

from __future__ import annotations

import io
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.errors import RunError
from deconfound.experiments.mri.fold import Trainer, Volumes
from deconfound.experiments.oasis.plan import ARMS, Plan
from deconfound.training.config import Splits
from deconfound.training.files import write_bytes
from deconfound.training.splits import Fold, deal, folds, stratum_codes

ARRAYS = ("held_rows", "held", "test_rows", "test", "raw", "features")


@dataclass(frozen=True)
class Outcome:
    """What one training gave.

    Attributes:
        held_rows: Scans of the training folds that this member was not trained on.
        held: Their logits, before the method has seen them.
        test_rows: Scans of the test fold.
        test: Their logits.
        raw: The same before the method settled on the held-out scans.
        features: Of the test scans at the last hidden layer.
        losses: Training loss of each epoch.
        seconds: Of training.
    """

    held_rows: NDArray[np.intp]
    held: NDArray[np.float32]
    test_rows: NDArray[np.intp]
    test: NDArray[np.float32]
    raw: NDArray[np.float32]
    features: NDArray[np.float32]
    losses: list[float]
    seconds: float


def divide(plan: Plan, table: dict[str, Any], fold: int, member: int) -> Fold:
    """The rows of one training: people stay together, and every part has its share of ages and diagnoses."""
    age = np.digitize(table["age"], [40, 60, 75])
    strata = stratum_codes([np.asarray(table["dementia"]), age])
    everyone = np.ones(len(age), dtype=bool)
    outer = folds(Splits(folds=plan.folds), table, everyone, strata, "person", plan.seed)[fold]
    rest = np.sort(np.concatenate([outer.train, outer.validation]))
    part = deal(strata[rest], np.asarray(table["person"])[rest], plan.members, plan.seed + 1000 * (fold + 1))
    return Fold(outer.name, rest[part != member], rest[part == member], outer.test)


def train_member(plan: Plan, volumes: Volumes, cell: tuple[int, str, int]) -> Outcome:
    """Train the network of a cell and predict the scans it was not trained on."""
    member, arm, number = cell
    fold = divide(plan, volumes.table, number, member)
    seed = 10_000 * plan.seed + 100 * number + member
    trainer = Trainer(plan.training, volumes, None, fold, seed, plan.augment)
    started = time.monotonic()
    torch.manual_seed(seed)
    made = trainer.prepare(ARMS[arm])
    optimizer = torch.optim.AdamW(made.network_parameters(), lr=plan.lr, weight_decay=plan.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: _rate((epoch + 0.5) / plan.epochs))
    losses = []
    for epoch in range(plan.epochs):
        losses.append(trainer.epoch(made, optimizer, plan.batch_size, epoch))
        schedule.step()
    if not math.isfinite(losses[-1]):
        raise RunError(f"the loss must be finite; got {losses[-1]} for {arm} in fold {number}. Lower lr.")
    made.eval()
    held, _ = trainer.predict(made, volumes, fold.validation)
    raw, _ = trainer.predict(made, volumes, fold.test)
    with trainer.precision():
        made.settle(trainer.held_out)
    test, features = trainer.predict(made, volumes, fold.test)
    seconds = time.monotonic() - started
    return Outcome(fold.validation, held[:, 0], fold.test, test[:, 0], raw[:, 0], features, losses, seconds)


def _rate(share: float) -> float:
    """The learning rate at a share of the training: up over the first tenth, then down along a cosine."""
    return min(1.0, 10 * share) * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, share - 0.1) / 0.9)))


def write_outcome(outcome: Outcome, path: Path) -> None:
    """Keep a finished training."""
    content = io.BytesIO()
    about = json.dumps({"losses": outcome.losses, "seconds": outcome.seconds})
    np.savez_compressed(content, about=np.array(about), **{name: getattr(outcome, name) for name in ARRAYS})
    write_bytes(path, content.getvalue())


def read_outcome(path: Path) -> Outcome:
    """A finished training."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            return Outcome(**{name: kept[name] for name in ARRAYS}, **json.loads(str(kept["about"])))
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path} must be a finished training; got {error}. Delete it to have it made again.") from error
