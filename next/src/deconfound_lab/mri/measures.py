"""What is measured of logits: the paper's correlations, the same within groups, and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from deconfound.metrics import Estimate, paper_association

CONFOUNDS = ("age", "sex", "site")
LABELS = ("hiv", "mci")
# A group with fewer people has no dcor².
FEWEST = 4

Array = NDArray[np.float64]


def measure_associations(scores: ArrayLike, people: pd.DataFrame) -> dict[str, float]:
    """Return the paper's measures, averaged over the two scores of each person.

    They are |Pearson| for age, |point-biserial| for sex, and dcor² with the one-hot site.

    Args:
        scores: Shape `(n, 2)`.
        people: Has `age`, `sex` and `site`.
    """
    kinds = {"age": False, "sex": True, "site": True}
    return {
        name: paper_association(scores, people[name].to_numpy(), categorical=is_categorical)
        for name, is_categorical in kinds.items()
    }


def measure_accuracies(logits: ArrayLike, people: pd.DataFrame) -> dict[str, float]:
    """Return the share of people of each group with both labels right."""
    is_right = ((np.asarray(logits) > 0) == people[list(LABELS)].to_numpy(dtype=bool)).all(axis=1)
    shares = pd.Series(is_right).groupby(people["group"].to_numpy(), sort=False).mean()
    return {str(group): float(share) for group, share in shares.items()}


def measure_within_groups(
    scores: ArrayLike, people: pd.DataFrame, draws: int = 0, seed: int = 0
) -> dict[str, Array]:
    """Return the paper's measures within groups, averaged over groups in which a confound varies.

    Labels are constant within a group, so that what is left is the confound's own. dcor² serves
    the site of every group, also where it has two levels.

    Args:
        scores: Shape `(n, 2)`.
        people: Has `group`, `age`, `sex` and `site`.
        draws: The number of bootstrap samples of people, drawn within groups.
        seed: The seed of the bootstrap.

    Returns:
        For each confound the measure, and then that of each bootstrap sample, shape `(1 + draws,)`.
    """
    scores = np.asarray(scores, dtype=np.float64)
    random = np.random.default_rng(seed)
    measures: dict[str, list[Array]] = {name: [] for name in CONFOUNDS}
    for rows in people.reset_index(drop=True).groupby("group", sort=True).indices.values():
        n = len(rows)
        samples = random.multinomial(n, np.full(n, 1 / n), size=draws)
        counts = np.vstack([np.ones(n), samples]).T
        for name in CONFOUNDS:
            column = people[name].to_numpy()[rows]
            if n < FEWEST or len(np.unique(column)) < 2:
                continue
            codes = column if name == "age" else np.unique(column, return_inverse=True)[1]
            measure = dcor_sqr_of_counts if name == "site" else correlation_of_counts
            each = [measure(score, codes.astype(np.float64), counts) for score in scores[rows].T]
            measures[name].append(np.mean(each, axis=0))
    return {name: np.mean(values, axis=0) for name, values in measures.items() if values}


def pool_folds(folds: Sequence[tuple[ArrayLike, pd.DataFrame]], draws: int = 200) -> Estimate:
    """Return the mean of the three measures within groups over people of all folds.

    Args:
        folds: The scores `(n, 2)` and the people of each test fold.
        draws: The number of bootstrap samples.

    Returns:
        The mean with its 95 % interval over people.
    """
    # Folds are trained apart. On one scale their people can be compared with each other.
    scores = [np.asarray(own, dtype=np.float64) for own, _ in folds]
    scaled = np.concatenate([(own - own.mean(0)) / own.std(0).clip(min=1e-12) for own in scores])
    people = pd.concat([own for _, own in folds], ignore_index=True)
    measures = measure_within_groups(scaled, people, draws)
    value, *samples = np.mean(list(measures.values()), axis=0)
    # A bootstrap adds to a |correlation|, so that its mean is moved to the measure.
    low, high = np.quantile(samples, [0.025, 0.975]) + (value - np.mean(samples))
    return Estimate(float(value), float(low), float(high), n=len(people))


def correlation_of_counts(x: Array, y: Array, counts: Array) -> Array:
    """Return |Pearson| of people who occur `counts` times each, `(n, draws)`; 0 if constant."""
    share = counts / counts.sum(axis=0)
    centred_x, centred_y = x[:, None] - x @ share, y[:, None] - y @ share
    covariance = (share * centred_x * centred_y).sum(axis=0)
    variance = (share * centred_x**2).sum(axis=0) * (share * centred_y**2).sum(axis=0)
    return np.abs(divide_safely(covariance, np.sqrt(variance)))


def dcor_sqr_of_counts(x: Array, codes: Array, counts: Array) -> Array:
    """Return the bias-corrected dcor² of a score and a category, of counted people.

    The formula is that of `deconfound.metrics.u_distance_correlation_sqr`, in which each person
    occurs `counts` times, shape `(n, draws)`. All samples together are a few matrix products.
    """
    n = counts[:, 0].sum()
    a, b = np.abs(x[:, None] - x), (codes[:, None] != codes).astype(np.float64)

    def covariance(first: Array, second: Array) -> Array:
        rows = first @ counts, second @ counts
        products = (counts * ((first * second) @ counts)).sum(axis=0)
        middle = 2 * (counts * rows[0] * rows[1]).sum(axis=0) / (n - 2)
        totals = [(counts * row).sum(axis=0) for row in rows]
        return np.asarray(products - middle + totals[0] * totals[1] / ((n - 1) * (n - 2)))

    variance = covariance(a, a) * covariance(b, b)
    return divide_safely(covariance(a, b), np.sqrt(variance.clip(min=0)))


def divide_safely(value: Array, scale: Array) -> Array:
    """Return value / scale, and 0 where the scale is nothing but rounding."""
    result: Any = np.divide(value, scale, out=np.zeros_like(value), where=scale > 1e-12)
    return np.asarray(result)
