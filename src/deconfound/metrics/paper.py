"""The paper's measure of a confound in the logits, with an interval and a p-value."""

import torch
from torch import Tensor

from deconfound.metrics.columns import Column
from deconfound.metrics.correlation import paper_association, unit_length
from deconfound.metrics.distance_tests import dcor_draws
from deconfound.metrics.permutations import movable, permuted_rows
from deconfound.metrics.resampling import (
    Estimate,
    Resampling,
    absolute_interval,
    bootstrap_weights,
    estimate,
    interval,
)


def paper_test(
    outputs: Tensor, confound: Column, folds: Tensor, units: Tensor | None, resampling: Resampling
) -> Estimate:
    """`paper_association` of `outputs (n, k)` and a confound without gaps, tested against independence within folds."""
    found = paper_association(outputs, confound, folds)
    statistic = f"paper_{found.statistic}"
    if confound.kind == "categorical":
        draws = [dcor_draws(logit[:, None], confound.encoded, folds, units, resampling) for logit in outputs.T]
        null = torch.stack([draw.null for draw in draws]).mean(0)
        replicates = torch.stack([draw.replicates for draw in draws]).mean(0)
        ends = interval(found.value, replicates, -1, 1)
        return estimate(statistic, found.value, len(outputs), null, ends, draws[0].movable)
    generator = resampling.generator()
    orders = permuted_rows(folds, units, resampling.permutations, generator, confound.values)
    ones = torch.ones(1, len(outputs), dtype=torch.float64)
    outputs, target = unit_length(outputs), unit_length(confound.values[:, None])[:, 0]
    null = _signed_pearson(outputs, target[orders], ones, folds).abs().mean(1)
    weights = bootstrap_weights(folds, units, resampling.bootstraps, generator).double()
    signed, replicates = (_signed_pearson(outputs, target[None], drawn, folds) for drawn in (ones, weights))
    ends = absolute_interval(signed[0], replicates)
    return estimate(statistic, found.value, len(outputs), null, ends, movable(confound.values, orders))


def _signed_pearson(outputs: Tensor, targets: Tensor, weights: Tensor, folds: Tensor) -> Tensor:
    """`(t, outputs × folds)` Pearson for many targets `(t, n)` or many weightings `(t, n)` at once."""
    each = []
    for fold in torch.unique(folds):
        rows = folds == fold
        w = weights[:, rows] / weights[:, rows].sum(1, keepdim=True)
        x, y = outputs[rows] - outputs[rows].mean(0), targets[:, rows] - targets[:, rows].mean(1, keepdim=True)
        x_mean, y_mean = w @ x, (w * y).sum(1, keepdim=True)
        covariance = (w * y) @ x - x_mean * y_mean
        x_variance = w @ x.square() - x_mean.square()
        y_variance = (w * y.square()).sum(1, keepdim=True) - y_mean.square()
        # Both sides have unit length over all rows: what is left of one that does not vary in a fold is rounding.
        varies = (x_variance > 1e-24) & (y_variance > 1e-24)
        each.append(torch.where(varies, covariance / torch.where(varies, x_variance * y_variance, 1).sqrt(), 0))
    return torch.cat(each, dim=1)
