"""Task performance: accuracy, balanced accuracy, AUC, group accuracy, R²."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deconfound.errors import ShapeError

if TYPE_CHECKING:
    from deconfound.metrics.distance import Samples


def accuracy(predicted: "Samples", true: "Samples") -> Tensor:
    """Share of rows that are right; with `(n, labels)` a row is right when every label is."""
    return _right(predicted, true).mean()


def balanced_accuracy(predicted: "Samples", true: "Samples") -> Tensor:
    """Accuracy within each true class `(n,)`, averaged over the classes that occur."""
    return group_accuracy(predicted, true, true)


def group_accuracy(predicted: "Samples", true: "Samples", groups: "Samples") -> Tensor:
    """Accuracy within each group `(n,)`, averaged over the groups, as in the paper."""
    right, groups = _right(predicted, true), torch.as_tensor(groups)
    return torch.stack([right[groups == group].mean() for group in torch.unique(groups)]).mean()


def auc(scores: "Samples", positive: "Samples") -> Tensor:
    """Area under the ROC curve: how often a positive row scores above a negative one (ties: half).

    Args:
        scores: `(n,)`, or `(…, n)` for many at once.
        positive: of the same shape, true for positive rows. NaN where a class is empty.

    Example:
        >>> float(auc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])))
        0.75
    """
    scores, positive = torch.as_tensor(scores).double(), torch.as_tensor(positive).double()
    ordered = scores.sort(-1).values.contiguous()
    at = scores.contiguous()
    below, upto = torch.searchsorted(ordered, at), torch.searchsorted(ordered, at, right=True)
    ranks = (below + upto + 1).double() / 2
    n_positive = positive.sum(-1)
    n_negative = scores.shape[-1] - n_positive
    wins = (ranks * positive).sum(-1) - n_positive * (n_positive + 1) / 2
    return wins / (n_positive * n_negative)


def weighted_auc(scores: Tensor, positive: Tensor, weights: Tensor) -> Tensor:
    """`(R,)` area under the ROC curve of `scores (n,)` when row i counts `weights[r, i]` times."""
    levels, place = torch.unique(scores, return_inverse=True)
    zeros = weights.new_zeros(len(weights), len(levels))
    ups = zeros.index_add(1, place, weights * positive)
    downs = zeros.index_add(1, place, weights * (1 - positive))
    below = downs.cumsum(1) - downs
    return (ups * (below + downs / 2)).sum(1) / (ups.sum(1) * downs.sum(1))


def macro_auc(scores: "Samples", codes: "Samples") -> Tensor:
    """One-against-the-rest AUC of `scores (…, n, levels)`, averaged over the levels in `codes (…, n)`."""
    scores, codes = torch.as_tensor(scores), torch.as_tensor(codes)
    member = torch.nn.functional.one_hot(codes.long(), scores.shape[-1])
    return auc(scores.transpose(-1, -2), member.transpose(-1, -2)).nanmean(-1)


def r_squared(predicted: "Samples", true: "Samples") -> Tensor:
    """`1 - Σ(true - predicted)² / Σ(true - mean)²` down the rows; negative where the mean does better."""
    predicted, true = torch.as_tensor(predicted).double(), torch.as_tensor(true).double()
    return 1 - (true - predicted).square().sum(0) / (true - true.mean(0)).square().sum(0)


def _right(predicted: "Samples", true: "Samples") -> Tensor:
    predicted, true = torch.as_tensor(predicted), torch.as_tensor(true)
    if predicted.shape != true.shape:
        raise ShapeError(
            f"predicted and true must have one shape; got {tuple(predicted.shape)} and {tuple(true.shape)}."
        )
    right = predicted == true
    return (right.all(1) if right.ndim == 2 else right).double()
