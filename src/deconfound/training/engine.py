"""The Lightning driver: a loop around `step` for runs on disk, several GPUs and clusters."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deconfound.data.files import read_checked, write_checked
from deconfound.errors import RunError, need
from deconfound.methods import Criterion, Method, TrainingBatch
from deconfound.training.batches import Batch
from deconfound.training.config import TrainingOptions
from deconfound.training.run_folder import load_tensors
from deconfound.training.step import (
    BestEpoch,
    HeldOut,
    Means,
    judged,
    make_optimizer,
    refuse_non_finite,
    seed_for,
    training_loss,
    warmup_never_ends,
    warn_of_skipped,
)

need("lightning", "train")
from lightning.fabric.plugins import CheckpointIO  # noqa: E402 - only after the check that says what to install
from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402

OnEpoch = Callable[[int, int, float], None]
ADVICE = "Lower training.lr, set training.clip, or look for extreme inputs."


class Engine(LightningModule):
    """A method as Lightning trains it: automatic optimisation, so that precision, accumulation and strategies apply.

    `validation` goes over the validation rows for a refit, apart from the loader that Lightning is reading.
    """

    def __init__(
        self,
        method: Method,
        criterion: Criterion,
        options: TrainingOptions,
        seed: int,
        validation: HeldOut | None = None,
    ) -> None:
        super().__init__()
        self.method, self.criterion, self.options, self.seed = method, criterion, options, seed
        self._validation = validation
        self._own_states: list[dict[str, Any]] = []
        self._means = {"train": Means(), "val": Means()}
        self._refitted: AbstractContextManager[None] = nullcontext()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The method's own step, then its loss."""
        loss = training_loss(self.method, TrainingBatch(**batch), self.criterion)
        self._means["train"].add_loss(loss, len(batch["x"]))
        return loss.total

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """The task's loss on rows that the network is not trained on."""
        self._means["val"].add("loss", *judged(self.method, TrainingBatch(**batch), self.criterion))

    def on_validation_epoch_start(self) -> None:
        """Let the method refit on the rows that will judge it."""
        assert self._validation is not None
        self._refitted = self.method.refitted(self._validation)
        with self.trainer.precision_plugin.forward_context():
            self._refitted.__enter__()

    def on_validation_epoch_end(self) -> None:
        """Let training go on as if nothing had been validated."""
        self._refitted.__exit__(None, None, None)

    def epoch_means(self) -> dict[str, float]:
        """The mean of each loss over the epoch's rows, on all devices; the next epoch starts anew.

        Summed in `Means` because `self.log` takes longer than a step of a small network.
        """
        found: dict[str, float] = {}
        for part, means in self._means.items():
            for name, pair in sorted(means.sums.items()):
                both = self.trainer.strategy.reduce(pair.clone(), reduce_op="sum")
                found[f"{part}_{name}"] = float(both[0] / both[1])
            means.clear()
        for logger in self.loggers:
            logger.log_metrics(found, step=self.current_epoch)
        return found

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Start each epoch from its own seed, so that a resumed one draws the same dropout."""
        if batch_idx == 0:
            seed_all(seed_for(self.seed, "epoch", self.current_epoch, self.global_rank))

    def on_train_start(self) -> None:
        """Restore the method's own optimisers once their parameters lie on the device; refuse a warm-up without end."""
        epochs = self.options.epochs - self.current_epoch
        batches = epochs * int(self.trainer.num_training_batches)
        if fault := warmup_never_ends(self.method.batches_to_warm_up, batches, epochs):
            raise RunError(fault)
        for optimizer, state in zip(self.method.own_optimizers(), self._own_states, strict=False):
            optimizer.load_state_dict(state)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the method's own optimisers."""
        checkpoint["own_optimizers"] = [optimizer.state_dict() for optimizer in self.method.own_optimizers()]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep their states until training starts."""
        self._own_states = checkpoint["own_optimizers"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimiser, for the network."""
        options = self.options
        return make_optimizer(self.method, options.optimizer, options.lr, options.weight_decay)


class KeepBestEpoch(Callback):
    """Watches the validation loss: keeps the best weights, stops in time, and writes one file to resume from.

    The file holds the trainer's state, the history and the best weights together, so that no kill can separate them.
    """

    def __init__(self, path: Path, epochs: int, patience: int | None, seconds: float, tick: OnEpoch | None) -> None:
        self.path, self.epochs, self.patience, self.seconds, self.tick = path, epochs, patience, seconds, tick
        self.history: list[dict[str, float]] = []
        self.best = BestEpoch()
        self.finished = False
        self.skipped = 0
        self._saved_at = time.monotonic()

    @property
    def state_key(self) -> str:
        """Where the checkpoint holds `state_dict`."""
        return "keeper"

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"history": self.history, "best": vars(self.best), "finished": self.finished}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.history, self.finished = state_dict["history"], state_dict["finished"]
        self.best = BestEpoch(**{"warming": False} | state_dict["best"])  # older checkpoints know of no warm-up

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the epoch, keep it if it is the best, and stop if the last best one is too long ago."""
        assert isinstance(pl_module, Engine)
        epoch, values = trainer.current_epoch, pl_module.epoch_means()
        refuse_non_finite({name: values[name] for name in ("train_loss", "val_loss")}, epoch, ADVICE)
        self.skipped = warn_of_skipped(pl_module.method, self.skipped)
        skipped = {"skipped_batches": self.skipped} if self.skipped else {}
        self.history.append({"epoch": epoch, **values, **skipped})
        loss, warming = values["val_loss"], pl_module.method.batches_to_warm_up > 0
        if self.best.yields_to(loss, warming):
            self.best = BestEpoch(epoch, loss, _copied(trainer.strategy.lightning_module_state_dict()), warming)
        in_vain = self.patience is not None and self.best.waited(epoch) >= self.patience
        self.finished = epoch + 1 >= self.epochs or in_vain
        trainer.should_stop = self.finished
        if self.finished or time.monotonic() - self._saved_at >= self.seconds:
            trainer.save_checkpoint(self.path)
            self._saved_at = time.monotonic()
        if self.tick is not None and trainer.is_global_zero:
            self.tick(epoch + 1, self.epochs, self.best.loss)


class WholeFiles(CheckpointIO):
    """Checkpoints by temporary file, flush and rename, with a digest; read without unpickling code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint."""
        content = io.BytesIO()
        torch.save(checkpoint, content)
        write_checked(Path(path), content.getvalue())

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint."""
        return load_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint of `WholeFiles`, on the CPU."""
    found: dict[str, Any] = load_tensors(path, read_checked(path))
    return found


def seed_all(seed: int) -> None:
    """Seed every generator that a network or a method may draw from."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - a user's network may draw from the global generator
    random.seed(seed)


def _copied(value: Any) -> Any:
    """A state dict that further training does not change."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value
