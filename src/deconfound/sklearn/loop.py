"""The training loop of an estimator: shuffled batches, AdamW, early stopping, and the best state kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from deconfound.errors import OptionError
from deconfound.layers import alternating_step, split_parameters
from deconfound.surgery import NormalizedModel

Criterion = Callable[[Tensor, Tensor], Tensor]

# The rate of plain descent on β where an optimiser of its own trains it (layer="pmdn-alternating").
COEFFICIENT_RATE = 0.1


@dataclass(frozen=True)
class Rows:
    """Samples for the network, with their metadata where it reads any."""

    x: Tensor
    metadata: Tensor | None
    target: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def part(self, rows: Tensor) -> Rows:
        """Some of the rows."""
        metadata = None if self.metadata is None else self.metadata[rows]
        return Rows(self.x[rows], metadata, self.target[rows])


@dataclass(frozen=True)
class Schedule:
    """How training goes; see `DeconfoundedClassifier` for each."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    patience: int
    refit: bool
    verbose: bool


@dataclass(frozen=True)
class Epoch:
    """The mean losses of one epoch; `validation` is None without early stopping."""

    training: float
    validation: float | None


def train(
    model: nn.Module, training: Rows, validation: Rows | None, criterion: Criterion, schedule: Schedule
) -> tuple[Epoch, ...]:
    """Train in place; with validation rows, end on the epoch that served them best, its β refitted on them."""
    step = _stepper(model, criterion, schedule)
    history: list[Epoch] = []
    best, best_loss, best_epoch = _state(model), float("inf"), 0
    for number in range(1, schedule.epochs + 1):
        model.train()
        total = torch.zeros((), dtype=torch.float64, device=training.x.device)
        for rows in _batches(torch.randperm(len(training), device=training.x.device), schedule.batch_size):
            total += step(training.part(rows)) * len(rows)
        held_out = None if validation is None else _judged(model, validation, criterion, schedule)
        history.append(Epoch(float(total) / len(training), held_out))
        if schedule.verbose:
            shown = "" if held_out is None else f", validation {held_out:.4f}"
            print(f"epoch {number}/{schedule.epochs}: loss {history[-1].training:.4f}{shown}", flush=True)
        if held_out is None:
            continue
        if held_out < best_loss:
            best, best_loss, best_epoch = _state(model), held_out, number
        elif number - best_epoch >= schedule.patience:
            break
    if not math.isfinite(history[-1].training if validation is None else best_loss):
        raise OptionError(
            f"lr must let training reach a finite loss; got none at lr={schedule.lr}. Choose a smaller one."
        )
    if validation is not None:
        _restore(model, best)
        if schedule.refit and isinstance(model, NormalizedModel):
            model.refit(_to_refit(validation, schedule))
    model.eval()
    return tuple(history)


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor, metadata: Tensor | None, batch_size: int) -> Tensor:
    """What the model answers in eval mode."""
    model.eval()
    parts = [
        _call(model, x[rows], None if metadata is None else metadata[rows])
        for rows in torch.arange(len(x), device=x.device).split(batch_size)
    ]
    return torch.cat(parts)


def _judged(model: nn.Module, rows: Rows, criterion: Criterion, schedule: Schedule) -> float:
    """The loss on held-out rows, with β as it would be after refitting on them."""
    refitted: AbstractContextManager[None] = nullcontext()
    if schedule.refit and isinstance(model, NormalizedModel):
        refitted = model.refitted(_to_refit(rows, schedule))
    with refitted:
        return float(criterion(outputs(model, rows.x, rows.metadata, schedule.batch_size), rows.target))


def _to_refit(rows: Rows, schedule: Schedule) -> list[tuple[Tensor, Tensor]]:
    """The rows in batches; tables in one, which needs a single pass."""
    assert rows.metadata is not None
    size = len(rows) if rows.x.ndim == 2 else schedule.batch_size
    return list(zip(rows.x.split(size), rows.metadata.split(size), strict=True))


def _stepper(model: nn.Module, criterion: Criterion, schedule: Schedule) -> Callable[[Rows], Tensor]:
    """One step on a batch, as the model's layer asks for: returns the loss."""
    network, coefficients = split_parameters(model)
    optimizer = torch.optim.AdamW(network, lr=schedule.lr, weight_decay=schedule.weight_decay)
    kind = model.plan.layer if isinstance(model, NormalizedModel) else None
    if kind == "pmdn-joint":
        optimizer.add_param_group({"params": coefficients, "weight_decay": 0.0})

    def loss_of(batch: Rows) -> Tensor:
        return criterion(_call(model, batch.x, batch.metadata), batch.target)

    def plain(batch: Rows) -> Tensor:
        loss = loss_of(batch)
        total = loss + model.penalty() if kind == "pmdn-joint" and isinstance(model, NormalizedModel) else loss
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        return loss.detach()

    if kind != "pmdn-alternating":
        return plain
    descent = torch.optim.SGD(coefficients, lr=COEFFICIENT_RATE)
    return lambda batch: alternating_step(model, lambda: loss_of(batch), optimizer, descent)


def _call(model: nn.Module, x: Tensor, metadata: Tensor | None) -> Tensor:
    answer: Tensor = model(x) if metadata is None else model(x, metadata=metadata)
    return answer


def _batches(order: Tensor, size: int) -> Iterator[Tensor]:
    """Batches of nearly equal size: a last one of a single row would stop a BatchNorm and mislead a fit."""
    yield from order.tensor_split(max(1, round(len(order) / size)))


def _state(model: nn.Module) -> dict[str, Tensor]:
    tensors = chain(model.named_parameters(), model.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in tensors}


@torch.no_grad()
def _restore(model: nn.Module, state: dict[str, Tensor]) -> None:
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        tensor.copy_(state[name])
