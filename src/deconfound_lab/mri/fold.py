"""One training of the MRI experiment: one arm, one batch size, one fold, with all volumes on the device."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.design.terms import Term, as_term, sources
from deconfound.errors import RunError
from deconfound.methods import Method, Setting, TrainingBatch, method
from deconfound.networks import ResNet3D
from deconfound.training.losses import focal
from deconfound.training.splits import Fold
from deconfound.training.step import BestEpoch, warmup_never_ends
from deconfound_lab.cohort.cohort import Cohort
from deconfound_lab.mri.plan import Arm, Plan

CONFOUNDS = ("age", "sex", "site")
LABELS = ("hiv", "mci")
EVAL_BATCH = 128
Augment = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """What is removed and what is predicted.

    Attributes:
        confounds: Columns or terms of the design.
        labels: Columns of 0 and 1, which are kept.
        site: The confound that says where a scan comes from, where there is one.
    """

    confounds: tuple[str | Term, ...] = CONFOUNDS
    labels: tuple[str, ...] = LABELS
    site: str | None = "site"

    @property
    def confound_columns(self) -> tuple[str, ...]:
        """The table's columns that the confounds are made of."""
        return tuple(dict.fromkeys(name for term in self.confounds for name in sources(as_term(term, "confounds"))))


@dataclass(frozen=True)
class Volumes:
    """A cohort on the device.

    Attributes:
        images: `(n, 1, size, size, size)`, in half precision on a GPU.
        table: One row per volume.
        target: The labels, `(n, labels)`.
        task: What they are.
        controls: One boolean per volume, for arms that learn from controls alone.
    """

    images: Tensor
    table: dict[str, Any]
    target: Tensor
    task: Task = Task()
    controls: Tensor | None = None

    def rows(self, rows: NDArray[Any]) -> dict[str, Any]:
        """The columns of the design at some rows."""
        names = (*self.task.confound_columns, *self.task.labels)
        return {name: np.asarray(self.table[name])[rows] for name in names}


def load(cohort: Cohort, device: torch.device) -> Volumes:
    """Put a cohort on the device."""
    kind = torch.float16 if device.type == "cuda" else torch.float32
    parts = [cohort.read(rows) for rows in np.array_split(np.arange(len(cohort)), max(1, len(cohort) // 128))]
    images = torch.cat([torch.from_numpy(part).to(device, kind) for part in parts])
    target = torch.from_numpy(np.stack([cohort.table[name] for name in LABELS], axis=1)).float()
    return Volumes(images, dict(cohort.table), target.to(device))


@dataclass(frozen=True)
class Outcome:
    """What one training gave.

    Attributes:
        rows: The test fold's rows of the cohort.
        logits: Of them, `(n, labels)`.
        features: Of them at the last hidden layer, after the method, `(n, 16)`.
        independent: The logits of the independent people.
        history: Training and validation loss of each epoch.
        best: The epoch whose weights these are.
        seconds: Of training.
    """

    rows: NDArray[np.intp]
    logits: NDArray[np.float32]
    features: NDArray[np.float32]
    independent: NDArray[np.float32]
    history: list[dict[str, float]]
    best: int
    seconds: float


def build_network(plan: Plan, arm: Arm, outputs: int = len(LABELS)) -> nn.Module:
    """The paper's 3D ResNet, with LayerNorm where the arm has it."""
    network = ResNet3D(plan.size, plan.filters, outputs=outputs, halving=plan.halving)
    widths = {"relu1": network.fc1.out_features, "relu2": network.fc2.out_features}
    for name in arm.layer_norm:
        setattr(network, name, nn.Sequential(nn.ReLU(), nn.LayerNorm(widths[name])))
    placed: nn.Module = network.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    return placed


def _standardised(images: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
    """Images in the same type, a part at a time: a whole cohort in full precision is large."""
    return torch.cat([((part.float() - mean) / sd).to(images.dtype) for part in images.split(EVAL_BATCH)])


class Trainer:
    """A fold's data, and the loop that every arm goes through.

    Args:
        plan: How it is trained.
        cohort: Whose folds they are.
        independent: People that are predicted as well, if any.
        fold: Its rows.
        seed: Of network and batches.
        augment: Applied to each batch of training images.
    """

    def __init__(
        self,
        plan: Plan,
        cohort: Volumes,
        independent: Volumes | None,
        fold: Fold,
        seed: int,
        augment: Augment | None = None,
    ) -> None:
        self.plan, self.cohort, self.independent, self.fold, self.seed = plan, cohort, independent, fold, seed
        self.augment = augment
        self.device = cohort.images.device
        self.task = cohort.task
        confounds, labels = list(self.task.confounds), list(self.task.labels)
        self.design = Design(confounds=confounds, keep=labels).fit(cohort.rows(fold.train))
        self._encoded = torch.from_numpy(self.design.encode(cohort.rows(np.arange(len(cohort.target))))).to(self.device)
        self._share = cohort.target[torch.from_numpy(fold.train).to(self.device)].mean(0)
        # What all brains share is taken out, so that training starts at what tells people apart.
        sample = cohort.images[torch.from_numpy(fold.train[:256]).to(self.device)].float()
        self.mean = sample.mean(0)
        sd = (sample - self.mean).std()
        self._images = {id(each): _standardised(each.images, self.mean, sd) for each in (cohort, independent) if each}

    def run(self, arm: Arm, batch_size: int) -> Outcome:
        """Train an arm, and predict with its best epoch."""
        started = time.monotonic()
        made, history, best = self.train(arm, batch_size)
        seconds = time.monotonic() - started
        logits, features = self.predict(made, self.cohort, self.fold.test)
        free = np.empty((0, logits.shape[1]), np.float32)
        if self.independent is not None:
            free, _ = self.predict(made, self.independent, np.arange(len(self.independent.target)))
        return Outcome(self.fold.test, logits, features, free, history, best, seconds)

    def train(self, arm: Arm, batch_size: int) -> tuple[Method, list[dict[str, float]], int]:
        """The method at its best epoch, the history, and that epoch; see `BestEpoch`."""
        torch.manual_seed(self.seed)
        made = self.prepare(arm)
        lr = self.plan.lr * math.sqrt(batch_size / 20)
        optimizer = torch.optim.AdamW(made.network_parameters(), lr=lr, weight_decay=self.plan.weight_decay, fused=True)
        history: list[dict[str, float]] = []
        best = BestEpoch()
        rows = len(self.fold.train)
        epochs = self.plan.epochs_for(batch_size, rows)
        if fault := warmup_never_ends(made.batches_to_warm_up, epochs * math.ceil(rows / batch_size), epochs):
            raise RunError(fault)
        for epoch in range(epochs):
            trained = self.epoch(made, optimizer, batch_size, epoch)
            made.eval()
            with self.precision(), made.refitted(self.held_out):
                validated = self._loss(made)
            history.append({"epoch": epoch, "train_loss": trained, "val_loss": validated})
            if not math.isfinite(trained) or not math.isfinite(validated):
                raise RunError(f"the losses must be finite; got {trained} and {validated} in epoch {epoch}. Lower lr.")
            warming = made.batches_to_warm_up > 0
            if best.yields_to(validated, warming):
                best = BestEpoch(epoch, validated, copy.deepcopy(made.state_dict()), warming)
            if best.waited(epoch) >= self.plan.patience * epochs:
                break
        made.load_state_dict(best.weights)
        made.eval()
        with self.precision():
            made.refit(self.held_out)
        return made, history, best.epoch

    def prepare(self, arm: Arm) -> Method:
        """An arm's method around a new network, on the device."""
        network = build_network(self.plan, arm, len(self.task.labels)).to(self.device)
        site, lr = self.task.site, self.plan.lr
        setting = Setting(self.design, arm.at, lambda: self._batches(self.fold.train, EVAL_BATCH), lr, site)
        return method(arm.method).prepare(network, setting, **arm.options).to(self.device)

    def epoch(self, made: Method, optimizer: torch.optim.Optimizer, batch_size: int, epoch: int) -> float:
        """Train on every row of the fold once; the mean loss."""
        made.train()
        order = np.random.default_rng([self.seed, epoch]).permutation(self.fold.train)
        total = torch.zeros((), device=self.device)
        for batch in self._batches(order, batch_size):
            if self.augment is not None:
                batch = replace(batch, x=self.augment(batch.x))
            with self.precision():
                made.before_step(batch)
                loss = made.loss(batch, self._criterion)
            optimizer.zero_grad(set_to_none=True)
            loss.total.backward()
            optimizer.step()
            total += loss.total.detach() * len(batch.x)
        return float(total) / len(order)

    def _batches(self, rows: NDArray[Any], batch_size: int) -> Iterator[TrainingBatch]:
        """Batches of nearly equal size, none larger than asked for."""
        for part in np.array_split(rows, -(-len(rows) // batch_size)):
            at = torch.from_numpy(part).to(self.device)
            controls = None if self.cohort.controls is None else self.cohort.controls[at]
            yield TrainingBatch(self._read(self.cohort, at), self._encoded[at], self.cohort.target[at], controls)

    def _read(self, volumes: Volumes, at: Tensor) -> Tensor:
        return self._images[id(volumes)][at].float().to(memory_format=torch.channels_last_3d)

    def held_out(self) -> Iterator[TrainingBatch]:
        """The validation rows."""
        return self._batches(self.fold.validation, EVAL_BATCH)

    @torch.no_grad()
    def _loss(self, made: Method) -> float:
        total = sum(
            float(self._criterion(made(batch.x, batch.metadata), batch.target)) * len(batch.x)
            for batch in self.held_out()
        )
        return total / len(self.fold.validation)

    @torch.no_grad()
    def predict(
        self, made: Method, volumes: Volumes, rows: NDArray[Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Logits, and what the last layer reads; the labels are not given."""
        kept: list[Tensor] = []
        last = made.network.get_submodule("fc3")
        handle = last.register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0].float().cpu()))
        logits = []
        try:
            for part in np.array_split(rows, -(-len(rows) // EVAL_BATCH)):
                known = {name: np.asarray(volumes.table[name])[part] for name in self.task.confound_columns}
                metadata = torch.from_numpy(self.design.encode(known)).to(self.device)
                at = torch.from_numpy(part).to(self.device)
                with self.precision():
                    logits.append(made(self._read(volumes, at), metadata).float().cpu())
        finally:
            handle.remove()
        return torch.cat(logits).numpy(), torch.cat(kept).numpy()

    def _criterion(self, logits: Tensor, target: Tensor) -> Tensor:
        return focal(logits.float(), target, self.plan.gamma, self._share).mean()

    def precision(self) -> Any:
        """Half precision on a GPU."""
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()
