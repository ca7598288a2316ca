"""Measures of performance written out pair by pair and person by person.

Nothing here imports deconfound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def auc_by_pairs(scores: Array, truth: Array, weight: Array) -> float:
    """Return the weighted share of case–control pairs in the right order; ties count half."""
    won = total = 0.0
    for case in np.flatnonzero(truth == 1):
        for control in np.flatnonzero(truth == 0):
            pair = weight[case] * weight[control]
            total += pair
            won += pair * ((scores[case] > scores[control]) + (scores[case] == scores[control]) / 2)
    return won / total if total else np.nan


def auc_of_cells(scores: Array, truth: Array, cells: Array, weight: Array) -> float:
    """Return Σ a AUC / Σ a over cells, where a = n₁ n₀ / (n₁ + n₀) from sums of weights."""
    areas, importances = [], []
    for cell in np.unique(cells):
        rows = cells == cell
        cases, controls = weight[rows & (truth == 1)].sum(), weight[rows & (truth == 0)].sum()
        if cases and controls:
            areas.append(auc_by_pairs(scores[rows], truth[rows], weight[rows]))
            importances.append(cases * controls / (cases + controls))
    return float(np.average(areas, weights=importances))


def correlation_within(x: Array, y: Array, cells: Array) -> float:
    """Return the correlation of x and y after a regression on one column per cell."""
    members = (cells[:, None] == np.unique(cells)).astype(float)
    residuals = [v - members @ np.linalg.lstsq(members, v, rcond=None)[0] for v in (x, y)]
    return float(np.corrcoef(*residuals)[0, 1])


def jackknife_variance(first: Array, second: Array, truth: Array) -> float:
    """Return the variance of AUC₁ − AUC₂ by leaving out each case, then each control.

    For U-statistics of two samples DeLong's variance is this jackknife.
    """
    ones = np.ones(len(truth))
    variance = 0.0
    for label in (0, 1):
        members = np.flatnonzero(truth == label)
        left_out = []
        for row in members:
            rows = np.arange(len(truth)) != row
            pair = [auc_by_pairs(s[rows], truth[rows], ones[rows]) for s in (first, second)]
            left_out.append(pair[0] - pair[1])
        n = len(members)
        variance += (n - 1) / n * np.sum((np.array(left_out) - np.mean(left_out)) ** 2)
    return variance
