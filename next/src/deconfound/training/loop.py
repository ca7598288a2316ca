"""The one training loop: any method, from its first step to its best, refitted state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deconfound.errors import StateError
from deconfound.methods import Batch, Batches, Criterion, Method
from deconfound.training.launcher import Launcher, Plain
from deconfound.training.part import Part, mix_seeds
from deconfound.training.schedule import Schedule

# Called after each validation with the progress so far.
OnValidation = Callable[["Progress"], None]


def train(  # noqa: PLR0913
    method: Method,
    fitting: Part,
    held_out: Part | None,
    criterion: Criterion,
    schedule: Schedule,
    *,
    launcher: Launcher | None = None,
    seed: int = 0,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 5.0,
    refit: bool = True,
    on_validation: OnValidation | None = None,
) -> Progress:
    """Train a method on some rows, and leave it at its best state, refitted to held-out rows.

    Args:
        method: The method. It is fitted to the training rows first (`method.fit`).
        fitting: The training rows.
        held_out: Validation rows. Their loss chooses the best state, and coefficients of confounds
            are refitted to them; nothing else reads them. None keeps the last state.
        criterion: The loss.
        schedule: How long and how fast.
        launcher: A `Plain` device, or a launched Fabric. None takes the first GPU, or the CPU.
        seed: The seed of the order of rows, of augmentation and of dropout. Equal seeds give equal
            results on one machine.
        checkpoint: A file to which the state is written after validations, and from which a stopped
            training goes on with the numbers of an undisturbed one.
        checkpoint_seconds: The least number of seconds between two writings. What a stopped
            training repeats takes about as long.
        refit: False leaves coefficients as training left them, as in the published methods.
        on_validation: Called after each validation with the `Progress`.

    Raises:
        StateError: The loss is not finite.

    Example:
        >>> import torch, deconfound as dc
        >>> from deconfound.methods import Method, Setting
        >>> from deconfound.training import Part, Schedule, binary_cross_entropy, train
        >>> x, ill, people = dc.example("heart")
        >>> design = dc.Design(["age", "hospital"], keep=["ill"]).fit(people[:600])
        >>> metadata = torch.from_numpy(design.encode(people))
        >>> def rows(start, stop):
        ...     places = torch.arange(start, stop)
        ...     return Part(x, places, metadata[places], ill[places, None])
        >>> method = Method(torch.nn.Linear(4, 1), Setting(design, x[:2]))
        >>> progress = train(
        ...     method, rows(0, 600), rows(600, 920), binary_cross_entropy, Schedule(epochs=3)
        ... )
        >>> len(progress.history)
        3
    """
    launcher = launcher or Plain()
    # Seeds are set below; the caller's random numbers stay as they are.
    with torch.random.fork_rng():
        method.to(launcher.device)
        method.fit(fitting.batches)
        model, *optimizers = launcher.setup(method, *method.optimizers(schedule.make_optimizer))
        if model is not method:
            # With several processes, gradients are joined behind this call.
            model.mark_forward_method("loss")
        steps = _Steps(method, model, optimizers, fitting, criterion, schedule, launcher, seed)
        progress = Progress(steps.total)
        stored = _Checkpoint(checkpoint, checkpoint_seconds, method, optimizers, progress, launcher)
        stored.load()
        while not progress.is_finished:
            stop = progress.step + (schedule.validate_every or steps.per_epoch)
            stop = min(stop, steps.total)
            training_loss = steps.take(progress.step, stop)
            entry = {"epoch": stop / steps.per_epoch, "step": stop, "training_loss": training_loss}
            if held_out is not None:
                refitting = _share_rows(held_out, launcher.world_size) if refit else None
                entry["validation_loss"] = _validate(method, held_out, criterion, refitting)
            _check_finite(entry)
            progress.note(entry, method, schedule.patience)
            stored.save()
            if on_validation is not None:
                on_validation(progress)
    method.load_state_dict(progress.best_state)
    method.eval()
    if refit and held_out is not None:
        method.refit(_share_rows(held_out, launcher.world_size))
    return progress


@torch.no_grad()
def outputs(method: Method, part: Part) -> Tensor:
    """Return what a method gives for all rows of a part, shape `(n, k)`, in evaluation mode."""
    method.eval()
    return torch.cat([method(batch.x, batch.metadata).float() for batch in part.batches()])


class Progress:
    """What has happened in a training so far.

    Attributes:
        step: The number of steps taken.
        steps: The largest number of steps.
        history: One entry per validation: epoch, step, training_loss and validation_loss.
        best: The entry with the lowest validation loss; without held-out rows, the last one.
        best_state: The method's state at that time.
        is_finished: Whether all steps are taken, or patience has run out.
    """

    def __init__(self, steps: int) -> None:
        self.step = 0
        self.steps = steps
        self.history: list[dict[str, float]] = []
        self.best: dict[str, float] = {}
        self.best_state: dict[str, Any] = {}
        self.is_finished = False

    def note(self, entry: dict[str, float], method: Method, patience: int | None) -> None:
        """Add a validation, and keep the method's state if it is the best so far."""
        self.history.append(entry)
        self.step = int(entry["step"])
        loss = entry.get("validation_loss")
        if not self.best or loss is None or loss < self.best["validation_loss"]:
            self.best = entry
            state = method.state_dict()
            self.best_state = {name: value.detach().clone() for name, value in state.items()}
        validations_since_best = len(self.history) - 1 - self.history.index(self.best)
        is_patient = patience is None or validations_since_best < patience
        self.is_finished = self.step >= self.steps or not is_patient

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return dict(self.__dict__)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the progress of a stopped training."""
        self.__dict__.update(state)


@dataclass(frozen=True)
class _Steps:
    """The steps of one training."""

    method: Method
    model: Any
    optimizers: Sequence[Optimizer]
    fitting: Part
    criterion: Criterion
    schedule: Schedule
    launcher: Launcher
    seed: int

    @property
    def per_epoch(self) -> int:
        return self.fitting.count_batches(self.schedule.batch_size)

    @property
    def total(self) -> int:
        return self.per_epoch * self.schedule.epochs

    def take(self, start: int, stop: int) -> float:
        """Take the steps from `start` up to `stop`, and return the mean loss of their rows."""
        _set_training_mode(self.method)
        rank = self.launcher.global_rank
        # A training that goes on from a checkpoint draws the same dropout.
        torch.manual_seed(mix_seeds(self.seed, start, rank))
        order: list[Tensor] = []
        total = torch.zeros(2, device=self.launcher.device, dtype=torch.float64)
        for step in range(start, stop):
            epoch, place = divmod(step, self.per_epoch)
            if not order or place == 0:
                order = self._order(epoch)
            batch = self.fitting.batch(order[place], mix_seeds(self.seed, step, rank))
            self.schedule.set_rate(self.optimizers, step, self.total)
            loss = self.method.step(
                self.model, batch, self.criterion, self.optimizers, self._update
            )
            # The loss is read once, at the end: reading makes a device wait.
            total[0] += loss * len(batch.target)
            total[1] += len(batch.target)
        loss_sum, rows = self.launcher.all_reduce(total, reduce_op="sum").tolist()
        return float(loss_sum / rows)

    def _order(self, epoch: int) -> list[Tensor]:
        return self.fitting.order(
            self.seed,
            epoch,
            self.schedule.batch_size,
            self.launcher.global_rank,
            self.launcher.world_size,
        )

    def _update(self, loss: Tensor, optimizer: Optimizer) -> None:
        optimizer.zero_grad()
        self.launcher.backward(loss)
        if self.schedule.clip is not None:
            self.launcher.clip_gradients(self.model, optimizer, max_norm=self.schedule.clip)
        optimizer.step()


def _set_training_mode(method: nn.Module) -> None:
    """Set training mode, except for parts whose parameters are all frozen.

    Otherwise the batch norms of a frozen network would follow the training rows.
    """
    method.train()
    for part in method.modules():
        parameters = list(part.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            part.eval()


@torch.no_grad()
def _validate(
    method: Method, held_out: Part, criterion: Criterion, refitting: Batches | None
) -> float:
    """Return the loss of the held-out rows, with coefficients refitted to them."""
    method.eval()
    with nullcontext() if refitting is None else method.refitted(refitting):
        logits = outputs(method, held_out)
    # All rows at once: a loss that compares rows is then exact.
    return float(criterion(logits, held_out.without_inputs()))


def _share_rows(held_out: Part, processes: int) -> Batches:
    """Return the held-out batches for a refit, where every process has all rows.

    Layers add up what all processes pass them, so that each row counts for its share only.
    """

    def batches() -> Iterator[Batch]:
        for batch in held_out.batches():
            weight = batch.layer_weight
            if weight is None:
                weight = torch.ones_like(batch.metadata[:, 0])
            yield batch._replace(layer_weight=weight / processes)

    return held_out.batches if processes == 1 else batches


def _check_finite(entry: dict[str, float]) -> None:
    for name in ("training_loss", "validation_loss"):
        if not abs(entry.get(name, 0.0)) < float("inf"):
            raise StateError(
                f"Training diverged: the {name.replace('_', ' ')} is {entry[name]} after "
                f"{entry['epoch']:.3g} epochs. Lower the learning rate (training.lr), clip "
                "gradients (training.clip: 1), or look for extreme values among the features."
            )


class _Checkpoint:
    """The file of a training that may be stopped at any time."""

    def __init__(
        self,
        path: Path | None,
        seconds: float,
        method: Method,
        optimizers: Sequence[Optimizer],
        progress: Progress,
        launcher: Launcher,
    ) -> None:
        self._path, self._seconds, self._launcher = path, seconds, launcher
        self._stateful: dict[str, Any] = {"method": method, "progress": progress}
        self._stateful |= {f"optimizer {place}": one for place, one in enumerate(optimizers)}
        self._time = time.monotonic()

    def load(self) -> None:
        if self._path is None or not self._path.exists():
            return
        state = torch.load(self._path, map_location=self._launcher.device, weights_only=True)
        for name, one in self._stateful.items():
            one.load_state_dict(state[name])

    def save(self) -> None:
        """Write the file if it is due, whole or not at all."""
        is_due = time.monotonic() - self._time >= self._seconds
        if self._path is None or not is_due or self._launcher.global_rank > 0:
            return
        beside = self._path.with_name(self._path.name + ".new")
        torch.save({name: one.state_dict() for name, one in self._stateful.items()}, beside)
        os.replace(beside, self._path)
        self._time = time.monotonic()
