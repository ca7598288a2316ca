"""The losses of a run, by name: cross-entropy, binary cross-entropy, focal, mean squared error."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as torch_functional

from deconfound.errors import OptionError
from deconfound.methods.base import Criterion
from deconfound.training.tasks import Task

USUAL = {"binary": "bce", "multilabel": "bce", "multiclass": "cross-entropy", "regression": "mse"}
FITTING = {
    "binary": ("bce", "focal"),
    "multilabel": ("bce", "focal"),
    "multiclass": ("cross-entropy", "focal"),
    "regression": ("mse",),
}


def criterion(loss: str, task: Task, focal_gamma: float = 2.0) -> Criterion:
    """The loss of a run as a function of logits and target; "auto" is the usual one of the task."""
    name = USUAL[task.kind] if loss == "auto" else loss
    if name not in FITTING[task.kind]:
        choices = " or ".join(map(repr, FITTING[task.kind]))
        raise OptionError(f"training.loss must be {choices} for a {task.kind} task; got {name!r}.")
    if name == "focal":
        return partial(focal, gamma=focal_gamma)
    return {"bce": bce, "cross-entropy": cross_entropy, "mse": mse}[name]


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """`mean(-log softmax(logits)[target])` for `logits (n, classes)` and class codes `(n,)`."""
    return torch_functional.cross_entropy(logits, target)


def bce(logits: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy, the mean over rows and labels; `(n,)` logits count as one label."""
    return torch_functional.binary_cross_entropy_with_logits(logits.reshape(target.shape), target)


def focal(logits: Tensor, target: Tensor, gamma: float = 2.0, share: Tensor | None = None) -> Tensor:
    """`mean((1 - p)^γ · -log p)` with p the probability of the true class (Lin et al. 2017), as the paper trains.

    With the share of rows that have each label, rows with and without it count half each: the balanced form of it.

    Args:
        logits: `(n, classes)` with class codes, else `(n,)` or `(n, labels)`.
        target: Class codes `(n,)` int64, or 0/1 of the shape of the labels.
        gamma: 0 is cross-entropy; the larger, the less easy samples count.
        share: Of the rows that have the label, one for each label; 0/1 targets only.

    Example:
        >>> easy, hard = torch.tensor([3.0]), torch.tensor([-3.0])
        >>> one = torch.ones(1)
        >>> bool(focal(hard, one) / focal(easy, one) > 100 * bce(hard, one) / bce(easy, one))
        True
    """
    if target.dtype == torch.int64:
        log_p = logits.log_softmax(1).gather(1, target[:, None])[:, 0]
    else:
        log_p = -torch_functional.binary_cross_entropy_with_logits(
            logits.reshape(target.shape), target, reduction="none"
        )
    loss = (1 - log_p.exp()) ** gamma * -log_p
    if share is not None:
        loss = loss * 0.5 / torch.where(target > 0, share, 1 - share)
    return loss.mean()


def mse(logits: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of standardised targets."""
    return torch_functional.mse_loss(logits.reshape(target.shape), target)
