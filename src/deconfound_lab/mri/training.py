"""One training on volumes: which rows fit, stop and test an arm, with all volumes on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import deconfound as dc
from deconfound.design import Design, Term
from deconfound.methods import Method, Setting, method
from deconfound.networks import ResNet3D
from deconfound.training import (
    Fold,
    Predictions,
    Samples,
    Schedule,
    TrainingResult,
    focal,
    predict_in_memory,
    train_in_memory,
)
from deconfound_lab.cohort.cohort import Cohort
from deconfound_lab.footing import trained_with
from deconfound_lab.mri.plan import Arm, Network, Plan

CONFOUNDS = ("age", "sex", "site")
LABELS = ("hiv", "mci")
EVAL_BATCH = 128
LAST_HIDDEN = ""
"""What the last linear layer reads, for `predict_in_memory`."""

Augment = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Question:
    """What is removed and what is predicted.

    Attributes:
        confounds: Columns or terms of the design.
        labels: Columns of 0 and 1, which are kept.
        columns: The table's columns that the confounds are made of.
        site: The confound that says where a scan comes from, where there is one.
    """

    confounds: tuple[str | Term, ...] = CONFOUNDS
    labels: tuple[str, ...] = LABELS
    columns: tuple[str, ...] = CONFOUNDS
    site: str | None = "site"


@dataclass(frozen=True)
class Volumes:
    """A cohort on the device.

    Attributes:
        images: `(n, 1, size, size, size)`, in half precision on a GPU.
        table: One row per volume.
        question: What is removed and predicted.
        controls: One boolean per volume, for arms that learn from controls alone.
    """

    images: Tensor
    table: dict[str, Any]
    question: Question = Question()
    controls: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def columns(self, rows: NDArray[Any], *, labels: bool) -> dict[str, Any]:
        """The columns of the design at some rows, with the labels or, as for new people, without."""
        names = (*self.question.columns, *(self.question.labels if labels else ()))
        return {name: np.asarray(self.table[name])[rows] for name in names}

    @property
    def target(self) -> Tensor:
        """The labels, `(n, labels)`."""
        columns = [np.asarray(self.table[name], dtype=np.float32) for name in self.question.labels]
        return torch.from_numpy(np.stack(columns, axis=1)).to(self.images.device)


def load(cohort: Cohort, device: torch.device) -> Volumes:
    """Put a cohort on the device."""
    kind = torch.float16 if device.type == "cuda" else torch.float32
    parts = [cohort.read(rows) for rows in np.array_split(np.arange(len(cohort)), max(1, len(cohort) // 128))]
    return Volumes(torch.cat([torch.from_numpy(part).to(device, kind) for part in parts]), dict(cohort.table))


def build_network(shape: Network, outputs: int = len(LABELS)) -> nn.Module:
    """The paper's 3D ResNet."""
    network = ResNet3D(shape.size, shape.filters, outputs=outputs, halving=shape.halving)
    placed: nn.Module = network.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    return placed


class FoldTraining:
    """The data of one fold, as every arm gets them: all that is fitted is fitted on the training rows.

    Args:
        shape: The network.
        volumes: Everyone.
        fold: Which rows train, which choose the epoch and refit, and which are only predicted.
        seed: Of network and batches.
        gamma: Of the focal loss.
        balanced: Whether rows are weighted so that each label is independent of the confounds.

    Attributes:
        design: Of the training rows.
        mean: Of training volumes, `(1, size, size, size)`.
        train: The training rows.
        validation: The validation rows.
    """

    def __init__(
        self, shape: Network, volumes: Volumes, fold: Fold, seed: int, gamma: float = 2.0, *, balanced: bool = False
    ) -> None:
        self.shape, self.volumes, self.fold, self.seed, self.gamma = shape, volumes, fold, seed, gamma
        self.device = volumes.images.device
        question = volumes.question
        # A site that no training row has counts as their average.
        design = Design(confounds=list(question.confounds), keep=list(question.labels), unseen="mean")
        weights = fold_weights(volumes, fold) if balanced else None
        by_row = None if weights is None else weights[1][fold.train]
        self.design = design.fit(volumes.columns(fold.train, labels=True), weight=by_row)
        # What all brains share is taken out, so that training starts at what tells people apart.
        sample = volumes.images[self._index(fold.train[:256])].float()
        self.mean = sample.mean(0)
        self._sd = (sample - self.mean).std()
        images = self._standardised(volumes.images)
        metadata = torch.from_numpy(self.design.encode(volumes.columns(np.arange(len(volumes)), labels=True)))
        everyone = Samples(images, metadata.to(self.device), volumes.target, volumes.controls, read=_read)
        if weights is not None:
            counted = [torch.from_numpy(each).float().to(self.device) for each in weights]
            everyone = replace(everyone, weight=counted[0], layer_weight=counted[1])
        self.train, self.validation = (everyone.part(self._index(rows)) for rows in (fold.train, fold.validation))
        self._images = {id(volumes): images}
        target = volumes.target[self._index(fold.train)]
        counts = torch.ones_like(target) if everyone.weight is None else everyone.weight[self._index(fold.train)]
        self._share = (target * counts).sum(0) / counts.sum(0)

    def prepare(self, arm: Arm, lr: float) -> Method:
        """An arm's method around a new network, on the device."""
        torch.manual_seed(self.seed)
        network = build_network(self.shape, len(self.volumes.question.labels)).to(self.device)
        attach = {"layer_norm": list(arm.layer_norm)} if arm.layer_norm else {}
        setting = Setting(
            self.design, arm.at, lambda: self.train.batches(EVAL_BATCH), lr, self.volumes.question.site, attach=attach
        )
        options = trained_with(arm.method, arm.options)
        return method(arm.method).prepare(network, setting, **options).to(self.device)

    def fit(self, made: Method, schedule: Schedule) -> TrainingResult:
        """Train a method on the training rows; the validation rows choose the epoch, with refitted coefficients.

        The method is left as training made it: `refit` comes after.
        """
        return train_in_memory(made, self.train, self.validation, self.criterion, schedule, seed=self.seed, refit=False)

    def fit_all_epochs(self, made: Method, schedule: Schedule, augment: Augment | None) -> TrainingResult:
        """Train a method on the training rows for all epochs of the schedule; it sees no validation row."""
        return train_in_memory(
            made, self.train, None, self.criterion, schedule, seed=self.seed, augment=augment, refit=False
        )

    def refit(self, made: Method) -> None:
        """Refit a trained method on the validation rows."""
        made.eval()
        half = nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)
        with half:
            made.refit(lambda: self.validation.batches(EVAL_BATCH))

    def predict(self, made: Method, volumes: Volumes, rows: NDArray[Any]) -> Predictions:
        """Logits, and what the last layer reads; the labels are not given."""
        if id(volumes) not in self._images:
            self._images[id(volumes)] = self._standardised(volumes.images)
        metadata = torch.from_numpy(self.design.encode(volumes.columns(np.arange(len(volumes)), labels=False)))
        samples = Samples(self._images[id(volumes)], metadata.to(self.device), rows=self._index(rows), read=_read)
        return predict_in_memory(made, samples, EVAL_BATCH, features=LAST_HIDDEN, autocast=self.autocast)

    @torch.no_grad()
    def judge(self, made: Method) -> float:
        """The validation loss under weights that make labels and confounds independent, whatever it was trained with.

        A user has it too: no test row is read.
        """
        weights = torch.from_numpy(fold_weights(self.volumes, self.fold)[0][self.fold.validation]).float()
        logits = self.predict(made, self.volumes, self.fold.validation).logits
        target = self.validation.own(self.volumes.target).cpu()
        shares = (target * weights).sum(0) / weights.sum(0)
        losses = focal(logits, target, self.gamma, shares)
        return float((losses * weights).sum() / weights.sum())

    @property
    def autocast(self) -> torch.dtype | None:
        """Half precision on a GPU."""
        return torch.bfloat16 if self.device.type == "cuda" else None

    def criterion(self, logits: Tensor, target: Tensor) -> Tensor:
        """The focal loss of each row and label, with the labels' shares among the training rows."""
        return focal(logits.float(), target, self.gamma, self._share)

    def _standardised(self, images: Tensor) -> Tensor:
        """Images in the same type, a part at a time: a whole cohort in full precision is large."""
        parts = [((part.float() - self.mean) / self._sd).to(images.dtype) for part in images.split(EVAL_BATCH)]
        return torch.cat(parts)

    def _index(self, rows: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.asarray(rows)).to(self.device)


def fold_weights(volumes: Volumes, fold: Fold) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights of all rows for each label `(n, labels)` and for layers `(n,)`, 0 for rows of neither part.

    The training rows are balanced by themselves; the validation rows, too few for that, together with them.
    """
    question = volumes.question
    train, both = (
        dc.balance(volumes.columns(rows, labels=True), question.labels, question.confounds,
                   types=dict.fromkeys(question.labels, "categorical"))
        for rows in (fold.train, np.concatenate([fold.train, fold.validation]))
    )  # fmt: skip
    by_label, by_row = np.zeros((len(volumes), len(question.labels))), np.zeros(len(volumes))
    by_label[fold.train], by_label[fold.validation] = train.weights, both.weights[len(fold.train) :]
    by_row[fold.train], by_row[fold.validation] = train.row_weight, both.row_weight[len(fold.train) :]
    return by_label, by_row


def _read(images: Tensor) -> Tensor:
    return images.float().to(memory_format=torch.channels_last_3d)


def schedule_of(plan: Plan, batch: int, rows: int, autocast: torch.dtype | None) -> Schedule:
    """How the MRI experiment trains at a batch size; on a GPU as graphs: small batches wait for their launches."""
    epochs = plan.epochs_for(batch, rows)
    lr = plan.lr * math.sqrt(batch / 20)
    patience = math.ceil(plan.patience * epochs)
    return Schedule(
        epochs=epochs, batch_size=batch, lr=lr, weight_decay=plan.weight_decay, patience=patience, autocast=autocast,
        eval_batch=EVAL_BATCH, capture=autocast is not None,
    )  # fmt: skip


def train_arm(plan: Plan, data: FoldTraining, arm: Arm, batch: int) -> tuple[Method, TrainingResult]:
    """An arm at its best epoch, as training left it."""
    made = data.prepare(arm, plan.lr)
    return made, data.fit(made, schedule_of(plan, batch, len(data.fold.train), data.autocast))
