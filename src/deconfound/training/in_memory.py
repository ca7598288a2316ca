"""The driver that keeps everything in memory: for scikit-learn and experiments; needs torch alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.errors import RunError
from deconfound.methods import Criterion, Method, StratumCriterion
from deconfound.training.replay import Replay
from deconfound.training.samples import Samples
from deconfound.training.schedule import Epoch, Schedule, TrainingResult
from deconfound.training.step import (
    Means,
    exact_type,
    finish,
    in_batches,
    is_better,
    make_optimizer,
    shuffled,
    training_loss,
    validation_loss,
    warmup_never_ends,
    warn_of_skipped,
)
from deconfound.training.within import paired_batches

State = list[Tensor]


class InMemoryTrainer:
    """A training that is taken step by step; `train_in_memory` takes all of them.

    Args:
        method: Around its network, on the device of the samples; trained in place.
        train: What it is trained on.
        validation: What chooses the best state, and what coefficients are refitted on; None keeps the last state.
        criterion: The loss of each row.
        schedule: How long and how fast.
        seed: Of the order of the rows. Torch's own generator, which dropout draws from, is the caller's to seed.
        augment: Applied to the inputs of each training batch.

    Attributes:
        done: Steps so far.
        best: The state with the lowest validation loss so far; `load` takes it.
    """

    def __init__(
        self,
        method: Method,
        train: Samples,
        validation: Samples | None,
        criterion: Criterion,
        schedule: Schedule,
        *,
        seed: int = 0,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.method, self.criterion, self.schedule = method, criterion, schedule
        self.train = train.with_mean_weight_one()
        self._draw_by: NDArray[Any] | None = None
        if schedule.draw_by_weight and self.train.weight is not None:
            self.train, self._draw_by = self.train.drawn_by_weight()
        self.validation = None if validation is None or not len(validation) else validation.with_mean_weight_one()
        self._pairs = train.pairs() if isinstance(criterion, StratumCriterion) else None
        self.done = 0
        self._seed, self._augment = seed, augment
        self._device = train.x.device
        self._per_epoch = schedule.batches(len(train))
        self.steps = schedule.steps or self._per_epoch * (schedule.epochs or 0)
        self._warmup = method.batches_to_warm_up
        if fault := warmup_never_ends(self._warmup, self.steps, math.ceil(self.steps / self._per_epoch)):
            raise RunError(fault)
        graphs = schedule.capture and self._device.type == "cuda"
        self._lr: Any = torch.tensor(schedule.lr, device=self._device) if graphs else schedule.lr
        options = {"capturable": True} if graphs else {}
        self._optimizer = make_optimizer(method, schedule.optimizer, self._lr, schedule.weight_decay, **options)
        self._order: list[Tensor] = []
        self._means = Means()
        self._noted: list[tuple[int, dict[str, Tensor]]] = []
        self.best = self.state()
        self.best_loss = torch.full((), torch.inf, dtype=exact_type(self._device), device=self._device)
        self.best_step = torch.zeros((), dtype=torch.long, device=self._device)
        self._best_warming = torch.ones((), dtype=torch.bool, device=self._device)
        self._now = torch.zeros((), dtype=torch.long, device=self._device)
        self._warming = torch.ones((), dtype=torch.bool, device=self._device)
        self._loss = torch.zeros((), dtype=exact_type(self._device), device=self._device)
        self._replay: Replay | None = self._captured() if graphs else None

    def step(self) -> None:
        """Train on the next batch."""
        with self._in_turn():  # row numbers too belong to the stream that reads them
            if not self._order:
                self._order = self._draw(self.done // self._per_epoch)
            rows = self._order.pop(0)
            if self.schedule.rate is not None:
                self._set_rate(self.schedule.lr * self.schedule.rate((self.done + 0.5) / self.steps))
            if self._replay is None:
                self._train_on(rows)
            else:
                self._replay.step(rows)
        self.done += 1

    def validate(self) -> None:
        """Judge the present state on the validation rows, keep it if it is the best, and note the losses."""
        with self._in_turn():
            noted = {name: value.clone() for name, value in self._means.values().items()}
            self._means.clear()
            if self.validation is not None:
                self._now.fill_(self.done)
                self._warming.fill_(self.done < self._warmup)
                if self._replay is None:
                    self._judge()
                else:
                    self._replay.validate()
                noted["validation"] = self._loss.clone()
        self._noted.append((self.done, noted))

    def time_to_validate(self) -> bool:
        """Whether the schedule asks for a validation after this step."""
        return self.done % (self.schedule.validate_every or self._per_epoch) == 0 or self.done >= self.steps

    def waited(self) -> int:
        """How many validations have passed without a better one, after the warm-up."""
        if self.validation is None or bool(self._best_warming):
            return 0
        return sum(step > int(self.best_step) for step, _ in self._noted)

    def history(self) -> tuple[Epoch, ...]:
        """What has been noted so far; a loss that is not finite is refused."""
        self.wait()
        return tuple(Epoch.of(number, step, noted) for number, (step, noted) in enumerate(self._noted))

    def state(self) -> State:
        """A copy of all parameters and buffers after the steps so far."""
        self.wait()
        return [value.clone() for value in self._tensors()]

    def load(self, state: State, *, refit: bool = False) -> None:
        """Put parameters and buffers back; with `refit`, let the method refit on the validation rows as at the end."""
        self.wait()
        with torch.no_grad():
            for now, then in zip(self._tensors(), state, strict=True):
                now.copy_(then)
        if refit:
            self.refit()
        self.wait()

    def refit(self) -> None:
        """Let the method refit on the validation rows, and leave it in eval mode."""
        self.method.eval()
        if self.validation is not None:
            with self._precision():
                finish(self.method, self._held_out)

    def wait(self) -> None:
        """Until a GPU has done all steps that were asked for."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _train_on(self, rows: Tensor) -> None:
        self.method.train()
        batch = self.train.batch(rows)
        if self._augment is not None:
            batch = replace(batch, x=self._augment(batch.x))
        with self._precision():
            loss = training_loss(self.method, batch, self.criterion)
        self._optimizer.zero_grad(set_to_none=True)
        loss.total.backward()
        self._optimizer.step()
        self._means.add_loss(loss, len(rows))

    @torch.no_grad()
    def _judge(self) -> None:
        self._loss.copy_(validation_loss(self.method, self._held_out, self.criterion, self._precision()))
        better = is_better(self._loss, self._warming, self.best_loss, self._best_warming)
        kept = (*self.best, self.best_loss, self.best_step, self._best_warming)
        for best, now in zip(kept, (*self._tensors(), self._loss, self._now, self._warming), strict=True):
            best.copy_(torch.where(better, now, best))

    def _draw(self, epoch: int) -> list[Tensor]:
        """The batches of an epoch."""
        order = shuffled(len(self.train), self._seed, epoch, self._draw_by)
        if self.schedule.capture:
            order = order[: self._per_epoch * min(self.schedule.batch_size, len(order))]
        batches = in_batches(order, self.schedule.batch_size)
        if self._pairs is not None:
            batches = paired_batches(batches, *self._pairs)
        every = torch.from_numpy(np.concatenate(batches)).to(self._device)  # one copy, not one for each batch
        return list(every.split([len(rows) for rows in batches]))

    def _held_out(self) -> Iterator[Any]:
        assert self.validation is not None
        return self.validation.batches(self.schedule.eval_batch)

    def _tensors(self) -> State:
        return [value.detach() for value in (*self.method.parameters(), *self.method.buffers())]

    def _set_rate(self, lr: float) -> None:
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def _precision(self) -> AbstractContextManager[Any]:
        kind = self.schedule.autocast
        return nullcontext() if kind is None else torch.autocast(self._device.type, kind)

    def _in_turn(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._replay is None else torch.cuda.stream(self._replay.stream)

    def _captured(self) -> Replay:
        """Steps and validations as graphs; what the trial runs before a capture have changed is put back."""
        start = self.state()
        for own in self.method.own_optimizers():
            for group in own.param_groups:
                if "capturable" in group:
                    group["capturable"] = True
        judge = self._judge if self.validation is not None else None
        replay = Replay(self._train_on, judge, self._draw(0)[0])
        for optimizer in (self._optimizer, *self.method.own_optimizers()):
            for state in optimizer.state.values():
                for value in state.values():
                    value.zero_()
        self._means.clear()
        self.load(start)
        for best, then in zip(self.best, start, strict=True):
            best.copy_(then)
        self.best_loss.fill_(torch.inf)
        self._best_warming.fill_(True)
        self.wait()
        return replay


def train_in_memory(
    method: Method,
    train: Samples,
    validation: Samples | None,
    criterion: Criterion,
    schedule: Schedule,
    *,
    seed: int = 0,
    augment: Callable[[Tensor], Tensor] | None = None,
    refit: bool = True,
    progress: Callable[[Epoch], None] | None = None,
    tick: Callable[[int], None] | None = None,
) -> TrainingResult:
    """Train a method in place, and leave it in eval mode with the weights that were kept.

    Args:
        method: See `InMemoryTrainer`, also for the arguments up to `augment`.
        train: See there.
        validation: See there.
        criterion: See there.
        schedule: See there.
        seed: See there.
        augment: See there.
        refit: Whether the method refits on the validation rows in the end.
        progress: Called after each validation.
        tick: Called after each step with the number of steps done.
    """
    started = time.monotonic()
    trainer = InMemoryTrainer(method, train, validation, criterion, schedule, seed=seed, augment=augment)
    history: tuple[Epoch, ...] = ()
    skipped = 0
    while trainer.done < trainer.steps:
        trainer.step()
        if tick is not None:
            tick(trainer.done)
        if not trainer.time_to_validate():
            continue
        trainer.validate()
        history = trainer.history()
        skipped = warn_of_skipped(method, skipped)
        if progress is not None:
            progress(history[-1])
        if schedule.patience is not None and trainer.waited() >= schedule.patience:
            break
    best = len(history) - 1
    if trainer.validation is not None and schedule.keep == "best":
        trainer.load(trainer.best)
        best = next(epoch.number for epoch in history if epoch.step == int(trainer.best_step))
    method.eval()
    if refit:
        trainer.refit()
    kept = history[best]
    return TrainingResult(history, best, kept.step, kept.validation, skipped, time.monotonic() - started)
