"""The paper's measure of a confound in the logits, with an interval and a p-value."""

import torch
from torch import Tensor

from deconfound.metrics.columns import Column
from deconfound.metrics.correlation import paper_association
from deconfound.metrics.distance_tests import dcor_draws
from deconfound.metrics.resampling import Estimate, Resampling, bootstrap_weights, estimate, permuted_rows


def paper_test(
    outputs: Tensor, confound: Column, folds: Tensor, units: Tensor | None, resampling: Resampling
) -> Estimate:
    """`paper_association` of `outputs (n, k)` and a confound without gaps, tested against independence within folds."""
    found = paper_association(outputs, confound, folds)
    statistic = f"paper_{found.statistic}"
    if confound.kind == "categorical":
        draws = [dcor_draws(logit, confound.encoded, folds, units, resampling) for logit in outputs.T]
        null = torch.stack([draw.null for draw in draws]).mean(0)
        replicates = torch.stack([draw.replicates for draw in draws]).mean(0)
        return estimate(statistic, found.value, len(outputs), null, replicates, most=1.0)
    generator = resampling.generator()
    orders = permuted_rows(folds, units, resampling.permutations, generator)
    ones = torch.ones(1, len(outputs), dtype=outputs.dtype)
    null = _mean_absolute_pearson(outputs, confound.values[orders], ones, folds)
    weights = bootstrap_weights(folds, units, resampling.bootstraps, generator).double()
    replicates = _mean_absolute_pearson(outputs, confound.values[None], weights, folds)
    return estimate(statistic, found.value, len(outputs), null, replicates, least=0.0, most=1.0)


def _mean_absolute_pearson(outputs: Tensor, targets: Tensor, weights: Tensor, folds: Tensor) -> Tensor:
    """|Pearson| averaged over outputs and folds, for many targets `(t, n)` or many weightings `(t, n)` at once."""
    outputs, targets = outputs - outputs.mean(0), targets - targets.mean()
    each = []
    for fold in torch.unique(folds):
        rows = folds == fold
        w = weights[:, rows] / weights[:, rows].sum(1, keepdim=True)
        x, y = outputs[rows], targets[:, rows]
        x_mean, y_mean = w @ x, (w * y).sum(1, keepdim=True)
        covariance = (w * y) @ x - x_mean * y_mean
        x_variance = w @ x.square() - x_mean.square()
        y_variance = (w * y.square()).sum(1, keepdim=True) - y_mean.square()
        scale = (x_variance * y_variance).clamp_min(1e-300).sqrt()
        each.append((covariance / scale).abs().mean(1))
    return torch.stack(each).mean(0)
