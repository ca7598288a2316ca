"""Losses of a batch for classes, binary labels and numbers, and the choice among them by name.

Each is called as `criterion(logits, batch)` and returns

    Σᵢ wᵢ ℓᵢ / n,

where ℓᵢ is the loss of row i (for several labels the mean over them), wᵢ is `batch.weight`, and n
is the number of rows. Weights have mean 1 over all rows of a part, not over a batch. Divided by the
weights of its own batch, a rare row would count more where it meets light rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from deconfound.errors import OptionError, nearest_names
from deconfound.methods import Batch, Criterion
from deconfound.training.ranking import Ranking, is_of_classes, match_targets
from deconfound.training.tasks import Task


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the weighted mean of −log softmax(logits)[target], for one label with classes.

    Args:
        logits: One logit per class, shape `(n, classes)`.
        batch: Its `target` holds codes of classes, shape `(n,)`, int64.

    Example:
        >>> rows = Batch(torch.empty(0), torch.empty(0), target=torch.tensor([0, 2]))
        >>> round(cross_entropy(torch.zeros(2, 3), rows).item(), 4)  # log 3
        1.0986
    """
    return _weighted_mean(_cross_entropies(logits, batch.target), batch)


def binary_cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the weighted mean of −log p, with p = σ(logit) for cases and 1 − σ(logit) for others.

    Args:
        logits: One logit per label, shape `(n, k)`, or `(n,)` for a single label.
        batch: Its `target` holds 0 and 1, shape `(n, k)`.

    Example:
        >>> rows = Batch(torch.empty(0), torch.empty(0), target=torch.tensor([[1.0], [0.0]]))
        >>> round(binary_cross_entropy(torch.zeros(2, 1), rows).item(), 4)  # log 2
        0.6931
    """
    return _weighted_mean(_binary_cross_entropies(logits, batch.target), batch)


def mean_squared_error(logits: Tensor, batch: Batch) -> Tensor:
    """Return the weighted mean of (output − target)².

    Args:
        logits: One number per label, shape `(n, k)`, or `(n,)` for a single label.
        batch: Its `target` holds numbers, shape `(n, k)`.

    Example:
        >>> rows = Batch(torch.empty(0), torch.empty(0), target=torch.tensor([[1.0], [3.0]]))
        >>> mean_squared_error(torch.ones(2, 1), rows)
        tensor(2.)
    """
    return _weighted_mean((match_targets(logits, batch.target) - batch.target).square(), batch)


@dataclass(frozen=True)
class Focal:
    """Focal loss (Lin et al., 2017): the weighted mean of −(1 − p)^γ log p.

    p is the probability of the true class. Rows that the network already gets right count less, so
    that a frequent, easy class does not outweigh a rare one.

    Args:
        gamma: γ, 0 or more. 0 is cross-entropy; the larger, the less an easy row counts.

    Example:
        >>> rows = Batch(torch.empty(0), torch.empty(0), target=torch.tensor([[1.0]]))
        >>> easy, hard = torch.tensor([[3.0]]), torch.tensor([[-3.0]])
        >>> def ratio(criterion):
        ...     return (criterion(hard, rows) / criterion(easy, rows)).item()
        >>> ratio(Focal(gamma=2)) > 100 * ratio(binary_cross_entropy)
        True
    """

    gamma: float = 2.0

    def __post_init__(self) -> None:
        if not isinstance(self.gamma, int | float) or not 0 <= self.gamma < float("inf"):
            raise OptionError(f"gamma must be a number, 0 or more; got {self.gamma!r}.")

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of codes of classes `(n,)`, int64, or of 0 and 1 `(n, k)`."""
        has_classes = is_of_classes(batch.target)
        row_losses = _cross_entropies if has_classes else _binary_cross_entropies
        losses = row_losses(logits, batch.target)
        # 1 − p as −expm1(log p) keeps its digits where p is nearly 1. The bound matters for γ < 1,
        # whose power has an infinite slope at 0.
        doubt = (-torch.expm1(-losses)).clamp(min=torch.finfo(losses.dtype).tiny)
        return _weighted_mean(doubt**self.gamma * losses, batch)


# Each loss with the kinds of tasks that it serves; the first one for a kind is its usual loss.
LOSSES: dict[str, tuple[Criterion, tuple[str, ...]]] = {
    "cross-entropy": (cross_entropy, ("classes",)),
    "binary-cross-entropy": (binary_cross_entropy, ("binary",)),
    "mean-squared-error": (mean_squared_error, ("numeric",)),
    "focal": (Focal(), ("binary", "classes")),
    "ranking": (Ranking(), ("binary", "classes")),
}


def make_criterion(
    name: str | None, task: Task, prevalence: float | Sequence[float] = 0.5
) -> Criterion:
    """Return a loss by its name.

    Args:
        name: "cross-entropy", "binary-cross-entropy", "mean-squared-error", "focal" or "ranking".
            None takes one of the first three by the task.
        task: The task that the loss must serve.
        prevalence: For "ranking", the share of cases of each output at which a score above 0 is a
            probable case. The other losses do not read it.

    Raises:
        OptionError: There is no such loss, or it does not serve the task.

    Example:
        >>> task = Task("binary", ("ill",), (("0", "1"),))
        >>> make_criterion(None, task) is binary_cross_entropy
        True
        >>> make_criterion("ranking", task, prevalence=0.2)
        Ranking(offset=0.1, prevalence=0.2)
    """
    suitable = [loss for loss, (_, kinds) in LOSSES.items() if task.kind in kinds]
    name = suitable[0] if name is None else name
    if name not in LOSSES:
        raise OptionError(f"There is no loss {name!r}. {nearest_names(name, LOSSES)}")
    criterion, kinds = LOSSES[name]
    if task.kind not in kinds:
        raise OptionError(
            f"The loss {name!r} serves tasks of kind {' and '.join(map(repr, kinds))}; got a task "
            f"of kind {task.kind!r}. Write {' or '.join(map(repr, suitable))}."
        )
    return Ranking(prevalence=prevalence) if name == "ranking" else criterion


def _weighted_mean(losses: Tensor, batch: Batch) -> Tensor:
    """Return Σᵢ wᵢ ℓᵢ / n from losses `(n,)`, or `(n, k)` with k labels."""
    if batch.weight is None:
        return losses.mean()
    return (batch.weight * losses.reshape(len(losses), -1).mean(dim=1)).mean()


def _cross_entropies(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of each row, shape `(n,)`."""
    return functional.cross_entropy(logits, target, reduction="none")


def _binary_cross_entropies(logits: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross-entropy of each row and label, shape `(n, k)`."""
    logits = match_targets(logits, target)
    target = target.to(logits.dtype)
    return functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
