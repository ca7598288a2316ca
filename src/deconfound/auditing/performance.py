"""How well outputs answer the labels: overall, by stratum, split by site, and against another model."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deconfound.auditing.answers import Answers
from deconfound.metrics.performance import equal_bins, weighted_auc
from deconfound.metrics.resampling import Estimate, Resampling, absolute_interval, bootstrap_chunks, interval

# Strata of fewer rows of a class have no rate of their own.
FEWEST_OF_A_CLASS = 5
RANGES = {
    "r2": (-float("inf"), 1.0),
    "mean_absolute_error": (0.0, float("inf")),
    "share_within": (0.0, 1.0),
    "independent_r2": (-float("inf"), 1.0),
    "independent_mean_absolute_error": (0.0, float("inf")),
}
Measures = Callable[[Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class Performance:
    """Every measure with its interval, and its bootstrap replicates `(bootstraps,)` for paired differences."""

    estimates: tuple[Estimate, ...]
    replicates: Mapping[str, Tensor]


def measures(given: Answers) -> Measures:
    """A function from weights `(R, n)` of the rows to every measure `(R,)`; NaN where a class is absent.

    Accuracy: the weighted share of right rows. Balanced accuracy: the mean of that over the label groups
    (with several labels the paper's mean of group accuracies). AUC: the mean over labels, or over classes
    against the rest. Probabilities also have their Brier score, `Σ (p − y)²` over classes or labels, halved where there
    are several, so that two classes have one number as one score or as two. For a numeric label: mean absolute error
    and R².
    """
    if given.numeric:
        return _number_measures(*given.scores[0][1:])
    member = (given.groups[:, None] == torch.unique(given.groups)).double()
    right = given.right[:, None] * member
    ranked = [(torch.unique(score, return_inverse=True)[1], positive) for _, score, positive in given.scores]
    error = torch.stack([(score - positive).square() for _, score, positive in given.scores]).sum(0)

    def found(weights: Tensor) -> dict[str, Tensor]:
        total = weights.sum(1)
        out = {"auc": torch.stack([weighted_auc(place, up, weights) for place, up in ranked]).nanmean(0)}
        out["balanced_accuracy"] = ((weights @ right) / (weights @ member)).nanmean(1)
        out["accuracy"] = weights @ given.right / total
        if given.probabilities:
            out["brier_score"] = weights @ error / total / (1 if given.binary else 2)
        return out

    return found


def _number_measures(predicted: Tensor, true: Tensor) -> Measures:
    error = true - predicted
    centred = true - true.mean()

    def found(weights: Tensor) -> dict[str, Tensor]:
        total = weights.sum(1)
        squares = weights @ centred.square()
        spread = squares - (weights @ centred).square() / total
        return {
            "mean_absolute_error": weights @ error.abs() / total,
            "r2": 1 - weights @ error.square() / torch.where(spread > 1e-12 * squares, spread, torch.nan),
        }

    return found


def performance(given: Answers, resampling: Resampling) -> Performance:
    """Every measure with its bootstrap interval; AUC within each fold and then averaged."""
    return bootstrapped(within_folds(given), given.units, resampling)


def within_folds(given: Answers) -> Measures:
    """The measures, AUC within each fold, which has its own model, and then averaged."""
    whole, folds = measures(given), torch.unique(given.folds)
    if len(folds) == 1 or given.numeric:
        return whole
    parts = [(given.folds == fold).nonzero()[:, 0] for fold in folds]
    each = [(rows, measures(given.take(rows))) for rows in parts]

    def found(weights: Tensor) -> dict[str, Tensor]:
        out = whole(weights)
        out["auc"] = torch.stack([function(weights[:, rows])["auc"] for rows, function in each]).nanmean(0)
        return out

    return found


def bootstrapped(function: Measures, units: Tensor, resampling: Resampling) -> Performance:
    """The measures of the rows as they are, and of people drawn with replacement, a few samples at a time."""
    n = len(units)
    values = function(torch.ones(1, n, dtype=torch.float64))
    parts: dict[str, list[Tensor]] = {name: [] for name in values}
    for weights in _samples(units, resampling):
        for name, drawn in function(weights.double()).items():
            parts[name].append(drawn)
    replicates = {name: torch.cat(items) for name, items in parts.items()}
    estimates = []
    for name, value in values.items():
        low, high = interval(float(value), replicates[name], *RANGES.get(name, (0.0, 1.0)))
        estimates.append(Estimate(name, float(value), n, low, high))
    return Performance(tuple(estimates), replicates)


def _samples(units: Tensor, resampling: Resampling) -> Iterator[Tensor]:
    """Bootstrap samples of people, some at a time."""
    several = None if len(torch.unique(units)) == len(units) else units
    return bootstrap_chunks(torch.zeros(len(units)), several, resampling.bootstraps, resampling.generator())


def split_by(given: Answers, codes: Tensor) -> Measures:
    """The AUC of one score split into pairs within a stratum and pairs between two, which two models may order.

    Every fold has its own model, so only pairs within a fold are compared.
    """
    (_, score, positive), folds = given.scores[0], given.folds
    inside, whole = _ranked(score, codes * (int(folds.max()) + 1) + folds), _ranked(score, folds)

    def wins(weights: Tensor, groups: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        total, pairs = torch.zeros(2, len(weights), dtype=torch.float64)
        for rows, place in groups:
            w, up = weights[:, rows], positive[rows]
            both = (w @ up) * (w @ (1 - up))
            total, pairs = total + torch.where(both > 0, weighted_auc(place, up, w) * both, 0), pairs + both
        return total, pairs

    def found(weights: Tensor) -> dict[str, Tensor]:
        all_wins, all_pairs = wins(weights, whole)
        in_wins, in_pairs = wins(weights, inside)
        between = all_pairs - in_pairs
        out = {"auc_within": in_wins / in_pairs, "share_within": in_pairs / all_pairs}
        if bool((between > 0).any()):
            out["auc_between"] = (all_wins - in_wins) / between
        return out

    return found


def _ranked(score: Tensor, cells: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The rows of each cell of at least two, and the ranks of their scores."""
    order = cells.argsort(stable=True)
    parts = order.split(torch.unique(cells, return_counts=True)[1].tolist())
    return [(rows, torch.unique(score[rows], return_inverse=True)[1]) for rows in parts if len(rows) > 1]


def gaps(given: Answers, codes: Tensor) -> Measures | None:
    """Largest differences between strata of the true and false positive rates of one score; None where none has two.

    A row counts as positive above the cut at which its class was read. Strata with fewer than five rows of a class have
    no rate for it.
    """
    (_, _, positive) = given.scores[0]
    # A row is read as positive where it is right about a positive or wrong about a negative, but for a third class.
    called = torch.where(given.right == 1, positive, 1 - positive) * (1 - given.other)
    strata = torch.unique(codes, return_inverse=True)[1]
    count = int(strata.max()) + 1
    enough = {}
    for name, truth in (("tpr_gap", positive), ("fpr_gap", 1 - positive)):
        known = torch.bincount(strata, weights=truth, minlength=count) >= FEWEST_OF_A_CLASS
        if int(known.sum()) > 1:
            enough[name] = (truth, known)
    if not enough:
        return None

    def found(weights: Tensor) -> dict[str, Tensor]:
        out = {}
        for name, (truth, known) in enough.items():
            zeros = weights.new_zeros(len(weights), count)
            hits = zeros.index_add(1, strata, weights * truth * called)[:, known]
            rate = hits / zeros.index_add(1, strata, weights * truth)[:, known]
            out[name] = rate.nan_to_num(-torch.inf).amax(1) - rate.nan_to_num(torch.inf).amin(1)
        return out

    return found


def calibration_error(given: Answers, resampling: Resampling) -> Estimate | None:
    """The expected calibration error of probabilities, averaged over labels or classes, with its interval."""
    if not given.probabilities:
        return None
    error, n = [score - positive for _, score, positive in given.scores], len(given.units)
    bins = [equal_bins(score) for _, score, _ in given.scores]

    def signed(weights: Tensor) -> Tensor:
        """`(R, bins of every score)` what each bin adds, with its sign."""
        found = [
            weights.new_zeros(len(weights), int(code.max()) + 1).index_add(1, code, weights * gap)
            for code, gap in zip(bins, error, strict=True)
        ]
        return torch.cat(found, dim=1) / weights.sum(1, keepdim=True)

    value = signed(torch.ones(1, n, dtype=torch.float64))[0]
    replicates = torch.cat([signed(weights.double()) for weights in _samples(given.units, resampling)])
    size = len(value) / len(given.scores)  # from the mean over bins to their sum
    low, high = (min(1.0, size * end) for end in absolute_interval(value, replicates))
    return Estimate("calibration_error", size * float(value.abs().mean()), n, low, high)


def equal_error_rate(given: Answers) -> Estimate | None:
    """The error rate at the cut where as large a share of positives is missed as of negatives is called positive."""
    if not given.binary:
        return None
    _, score, positive = given.scores[0]
    if len(torch.unique(positive)) < 2:
        return None
    false, true = roc(score, positive)
    missed = 1 - true
    best = (missed - false).abs().argmin()
    return Estimate("equal_error_rate", float((missed[best] + false[best]) / 2), len(score))


def roc(score: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """False and true positive rates at each distinct score, from the highest down."""
    order = score.argsort(descending=True, stable=True)
    last = torch.cat([score[order][1:] != score[order][:-1], torch.ones(1, dtype=torch.bool)])
    false, true = ((truth[order].cumsum(0)[last] / truth.sum()) for truth in (1 - positive, positive))
    return false, true
