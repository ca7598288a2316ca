"""One training on OASIS-1: one arm, without one fold and without one part of the others."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.data.files import write_bytes
from deconfound.errors import RunError
from deconfound.training.splits import Fold, deal, kfold, person_codes, stratum_codes
from deconfound_lab.mri.fold import Trainer, Volumes
from deconfound_lab.oasis.plan import ARMS, Plan
from deconfound_lab.oasis.schedule import cosine

ARRAYS = ("held_rows", "held", "test_rows", "test", "raw", "features")


@dataclass(frozen=True)
class Outcome:
    """What one training gave.

    Attributes:
        held_rows: Scans of the training folds that this member was not trained on.
        held: Their logits, before the method has seen them.
        test_rows: Scans of the test fold.
        test: Their logits.
        raw: The same before the method refitted on the held-out scans.
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
    people = person_codes(table, "person", len(strata))
    outer = kfold(strata, people, folds=plan.folds, seed=plan.seed, rows=np.flatnonzero(everyone))[fold]
    rest = np.sort(np.concatenate([outer.train, outer.validation]))
    part = deal(strata[rest], np.asarray(table["person"])[rest], plan.members, plan.seed + 1000 * (fold + 1))
    return Fold(outer.name, rest[part != member], rest[part == member], outer.test)


def trainer_of(plan: Plan, volumes: Volumes, fold: int, member: int) -> Trainer:
    """The data of one member of one fold, and the loop."""
    rows = divide(plan, volumes.table, fold, member)
    return Trainer(plan.training, volumes, None, rows, 10_000 * plan.seed + 100 * fold + member, plan.augment)


def train_member(plan: Plan, trainer: Trainer, arm: str, start: Mapping[str, Tensor] | None = None) -> Outcome:
    """Train a network and predict the scans it was not trained on.

    Args:
        plan: How it is trained.
        trainer: On what.
        arm: One of `ARMS`.
        start: Weights to start from, of all layers or of some.
    """
    volumes, fold = trainer.cohort, trainer.fold
    started = time.monotonic()
    torch.manual_seed(trainer.seed)
    made = trainer.prepare(ARMS[arm])
    if start is not None:
        made.network.load_state_dict(start, strict=False)
    optimizer = torch.optim.AdamW(made.network_parameters(), lr=plan.lr, weight_decay=plan.weight_decay)
    schedule = cosine(optimizer, plan.epochs)
    losses = []
    for epoch in range(plan.epochs):
        losses.append(trainer.epoch(made, optimizer, plan.batch_size, epoch))
        schedule.step()
    if not math.isfinite(losses[-1]):
        raise RunError(f"the loss must be finite; got {losses[-1]} for {arm} in fold {fold.name}. Lower lr.")
    made.eval()
    held, _ = trainer.predict(made, volumes, fold.validation)
    raw, _ = trainer.predict(made, volumes, fold.test)
    with trainer.precision():
        made.refit(trainer.held_out)
    test, features = trainer.predict(made, volumes, fold.test)
    seconds = time.monotonic() - started
    return Outcome(fold.validation, held[:, 0], fold.test, test[:, 0], raw[:, 0], features, losses, seconds)


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
