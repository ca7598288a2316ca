"""Paired differences over the test sets of cross-validation, with intervals that know of their overlap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance

from deconfound.errors import need

Value = tuple[int, float]
"""A test set (by a number that equal ones share) and the value measured on it."""


@dataclass(frozen=True)
class Interval:
    """A mean over test sets with its 95 % interval; NaN where there are too few.

    Attributes:
        mean: Over test sets, runs on the same test set being averaged first.
        low: Lower end.
        high: Upper end.
        p: Two-sided, of the mean being zero.
        sets: How many distinct test sets.
    """

    mean: float
    low: float
    high: float
    p: float
    sets: int


def interval(values: Sequence[Value], test_share: float) -> Interval:
    """The corrected resampled t interval of Nadeau and Bengio (2003).

    The training sets of cross-validation overlap, so the values are not independent and the usual variance `s² / J` is
    too small; `(1 / J + n_test / n_train) s²` with `J - 1` degrees of freedom takes its place. With several seeds that
    each draw their own folds this is the corrected repeated k-fold test of Bouckaert and Frank (2004). Runs of several
    seeds on one test set differ by the training alone: they are averaged first and count once.

    Args:
        values: Of each run and test set.
        test_share: `n_test / n_train`.

    Example:
        >>> found = interval([(0, 0.60), (1, 0.64), (2, 0.62), (3, 0.61), (4, 0.63)], test_share=0.25)
        >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
        (0.62, 0.591, 0.649)
    """
    by_set: dict[int, list[float]] = {}
    for test_set, value in values:
        if not math.isnan(value):
            by_set.setdefault(test_set, []).append(value)
    means = [fmean(found) for found in by_set.values()]
    count = len(means)
    if count == 0:
        return Interval(math.nan, math.nan, math.nan, math.nan, 0)
    mean = fmean(means)
    if count == 1:
        return Interval(mean, math.nan, math.nan, math.nan, 1)
    error = math.sqrt((1 / count + test_share) * variance(means))
    student = need("scipy.stats", "train").t(count - 1)
    reach = float(student.ppf(0.975)) * error
    p = 2 * float(student.sf(abs(mean) / error)) if error > 0 else (1.0 if mean == 0 else 0.0)
    return Interval(mean, mean - reach, mean + reach, p, count)


def within(found: Interval, low: float, high: float) -> Interval:
    """The interval without what lies outside the values that the measure can have."""
    return replace(found, low=max(found.low, low), high=min(found.high, high))


def difference(
    values: Mapping[tuple[int, int], float], base: Mapping[tuple[int, int], float], share: float
) -> Interval:
    """The interval of `values - base`, paired by (test set, seed)."""
    both = [key for key in values if key in base]
    return interval([(key[0], values[key] - base[key]) for key in both], share)
