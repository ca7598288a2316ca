"""The one definition of a training: the order of batches, a step, a validation, the best epoch, and the end.

Both drivers are loops around what is here: Lightning's (`engine`), for runs on disk, several GPUs and clusters, and the
one in memory (`in_memory`), for scikit-learn and experiments. Everything that is fitted sees the training rows, except
coefficients that a method refits on the validation rows, which also choose the best epoch; test rows reach neither.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.errors import DeconfoundWarning, RunError
from deconfound.methods import Criterion, Loss, Method, StratumCriterion, TrainingBatch
from deconfound.methods.base import row_losses, spread_weight

HeldOut = Callable[[], Iterable[TrainingBatch]]
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def seed_for(*parts: object) -> int:
    """A seed that differs for each run, fold and epoch, and is the same in every process."""
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:4], "big")


def shuffled(rows: int, seed: int, epoch: int, draw: NDArray[np.float64] | None = None) -> NDArray[np.intp]:
    """The order of the training rows in an epoch; drawn from (seed, epoch), so that a resumed epoch is the same one.

    With probabilities `draw` each row may come several times or not at all.
    """
    random = np.random.default_rng([seed, epoch])
    return random.permutation(rows) if draw is None else random.choice(rows, rows, p=draw)


def drawn_weights(
    weight: NDArray[np.float64], row_weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """The probabilities by which rows are drawn, and what their losses are still to be weighted by.

    Rows are drawn by the weight that layers use. Where that is not the weight of a label (several labels, or levels
    that teach layers alone), the loss is weighted by the quotient, of mean 1 among the rows that are drawn.

    Example:
        >>> draw, rest = drawn_weights(np.array([[2.0], [1.0], [0.0]]), np.array([2.0, 1.0, 1.0]))
        >>> draw.tolist(), (rest[:, 0] / rest[0, 0]).tolist()
        ([0.5, 0.25, 0.25], [1.0, 1.0, 0.0])
    """
    draw = row_weight / row_weight.sum()
    rows = row_weight.reshape(-1, *[1] * (weight.ndim - 1))
    rest = np.divide(weight, rows, out=np.zeros_like(weight), where=rows > 0)
    rest = rest / (draw @ rest)
    return draw, None if np.allclose(rest[row_weight > 0], 1.0) else rest


def number_of_batches(rows: int, batch_size: int) -> int:
    """Into how many batches of nearly equal size, none larger than asked for, rows are divided."""
    return max(1, -(-rows // batch_size))


def in_batches(rows: NDArray[np.intp], batch_size: int) -> list[NDArray[np.intp]]:
    """Batches of nearly equal size: a last batch of one row would ruin batch statistics.

    Example:
        >>> [len(batch) for batch in in_batches(np.arange(21), 10)]
        [7, 7, 7]
    """
    return np.array_split(rows, number_of_batches(len(rows), batch_size))


def make_optimizer(
    method: Method, name: str, lr: float | Tensor, weight_decay: float, **more: Any
) -> torch.optim.Optimizer:
    """The optimiser of a method's network: "adam", "adamw" or "sgd" with momentum 0.9."""
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    return OPTIMIZERS[name](method.parameter_groups(), lr=lr, weight_decay=weight_decay, **momentum, **more)


def training_loss(method: Method, batch: TrainingBatch, criterion: Criterion) -> Loss:
    """What backward is called on: the method's own step, then its loss."""
    method.before_step(batch)
    loss = method.loss(batch, criterion)
    return replace(loss, parts={**loss.parts, **criterion.noted()}) if isinstance(criterion, StratumCriterion) else loss


@torch.no_grad()
def validation_loss(
    method: Method, held_out: HeldOut, criterion: Criterion, precision: AbstractContextManager[Any] | None = None
) -> Tensor:
    """The mean loss on the validation rows, in eval mode, with coefficients refitted on them."""
    means = Means()
    method.eval()
    with precision or nullcontext(), method.refitted(held_out):
        for batch in held_out():
            means.add("loss", *judged(method, batch, criterion))
    return means.values()["loss"]


def judged(method: Method, batch: TrainingBatch, criterion: Criterion) -> tuple[Tensor, Tensor]:
    """The sum of a validation batch's (weighted) losses, and the sum of the weights."""
    losses = row_losses(criterion, method(batch.x, batch.metadata), batch)
    if batch.weight is None:
        return losses.mean() * len(batch.x), losses.new_full((), len(batch.x))
    weight = spread_weight(batch.weight, losses)
    return (losses * weight).sum(), weight.sum()


def exact_type(device: torch.device) -> torch.dtype:
    """In which losses are summed: Apple's GPUs have no doubles."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Run torch on so many CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Means:
    """Means of named losses over an epoch, summed on the device without waiting for it."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, name: str, total: Tensor, count: Tensor | int) -> None:
        """Add a sum over so many rows."""
        exact = exact_type(total.device)
        counted = count.to(exact) if isinstance(count, Tensor) else total.new_full((), count, dtype=exact)
        pair = torch.stack([total.detach().to(exact), counted])
        if name in self.sums:
            self.sums[name].add_(pair)
        else:
            self.sums[name] = pair

    def add_loss(self, loss: Loss, rows: int) -> None:
        """Add a training loss and its parts."""
        for name, part in {"loss": loss.total, **loss.parts}.items():
            self.add(name, part.detach() * rows, rows)

    def values(self) -> dict[str, Tensor]:
        """The means so far."""
        return {name: pair[0] / pair[1] for name, pair in self.sums.items()}

    def clear(self) -> None:
        """Start a new epoch."""
        for pair in self.sums.values():
            pair.zero_()


def is_better(loss: Any, warming: Any, best_loss: Any, best_warming: Any) -> Any:
    """Whether an epoch is better than the best so far; for numbers, and for tensors where a GPU is not waited for.

    The lower loss wins. A method that is warming up (`Method.batches_to_warm_up`) is not yet doing what it is there
    for: any later epoch is better than one of the warm-up.
    """
    return ((loss < best_loss) & (warming == best_warming)) | (best_warming & (warming != best_warming))


@dataclass(frozen=True)
class BestEpoch:
    """The best epoch so far: the lowest validation loss among those in which the method was in force.

    While it is warming up the lowest loss of all is kept, in case training stops there.

    Attributes:
        epoch: From 0; −1 for none.
        loss: On the validation rows.
        weights: The state after it.
        warming: Whether the method was not in force yet.
    """

    epoch: int = -1
    loss: float = math.inf
    weights: dict[str, Any] = field(default_factory=dict)
    warming: bool = True

    def yields_to(self, loss: float, warming: bool) -> bool:
        """Whether an epoch with this loss is better."""
        return bool(is_better(loss, warming, self.loss, self.warming))

    def waited(self, epoch: int) -> int:
        """For how many epochs nothing has been better; a method that is warming up is waited for."""
        return 0 if self.warming else epoch - self.epoch


def warmup_never_ends(to_warm_up: int, batches: int, epochs: int) -> str | None:
    """What is wrong with a training that ends before its method is in force; None where nothing is."""
    if to_warm_up < max(batches, 1):
        return None
    return (
        f"a warm-up must end before training does; got {to_warm_up} batches of warm-up and {batches} of training "
        f"({epochs} epochs). Lower warmup, or train for more epochs."
    )


def refuse_non_finite(losses: Mapping[str, float], epoch: int, advice: str) -> None:
    """Stop a training whose losses are not numbers any more."""
    for name, value in losses.items():
        if not math.isfinite(value):
            raise RunError(f"{name} must be finite; got {value} in epoch {epoch}. {advice}")


def warn_of_skipped(method: Method, before: int) -> int:
    """How many batches taught the layers nothing so far; a warning where there are more than before."""
    now = method.skipped_batches
    if now > before:
        warnings.warn(
            f"{now} batches so far taught the layers of method {method.name!r} nothing: features or gradients were not "
            "finite. Lower the learning rate, clip gradients, or look for extreme inputs.",
            DeconfoundWarning,
            stacklevel=2,
        )
    return now


def finish(method: Method, held_out: HeldOut, weights: Mapping[str, Any] | None = None) -> None:
    """The end of a training: the best epoch's weights, refitted on the validation rows as when those judged it."""
    if weights is not None:
        method.load_state_dict(weights)
    method.eval()
    method.refit(held_out)
