"""Losses by name: cross-entropy, binary cross-entropy, focal, squared error; each gives one value per row or label.

`deconfound.methods.weighted_mean` makes one number of them, the same way for every method.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as torch_functional

from deconfound.errors import OptionError
from deconfound.methods import Criterion
from deconfound.methods.base import spread_weight
from deconfound.training.within import Within

USUAL = {"binary": "bce", "multilabel": "bce", "multiclass": "cross-entropy", "regression": "mse"}
FITTING = {
    "binary": ("bce", "focal", "within"),
    "multilabel": ("bce", "focal", "within"),
    "multiclass": ("cross-entropy", "focal", "within"),
    "regression": ("mse",),
}


def criterion(loss: str, task: str, focal_gamma: float = 2.0, prevalence: float | Sequence[float] = 0.5) -> Criterion:
    """A loss by its name, which must fit the task; "auto" is the usual one."""
    name = USUAL[task] if loss == "auto" else loss
    if name not in FITTING[task]:
        choices = ", ".join(map(repr, FITTING[task]))
        raise OptionError(f"training.loss must be among {choices} for a {task} task; got {name!r}.")
    if name == "within":
        return Within(prevalence=prevalence)
    if name == "focal":
        return partial(focal, gamma=focal_gamma)
    return {"bce": bce, "cross-entropy": cross_entropy, "mse": mse}[name]


def chance_loss(
    criterion: Criterion, task: str, fitted: Tensor, judged: Tensor, weights: tuple[Tensor | None, Tensor | None]
) -> float:
    """The loss on the targets `judged` of a constant fitted on the targets `fitted`: what a network must stay below.

    Example:
        >>> round(chance_loss(bce, "binary", torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0]), (None, None)), 3)
        0.693
    """
    classes = fitted if task != "multiclass" else torch.nn.functional.one_hot(fitted).float()
    share = torch.ones_like(classes) if weights[0] is None else spread_weight(weights[0], classes)
    mean = (classes * share).sum(0) / share.sum(0)
    constant = {"regression": mean, "multiclass": mean.log()}.get(task, mean.logit())
    losses = criterion(constant.expand(len(judged), *constant.shape), judged)
    weight = torch.ones_like(losses) if weights[1] is None else spread_weight(weights[1], losses)
    return float((losses * weight).sum() / weight.sum())


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """`-log softmax(logits)[target]`, `(n,)`, for `logits (n, classes)` and class codes `(n,)`."""
    return torch_functional.cross_entropy(logits, target, reduction="none")


def bce(logits: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of each row and label, of the shape of the target."""
    return torch_functional.binary_cross_entropy_with_logits(
        logits.reshape(target.shape), target.to(logits.dtype), reduction="none"
    )


def focal(logits: Tensor, target: Tensor, gamma: float = 2.0, share: Tensor | None = None) -> Tensor:
    """`(1 - p)^γ · -log p` with p the probability of the true class (Lin et al. 2017), as the paper trains.

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
    log_p = -(cross_entropy if target.dtype == torch.int64 else bce)(logits, target)
    loss = (1 - log_p.exp()) ** gamma * -log_p
    if share is not None:
        loss = loss * 0.5 / torch.where(target > 0, share, 1 - share)
    return loss


def mse(logits: Tensor, target: Tensor) -> Tensor:
    """The squared error of each row and label, of the shape of the target."""
    return (logits.reshape(target.shape) - target).square()
