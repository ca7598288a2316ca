"""Differences between models, and the p-values of several tests."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm, rankdata, t

from deconfound.errors import OptionError, ShapeError
from deconfound.metrics.arrays import Array, as_codes, as_vector, check_lengths
from deconfound.metrics.bootstrap import Estimate
from deconfound.metrics.performance import as_flags
from deconfound.metrics.sampled_scores import Flags

# A standard error below this share of the value is rounding: all differences are equal.
ROUNDING = 1e-12


def delong(
    first: ArrayLike, second: ArrayLike, truth: ArrayLike, *, fold: ArrayLike | None = None
) -> Estimate:
    """Return the difference of two AUCs on the same people (DeLong et al., 1988).

    The placement of a case is the share of controls that score below it, and that of a control the
    share of cases that score above it. An AUC is the mean placement of either. The variance of the
    difference follows from the difference d between the two placements of each person:

        Var(AUC₁ − AUC₂) = Var(d of cases) / n₁ + Var(d of controls) / n₀

    Differences of several test folds are averaged with the weights n₁ n₀ / (n₁ + n₀), as in
    `honest_performance`. A fold with fewer than two people of a class takes no part.

    Args:
        first: Scores of the first model, shape `(n,)`, one row for each person.
        second: Scores of the second model for the same people, shape `(n,)`.
        truth: 1 or True for cases and 0 or False for controls, shape `(n,)`.
        fold: Test fold of each row, shape `(n,)`; None if one model gave all scores.

    Returns:
        AUC₁ − AUC₂ with its normal 95 % interval and two-sided p-value.

    Raises:
        OptionError: No fold has two cases and two controls.

    Example:
        >>> truth = [0, 0, 0, 1, 1, 1]
        >>> difference = delong([1, 2, 4, 3, 5, 6], [1, 6, 2, 4, 3, 5], truth)
        >>> round(difference.value, 3), round(difference.p, 2)
        (0.222, 0.59)
    """
    scores = as_vector(first, "first"), as_vector(second, "second")
    is_case = as_flags(truth, "truth")
    folds = np.zeros(len(is_case), dtype=np.intp) if fold is None else as_codes(fold, "fold")[0]
    check_lengths(first=scores[0], second=scores[1], truth=is_case, fold=folds)
    parts, n = [], 0
    for rows in (folds == code for code in np.unique(folds)):
        cases, controls = np.sum(is_case[rows]), np.sum(~is_case[rows])
        if min(cases, controls) >= 2:
            placements = [_placements(model[rows], is_case[rows]) for model in scores]
            difference = placements[0] - placements[1]
            of_cases, of_controls = difference[is_case[rows]], difference[~is_case[rows]]
            variance = of_cases.var(ddof=1) / cases + of_controls.var(ddof=1) / controls
            n += int(cases + controls)
            parts.append((cases * controls / (cases + controls), of_cases.mean(), variance))
    if not parts:
        raise OptionError(
            "`truth` has fewer than two cases or two controls in every fold. Pass more people."
        )
    weights, differences, variances = np.array(parts).T
    shares = weights / weights.sum()
    return _estimate(float(shares @ differences), sqrt(float(shares**2 @ variances)), norm, n)


def nadeau_bengio(differences: ArrayLike, test_share: float) -> Estimate:
    """Return the mean difference of two models over cross-validation folds or repeated splits.

    Training sets overlap, so the plain t-test is far too certain. Nadeau and Bengio (2003) correct
    the variance by the ratio of test and training rows:

        t = mean(d) / √((1 / k + n_test / n_train) Var(d)),   k − 1 degrees of freedom

    Args:
        differences: d, the difference of the two models in each split, shape `(k,)`.
        test_share: n_test / (n_test + n_train), .2 for five folds.

    Returns:
        The mean with its 95 % interval and two-sided p-value, and n = k.

    Example:
        >>> estimate = nadeau_bengio([0.02, 0.05, 0.01, 0.04, 0.03], test_share=0.2)
        >>> round(estimate.value, 3), round(estimate.p, 3)
        (0.03, 0.047)
    """
    numbers = as_vector(differences, "differences")
    k = len(numbers)
    if k < 2:
        raise ShapeError(f"`differences` has {k} split. Pass the differences of at least two.")
    if not 0 < test_share < 1:
        raise OptionError(f"`test_share` cannot be {test_share!r}. Pass n_test / n, such as 0.2.")
    value = float(numbers.mean())
    error = sqrt((1 / k + test_share / (1 - test_share)) * float(numbers.var(ddof=1)))
    return _estimate(value, error, t(k - 1), k)


def holm(p_values: ArrayLike) -> Array:
    """Return the p-values of a family of tests, adjusted by Holm's method; NaN stays NaN.

    The k-th smallest of m p-values is multiplied by m − k + 1, and none is smaller than the one
    before it. Below .05 after this adjustment, the chance of any false alarm is at most 5 %.

    Args:
        p_values: Shape `(m,)`. Tests without an answer are NaN and do not count.

    Example:
        >>> holm([0.01, float("nan"), 0.04]).tolist()
        [0.02, nan, 0.04]
    """
    p = np.array(p_values, dtype=np.float64)
    if p.ndim != 1 or ((p < 0) | (p > 1)).any():
        raise OptionError(f"`p_values` cannot be {p_values!r}. Pass numbers from 0 to 1 or NaN.")
    known = np.flatnonzero(~np.isnan(p))
    known = known[np.argsort(p[known], kind="stable")]
    factors = np.arange(len(known), 0, -1)
    p[known] = np.minimum(np.maximum.accumulate(factors * p[known]), 1.0)
    return p


def _placements(scores: Array, is_case: Flags) -> Array:
    """Return the share of controls below each case, and of cases above each control, `(n,)`."""
    ranks = rankdata(scores)
    placements = np.empty(len(scores))
    # A rank among all people minus the rank in the own class counts the other class below.
    placements[is_case] = (ranks[is_case] - rankdata(scores[is_case])) / (~is_case).sum()
    below = (ranks[~is_case] - rankdata(scores[~is_case])) / is_case.sum()
    placements[~is_case] = 1 - below
    return placements


def _estimate(value: float, error: float, distribution: Any, n: int) -> Estimate:
    """Return a value with the interval and p-value that follow from its standard error."""
    if error <= ROUNDING * abs(value):
        # Equal models differ by 0 for certain. Any other constant difference cannot be tested.
        return Estimate(0.0, 0.0, 0.0, 1.0, n) if value == 0 else Estimate(value, n=n)
    reach = float(distribution.ppf(0.975)) * error
    p = 2 * float(distribution.sf(abs(value) / error))
    return Estimate(value, value - reach, value + reach, p, n)
