"""What is measured of logits: the paper's correlations, the same within diagnostic groups, and accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.metrics import column, pearson, u_distance_correlation_sqr
from deconfound_lab.cohort.cohort import Cohort
from deconfound_lab.cohort.people import GROUPS
from deconfound_lab.mri.training import CONFOUNDS, LABELS

Matrix = NDArray[np.float64]
FEWEST = 4
"""People whom a group must have to be looked at: dcor² needs as many."""


def correlations(scores: NDArray[Any], cohort: Cohort, rows: NDArray[Any]) -> dict[str, float]:
    """The paper's measures: mean over the scores of |Pearson| for age and sex, and of dcor² for the site."""
    values = torch.from_numpy(np.ascontiguousarray(scores, dtype=np.float64))
    found = {}
    for name in CONFOUNDS:
        known = column(name, np.asarray(cohort.table[name])[rows], "categorical" if name == "site" else None)
        if name == "site":
            each = [u_distance_correlation_sqr(score[:, None], known.encoded) for score in values.T]
            found[name] = float(torch.stack(each).mean())
        else:
            found[name] = float(pearson(values, known.values).abs().mean())
    return found


def within_groups(scores: NDArray[Any], cohort: Cohort, rows: NDArray[Any]) -> dict[str, float]:
    """The same within each diagnostic group, averaged over the groups in which the confound varies."""
    groups = np.asarray(cohort.table["group"])[rows]
    found: dict[str, list[float]] = {name: [] for name in CONFOUNDS}
    for group in GROUPS:
        mine = groups == group
        if mine.sum() < FEWEST:
            continue
        for name, value in correlations(scores[mine], cohort, rows[mine]).items():
            if len(set(np.asarray(cohort.table[name])[rows[mine]].tolist())) > 1:
                found[name].append(value)
    return {name: float(np.mean(values)) if values else 0.0 for name, values in found.items()}


def bootstrap(scores: NDArray[Any], cohort: Cohort, rows: NDArray[Any], draws: int) -> dict[str, Matrix]:
    """`within_groups` by bootstrap over people, stratified by group; `(draws,)` for each confound.

    A draw is a count of each person, and the sums that make a correlation are products with these counts: all draws
    of a group together cost a few matrix products.
    """
    random = np.random.default_rng(0)
    groups = np.asarray(cohort.table["group"])[rows]
    found: dict[str, list[Matrix]] = {name: [] for name in CONFOUNDS}
    for group in GROUPS:
        mine = np.flatnonzero(groups == group)
        if len(mine) < FEWEST:
            continue
        counts = random.multinomial(len(mine), np.full(len(mine), 1 / len(mine)), size=draws).T.astype(np.float64)
        for name in CONFOUNDS:
            _, codes = np.unique(np.asarray(cohort.table[name])[rows[mine]], return_inverse=True)
            if codes.max() == 0:
                continue
            values = np.asarray(cohort.table[name])[rows[mine]].astype(np.float64) if name == "age" else codes
            drawn = counted_dcor_sqr if name == "site" else counted_pearson
            each = [drawn(score, values, counts) for score in np.asarray(scores, np.float64)[mine].T]
            found[name].append(np.mean(each if name == "site" else np.abs(each), axis=0))
    return {name: np.mean(values, axis=0) if values else np.zeros(draws) for name, values in found.items()}


def counted_pearson(x: NDArray[Any], y: NDArray[Any], counts: Matrix) -> Matrix:
    """Pearson's correlation of people who each occur `counts (n, draws)` times; 0 where one side is constant."""
    share = counts / counts.sum(0)
    x_mean, y_mean = x @ share, y @ share
    covariance = (x * y) @ share - x_mean * y_mean
    spread = np.sqrt(np.maximum(((x * x) @ share - x_mean**2) * ((y * y) @ share - y_mean**2), 0))
    return _ratio(covariance, spread)


def counted_dcor_sqr(x: NDArray[Any], codes: NDArray[Any], counts: Matrix) -> Matrix:
    """Bias-corrected dcor² of a score with a category, of people who each occur `counts (n, draws)` times."""
    n = counts[:, 0].sum()
    a, b = np.abs(x[:, None] - x), (codes[:, None] != codes).astype(np.float64)
    rows = {"a": a @ counts, "b": b @ counts}

    def covariance(products: Matrix, one: str, other: str) -> Matrix:
        pairs = (counts * (products @ counts)).sum(0)
        middle = (counts * rows[one] * rows[other]).sum(0)
        totals = (counts * rows[one]).sum(0) * (counts * rows[other]).sum(0)
        found: Matrix = (pairs - 2 * middle / (n - 2) + totals / ((n - 1) * (n - 2))) / (n * (n - 3))
        return found

    spread = np.sqrt(np.maximum(covariance(a * a, "a", "a") * covariance(b, "b", "b"), 0))
    return _ratio(covariance(a * b, "a", "b"), spread)


def _ratio(covariance: Matrix, spread: Matrix) -> Matrix:
    found: Matrix = np.divide(covariance, spread, out=np.zeros_like(covariance), where=spread > 1e-12)
    return found


def group_accuracies(logits: NDArray[Any], cohort: Cohort, rows: NDArray[Any]) -> dict[str, float]:
    """The share of people with both labels right in each diagnostic group; the paper's accuracy is their mean."""
    right = both_right(logits, cohort, rows)
    groups = np.asarray(cohort.table["group"])[rows]
    return {group: float(right[groups == group].mean()) for group in GROUPS if (groups == group).any()}


def both_right(logits: NDArray[Any], cohort: Cohort, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether both labels of each person are right."""
    truth = np.stack([cohort.table[name][rows] for name in LABELS], axis=1)
    found: NDArray[np.bool_] = ((logits > 0) == truth).all(axis=1)
    return found


def standardised(logits: NDArray[Any]) -> Matrix:
    """Logits of one fold with mean 0 and sd 1 each."""
    spread = logits.std(axis=0)
    scaled: Matrix = (logits - logits.mean(axis=0)) / np.where(spread > 0, spread, 1)
    return scaled
