"""Task performance: accuracy, balanced accuracy, AUC and its parts within and between strata, calibration, R²."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deconfound.errors import ShapeError
from deconfound.metrics.checks import same_shape, tensor, zero_or_one

if TYPE_CHECKING:
    from deconfound.metrics.checks import Samples

BINS = 10


def accuracy(predicted: "Samples", true: "Samples") -> Tensor:
    """Share of rows that are right; with `(n, labels)` a row is right when every label is."""
    return _right(predicted, true).mean()


def balanced_accuracy(predicted: "Samples", true: "Samples") -> Tensor:
    """Accuracy within each true class `(n,)`, averaged over the classes that occur."""
    return group_accuracy(predicted, true, true)


def group_accuracy(predicted: "Samples", true: "Samples", groups: "Samples") -> Tensor:
    """Accuracy within each group `(n,)`, averaged over the groups, as in the paper."""
    right, groups = _right(predicted, true), tensor(groups, "groups")
    if groups.shape != right.shape:
        raise ShapeError(f"groups must hold one value per row; got {tuple(groups.shape)} for {len(right)} rows.")
    return torch.stack([right[groups == group].mean() for group in torch.unique(groups)]).mean()


def auc(scores: "Samples", positive: "Samples") -> Tensor:
    """Area under the ROC curve: how often a positive row scores above a negative one (ties: half).

    Args:
        scores: `(n,)`, or `(…, n)` for many at once.
        positive: of the same shape, 1 or true for positive rows. NaN where a class is empty.

    Example:
        >>> float(auc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])))
        0.75
    """
    scores, positive = same_shape(scores, positive, ("scores", "positive"))
    scores, positive = scores.double(), zero_or_one(positive, "positive")
    ordered = scores.sort(-1).values.contiguous()
    at = scores.contiguous()
    below, upto = torch.searchsorted(ordered, at), torch.searchsorted(ordered, at, right=True)
    ranks = (below + upto + 1).double() / 2
    n_positive = positive.sum(-1)
    n_negative = scores.shape[-1] - n_positive
    wins = (ranks * positive).sum(-1) - n_positive * (n_positive + 1) / 2
    return wins / (n_positive * n_negative)


@dataclass(frozen=True)
class AUCSplit:
    """An AUC taken apart: `auc = share_within · within + (1 - share_within) · between`, exactly.

    A pair is a positive and a negative row. `within` counts the pairs of one stratum, which a model cannot
    order by knowing the stratum; `between` those of two strata, which it can. `strata` has the AUC inside each
    stratum and the number of its pairs (NaN where a stratum has one class only).
    """

    auc: float
    within: float
    between: float
    share_within: float
    strata: tuple[tuple[float, int], ...]


def auc_split(scores: "Samples", positive: "Samples", strata: "Samples") -> AUCSplit:
    """The AUC of `scores (n,)` split into pairs within a stratum `(n,)` (a site, say) and pairs between two.

    Example:
        >>> split = auc_split([0.1, 0.9, 0.3, 0.4], [0, 1, 1, 0], [0, 0, 1, 1])
        >>> split.auc, split.within, split.between, split.share_within
        (0.75, 0.5, 1.0, 0.5)
    """
    scores, positive = same_shape(scores, positive, ("scores", "positive"))
    codes = torch.unique(same_shape(scores, strata, ("scores", "strata"))[1], return_inverse=True)[1]
    whole = float(auc(scores, positive))
    each = []
    for code in range(int(codes.max()) + 1):
        rows = codes == code
        up = int(positive[rows].sum())
        each.append((float(auc(scores[rows], positive[rows])), up * (int(rows.sum()) - up)))
    up = int(positive.sum())
    pairs, inside = up * (len(scores) - up), sum(count for _, count in each)
    wins = sum(value * count for value, count in each if count)
    within = wins / inside if inside else float("nan")
    between = (whole * pairs - wins) / (pairs - inside) if pairs > inside else float("nan")
    return AUCSplit(whole, within, between, inside / pairs if pairs else float("nan"), tuple(each))


def weighted_auc(place: Tensor, positive: Tensor, weights: Tensor) -> Tensor:
    """`(R,)` AUC when row i counts `weights[r, i]` times; `place (n,)` is the rank of each score, ties sharing one."""
    zeros = weights.new_zeros(len(weights), int(place.max()) + 1)
    ups = zeros.index_add(1, place, weights * positive)
    downs = zeros.index_add(1, place, weights * (1 - positive))
    below = downs.cumsum(1) - downs
    return (ups * (below + downs / 2)).sum(1) / (ups.sum(1) * downs.sum(1))


def macro_auc(scores: "Samples", codes: "Samples") -> Tensor:
    """One-against-the-rest AUC of `scores (…, n, levels)`, averaged over the levels in `codes (…, n)`."""
    scores, codes = tensor(scores, "scores"), tensor(codes, "codes")
    if scores.shape[:-1] != codes.shape:
        raise ShapeError(f"codes must have shape {tuple(scores.shape[:-1])}, one per row; got {tuple(codes.shape)}.")
    whole = codes.double()
    if not bool(((whole == whole.floor()) & (whole >= 0) & (whole < scores.shape[-1])).all()):
        raise ShapeError(f"codes must be whole numbers from 0 to {scores.shape[-1] - 1}, one per column of scores.")
    member = torch.nn.functional.one_hot(codes.long(), scores.shape[-1])
    return auc(scores.transpose(-1, -2), member.transpose(-1, -2)).nanmean(-1)


def brier_score(probabilities: "Samples", positive: "Samples") -> Tensor:
    """Mean squared distance of `probabilities (n,)` from the 0/1 truth; 0 is perfect, 0.25 is a fair coin."""
    probabilities, positive = same_shape(probabilities, positive, ("probabilities", "positive"))
    return (_probability(probabilities) - zero_or_one(positive, "positive")).square().mean(-1)


@dataclass(frozen=True)
class Calibration:
    """Predicted probability against observed share in bins of equally many rows.

    `error` is the expected calibration error `Σ_bins n_bin / n |observed - predicted|`; `predicted`,
    `observed` and `counts` have one number per bin.
    """

    error: float
    predicted: tuple[float, ...]
    observed: tuple[float, ...]
    counts: tuple[int, ...]


def calibration(probabilities: "Samples", positive: "Samples", bins: int = BINS) -> Calibration:
    """The calibration curve and error of `probabilities (n,)`, in bins of equally many rows (ties stay together)."""
    probabilities, positive = same_shape(probabilities, positive, ("probabilities", "positive"))
    p, truth = _probability(probabilities).detach(), zero_or_one(positive, "positive")
    code = equal_bins(p, bins)
    counts = torch.bincount(code)
    used = counts > 0
    mean, share = (torch.bincount(code, weights=values)[used] / counts[used] for values in (p, truth))
    error = float((counts[used] * (mean - share).abs()).sum() / len(p))
    return Calibration(error, tuple(mean.tolist()), tuple(share.tolist()), tuple(counts[used].tolist()))


def equal_bins(scores: Tensor, bins: int = BINS) -> Tensor:
    """`(n,)` codes of bins of equally many rows; equal scores stay together, so that there may be fewer."""
    if bins < 1 or scores.ndim != 1:
        raise ShapeError(f"bins must be at least 1, of (n,) scores; got {bins} of shape {tuple(scores.shape)}.")
    levels = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    sample = scores if len(scores) <= 10**6 else scores[:: len(scores) // 10**6 + 1]
    return torch.bucketize(scores.contiguous(), torch.unique(torch.quantile(sample, levels)))


def r_squared(predicted: "Samples", true: "Samples") -> Tensor:
    """`1 - Σ(true - predicted)² / Σ(true - mean)²` down the rows; negative where the mean does better.

    NaN where the truth does not vary.
    """
    predicted, true = same_shape(predicted, true, ("predicted", "true"))
    predicted, true = predicted.double(), true.double()
    scale = torch.stack([true.detach().abs().max(), predicted.detach().abs().max()]).max().clamp_min(1e-300)
    shift = true[0] / scale  # near the values, so that a large common mean costs no digits
    true, predicted = true / scale - shift, predicted / scale - shift
    spread = (true - true.mean(0)).square().sum(0)
    return 1 - (true - predicted).square().sum(0) / torch.where(spread > 0, spread, torch.nan)


def _probability(values: Tensor) -> Tensor:
    numbers = values.double()
    if not bool(((numbers >= 0) & (numbers <= 1)).all()):
        low, high = numbers.detach().aminmax()
        raise ShapeError(f"probabilities must lie between 0 and 1; got {low:g} to {high:g}. Apply a sigmoid first.")
    return numbers


def _right(predicted: "Samples", true: "Samples") -> Tensor:
    predicted, true = same_shape(predicted, true, ("predicted", "true"))
    right = predicted == true
    return (right.all(1) if right.ndim == 2 else right).double()
