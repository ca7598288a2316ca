"""Probes: how well a confound can be read from the outputs by a model made for that.

A linear probe and a non-linear one (random Fourier features beside the outputs themselves), cross-validated with all
rows of a person on one side of every split. Both are ridge regressions, of a numeric confound or of each level against
the rest: one decomposition of the training rows serves all levels and all permuted confounds. The baseline repeats the
whole cross-validation on permuted confounds; permuted within label groups it holds what the label alone tells.
"""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from deconfound.errors import OptionError, ShapeError
from deconfound.metrics.checks import codes_of, matrix, ordinary
from deconfound.metrics.columns import Column
from deconfound.metrics.linear_models import held_out_ridge
from deconfound.metrics.performance import auc, r_squared, weighted_auc
from deconfound.metrics.permutations import movable, permuted_rows
from deconfound.metrics.resampling import Estimate, Resampling, bootstrap_weights, estimate, interval, person_folds

if TYPE_CHECKING:
    from deconfound.metrics.checks import Samples

ProbeKind = Literal["linear", "nonlinear"]
FOURIER_FEATURES = 128
# Of more levels than this the probe is scored on those with most rows; all rows take part.
MOST_LEVELS = 20


def probe(
    outputs: "Samples",
    confound: Column,
    kind: ProbeKind = "linear",
    *,
    groups: "Samples | None" = None,
    units: "Samples | None" = None,
    folds: int = 5,
    resampling: Resampling | None = None,
) -> Estimate:
    """Cross-validated R² (numeric) or one-against-the-rest AUC (levels) of a probe on `outputs (n, d)`.

    Args:
        outputs: features, logits or scores.
        confound: what the probe tries to read.
        kind: "linear": ridge regression, its penalty by generalised cross-validation, of a numeric confound or of each
            level against the rest; "nonlinear": the same with random Fourier features beside the outputs.
        groups: `(n,)` codes of label groups; the baseline permutes the confound within them.
        units: `(n,)` person of each row.
        folds: number of folds.
        resampling: permutations of the baseline and bootstrap samples (of people, from the held-out
            predictions).
    """
    if kind not in ("linear", "nonlinear"):
        raise OptionError(f"kind must be 'linear' or 'nonlinear'; got {kind!r}.")
    resampling = resampling or Resampling(permutations=39)
    generator = resampling.generator()
    features, n = ordinary(matrix(outputs, "outputs").detach()), len(confound.values)
    if len(features) != n:
        raise ShapeError(f"outputs must have one row per value of the confound; got {len(features)} for {n}.")
    codes = [codes_of(given, n, name) for given, name in ((units, "units"), (groups, "groups"))]
    rows = confound.present.nonzero()[:, 0]
    x, target = _standardised(features[rows]), confound.take(rows)
    people = torch.arange(len(rows)) if codes[0] is None else codes[0][rows]
    cells = torch.zeros(len(rows)) if codes[1] is None else codes[1][rows]
    if kind == "nonlinear":
        x = torch.cat([x, _fourier(x, generator)], dim=1)
    fold = person_folds(people, folds, generator)
    orders = permuted_rows(cells, people, resampling.permutations, generator, target.values)
    moved = movable(target.values, orders)
    targets = target.values[torch.cat([torch.arange(len(rows))[None], orders])]
    held_out = _held_out(x, targets, fold, target)
    values = _scores(held_out, targets, fold, target)
    weights = bootstrap_weights(cells, people, resampling.bootstraps, generator)
    replicates = _weighted_scores(held_out[0], targets[0], fold, target, weights.double())
    metric = "r2" if target.kind == "numeric" else "auc"
    ends = interval(float(values[0]), replicates, most=1.0)
    return estimate(f"{kind}_probe_{metric}", float(values[0]), len(rows), values[1:], ends, moved)


def _standardised(x: Tensor) -> Tensor:
    x = x.double()
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-12)


def _fourier(x: Tensor, generator: torch.Generator) -> Tensor:
    """`√2 cos(w·x + b)`, w drawn for a Gaussian kernel as wide as the median distance."""
    some = x[torch.randperm(len(x), generator=generator)[:500]]
    width = torch.pdist(some).median().clamp_min(1e-6)
    frequencies = torch.randn(x.shape[1], FOURIER_FEATURES, generator=generator).to(x) / width
    phases = 2 * torch.pi * torch.rand(FOURIER_FEATURES, generator=generator).to(x)
    return 2**0.5 * (x @ frequencies + phases).cos()


def _held_out(x: Tensor, targets: Tensor, fold: Tensor, column: Column) -> Tensor:
    """Predictions for each row by a model that has not seen its person: `(t, n)` or `(t, n, levels)`."""
    wanted = targets.to(x.dtype)
    if column.kind != "numeric":
        wanted = _member(targets, column).to(x.dtype)
    side_by_side = wanted.transpose(0, 1).flatten(1)
    out = held_out_ridge(x, side_by_side, fold)
    return out.reshape(len(fold), len(targets), *wanted.shape[2:]).transpose(0, 1)


def _scores(predicted: Tensor, targets: Tensor, fold: Tensor, column: Column) -> Tensor:
    """`(t,)` R² over all rows; or AUC within each fold, averaged over levels and folds.

    Scores of different folds are not put in one order: a level rare in a fold is common in its training
    rows, and pooling them would press the AUC of independent data below a half.
    """
    if column.kind == "numeric":
        return r_squared(predicted.T, targets.T)
    member = _member(targets, column)
    each = []
    for held in torch.unique(fold):
        rows = fold == held
        each.append(auc(predicted[:, rows].transpose(1, 2), member[:, rows].transpose(1, 2)))
    return torch.stack(each, dim=1).nanmean(1).nanmean(1)


def _weighted_scores(predicted: Tensor, target: Tensor, fold: Tensor, column: Column, weights: Tensor) -> Tensor:
    """`(R,)` the scores of one target when row i counts `weights[r, i]` times."""
    if column.kind == "numeric":
        total, y = weights.sum(1), target - target.mean()
        spread = weights @ y.square() - (weights @ y).square() / total
        return 1 - weights @ (target - predicted).square() / spread
    each = []
    for held in torch.unique(fold):
        rows = fold == held
        member = _member(target[rows], column).double()
        levels = [
            weighted_auc(_ranks(predicted[rows, level]), member[:, level], weights[:, rows])
            for level in range(member.shape[1])
        ]
        each.append(torch.stack(levels, dim=1))
    return torch.stack(each, dim=1).nanmean(1).nanmean(1)


def _member(targets: Tensor, column: Column) -> Tensor:
    """`(…, levels)` whether a row has each level, for the levels with most rows where there are very many."""
    counts = torch.bincount(column.values.long(), minlength=len(column.levels))
    kept = counts.argsort(descending=True, stable=True)[:MOST_LEVELS].sort().values
    return (targets[..., None] == kept).long()


def _ranks(scores: Tensor) -> Tensor:
    place: Tensor = torch.unique(scores, return_inverse=True)[1]
    return place
