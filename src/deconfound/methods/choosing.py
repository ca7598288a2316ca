"""How strongly a method removes, chosen on validation rows: the one rule of every method that has such a weight.

Trainings climb a ladder of weights from 0 on. A weight passes if the mean loss of the validation rows, under their
weights, is at most that of weight 0 plus one standard error of it, and if the outputs still tell something: the loss of
every row's own output is below that of their mean, by more than one standard error of the difference. The last weight
that passes is chosen; the first that does not pass ends the climb. Where outputs of weight 0 tell nothing, 0 is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from deconfound.errors import OptionError
from deconfound.methods.base import Criterion, Method, TrainingBatch, row_losses, row_weight

T = TypeVar("T")
# The weights that are tried, each about three times the one before.
LADDER = (0.0, 0.3, 1.0, 3.0, 10.0)
# The weight of a method that is trained without a choice.
UNCHOSEN = 1.0


@dataclass(frozen=True)
class HeldOutLoss:
    """What a trained method loses on validation rows.

    Attributes:
        mean: Of the rows' losses, under their weights.
        error: The standard error of `mean`.
        gain: How much higher the mean is where every row is given the mean output.
        gain_error: The standard error of `gain`.
    """

    mean: float
    error: float
    gain: float
    gain_error: float

    @property
    def collapsed(self) -> bool:
        """Whether the outputs tell nothing about the labels."""
        return not self.gain > self.gain_error


@dataclass(frozen=True)
class Tried:
    """One rung of the ladder: the options, and what the training came to; `passed` by the rule above."""

    options: Mapping[str, Any]
    loss: HeldOutLoss
    passed: bool


@dataclass(frozen=True)
class Climb(Generic[T]):
    """What a climb came to: the result of the chosen training, its options, and every training in order."""

    result: T
    chosen: Mapping[str, Any]
    tried: tuple[Tried, ...]

    @property
    def sentence(self) -> str:
        """For a log: what was chosen, and why not more."""
        last = self.tried[-1]
        told = ", ".join(f"{name} {value:g}" for name, value in self.chosen.items())
        if self.tried[0].loss.collapsed:
            return f"chose {told}: the outputs tell nothing about the labels even at weight 0"
        if last.passed:
            return f"chose {told}, the most that was tried"
        why = "outputs collapse" if last.loss.collapsed else "the validation loss rises by more than a standard error"
        return f"chose {told}: beyond it {why}"

    @property
    def warning(self) -> str | None:
        """What a user must hear: at weight 0 a method removes nothing; None above it, or where a weight was given."""
        if self.chosen.get("weight") != 0:
            return None
        return f"{self.sentence}. At weight 0 nothing is removed: read it as the plain network."


def climb(
    rungs: Sequence[Sequence[Mapping[str, Any]]], train: Callable[[Mapping[str, Any]], tuple[T, HeldOutLoss]]
) -> Climb[T]:
    """Train at one rung after the other until one does not pass.

    Args:
        rungs: Options of each rung, the first with weight 0; several for one rung are tried until one passes.
        train: Trains with these options.

    Example:
        >>> def train(options):
        ...     weight = options["weight"]
        ...     return f"trained at {weight}", HeldOutLoss(0.4 + 0.01 * weight, 0.02, 0.3 - 0.1 * weight, 0.01)
        >>> found = climb([[{"weight": w}] for w in (0.0, 1.0, 3.0, 10.0)], train)
        >>> found.result, found.sentence
        ('trained at 1.0', 'chose weight 1: beyond it outputs collapse')
    """
    result, first = train(rungs[0][0])
    chosen, tried = rungs[0][0], [Tried(rungs[0][0], first, not first.collapsed)]
    most = first.mean + first.error
    for rung in rungs[1:] if not first.collapsed else ():
        for options in rung:
            found, loss = train(options)
            tried.append(Tried(options, loss, loss.mean <= most and not loss.collapsed))
            if tried[-1].passed:
                result, chosen = found, options
                break
        if not tried[-1].passed:
            break
    return Climb(result, chosen, tuple(tried))


@torch.no_grad()
def held_out_loss(method: Method, held_out: Iterable[TrainingBatch], criterion: Criterion) -> HeldOutLoss:
    """The loss of a trained method, in eval mode, on validation rows."""
    method.eval()
    batches = list(held_out)
    logits = [method(batch.x, batch.metadata) for batch in batches]
    mean_logit = torch.cat(logits).mean(0, keepdim=True)
    own, of_mean, weights = [], [], []
    for batch, said in zip(batches, logits, strict=True):
        rows = len(batch.x)
        own.append(_per_row(criterion, said, batch))
        of_mean.append(_per_row(criterion, mean_logit.expand_as(said), batch))
        weights.append(torch.ones(rows, device=said.device) if batch.weight is None else row_weight(batch.weight))
    losses, flat, weight = (torch.cat(parts).double() for parts in (own, of_mean, weights))
    return HeldOutLoss(*_mean_and_error(losses, weight), *_mean_and_error(flat - losses, weight))


def _per_row(criterion: Criterion, logits: Tensor, batch: TrainingBatch) -> Tensor:
    """`(n,)`: the mean over labels of each row's loss."""
    losses = row_losses(criterion, logits, batch)
    if losses.ndim == 0:
        raise OptionError(
            "a criterion must return one loss per row where a weight is chosen; got their mean. Use reduction='none', "
            "or give the weight."
        )
    return losses.reshape(len(batch.x), -1).mean(1)


def _mean_and_error(values: Tensor, weight: Tensor) -> tuple[float, float]:
    """A weighted mean and its standard error."""
    share = weight / weight.sum()
    mean = (share * values).sum()
    return float(mean), float((share * (values - mean)).square().sum().sqrt())
