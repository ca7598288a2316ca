"""Differences of models against resampling, and adjusted p-values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from deconfound.errors import OptionError, ShapeError
from deconfound.metrics import Resampling, delong, holm, honest_performance, nadeau_bengio
from tests.metrics.performance_oracles import jackknife_variance


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def make_models(rng, n=60, gain=0.0):
    truth = np.arange(n) % 2
    shared = truth + rng.normal(size=n)
    return (shared + rng.normal(size=n)).round(1), shared + gain * truth + rng.normal(size=n), truth


def test_delong_is_the_jackknife_of_scikit_learn_s_aucs(rng):
    """Kills an unpaired variance, and one divided by n in place of n − 1; ties count half."""
    first, second, truth = make_models(rng)
    estimate = delong(first, second, truth)
    assert estimate.value == pytest.approx(
        roc_auc_score(truth, first) - roc_auc_score(truth, second)
    )
    error = jackknife_variance(first, second, truth) ** 0.5
    reach = stats.norm.ppf(0.975) * error
    assert estimate.high - estimate.value == pytest.approx(reach)
    assert estimate.value - estimate.low == pytest.approx(reach)
    assert estimate.p == pytest.approx(2 * stats.norm.sf(abs(estimate.value) / error))
    assert estimate.n == 60


def test_delong_of_folds_is_the_difference_of_honest_scores(rng):
    """One name has one value. Kills a mean of folds that ignores their sizes."""
    first, second, truth = make_models(rng, 200)
    fold = rng.choice(3, 200, p=[0.2, 0.3, 0.5])
    plain = [
        honest_performance(s, truth, {}, fold=fold, resampling=Resampling(bootstraps=0)).plain
        for s in (first * 10.0**fold, second)
    ]
    estimate = delong(first * 10.0**fold, second, truth, fold=fold)
    assert estimate.value == pytest.approx(plain[0].value - plain[1].value)
    assert 0.5 < (estimate.high - estimate.low) / np.ptp(_interval(first, second, truth)) < 2


def _interval(first, second, truth):
    estimate = delong(first, second, truth)
    return estimate.low, estimate.high


def test_delong_has_its_level_and_finds_a_better_model(rng):
    """5 % of 400 equal pairs are called different, within four standard errors.

    Kills a one-sided p-value, and a standard error without its root.
    """
    p = np.array([delong(*make_models(rng)).p for _ in range(400)])
    assert np.mean(p <= 0.05) == pytest.approx(0.05, abs=4 * (0.05 * 0.95 / 400) ** 0.5)
    better = delong(*make_models(rng, 600, gain=1.0))
    assert better.high < 0
    assert better.p < 1e-4


def test_equal_models_differ_by_nothing(rng):
    """Kills a division by zero."""
    first, _, truth = make_models(rng)
    same = delong(first, first, truth)
    assert (same.value, same.low, same.high, same.p) == (0, 0, 0, 1)
    same = nadeau_bengio([0.0, 0.0, 0.0], 0.2)
    assert (same.value, same.low, same.high, same.p) == (0, 0, 0, 1)
    assert np.isnan(nadeau_bengio([0.1, 0.1, 0.1], 0.2).p)


def test_nadeau_bengio_is_the_t_test_with_a_wider_error(rng):
    """Kills the share of test rows in place of the ratio of test and training rows."""
    differences = 0.05 + 0.1 * rng.normal(size=10)
    estimate = nadeau_bengio(differences, test_share=0.2)
    plain = stats.ttest_1samp(differences, 0)
    # Corrected variance: 1 / k + 1 / 4 in place of 1 / k.
    t = plain.statistic / (1 + 10 / 4) ** 0.5
    assert estimate.p == pytest.approx(2 * stats.t.sf(abs(t), 9))
    half = np.ptp(plain.confidence_interval(0.95)) / 2 * (1 + 10 / 4) ** 0.5
    assert estimate.value == pytest.approx(differences.mean())
    assert (estimate.high - estimate.low) / 2 == pytest.approx(half)
    assert estimate.n == 10


def test_holm_is_the_definition_step_by_step(rng):
    """Kills Bonferroni, missing monotonicity, values above 1, and NaN that counts as a test."""
    p = rng.random(8) ** 3
    order, largest = np.argsort(p), 0.0
    expected = np.empty(8)
    for step, place in enumerate(order):
        largest = max(largest, (8 - step) * p[place])
        expected[place] = min(1.0, largest)
    np.testing.assert_allclose(holm(p), expected)
    with_gaps = np.insert(p, [0, 4, 8], np.nan)
    np.testing.assert_allclose(holm(with_gaps), np.insert(expected, [0, 4, 8], np.nan))
    assert (holm(p) < np.minimum(8 * p, 1)).any()
    assert np.isnan(holm([np.nan])).all()
    assert holm([]).shape == (0,)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: delong([1, 2], [1, 2], [1, 1]), OptionError, "fewer than two cases or two contr"),
        (lambda: delong([1, 2], [1, 2, 3], [1, 0]), ShapeError, "`second` has 3"),
        (lambda: nadeau_bengio([0.1], 0.2), ShapeError, "`differences` has 1 split"),
        (lambda: nadeau_bengio([0.1, 0.2], 1.0), OptionError, "`test_share` cannot be 1.0"),
        (lambda: holm([0.1, 1.5]), OptionError, r"`p_values` cannot be \[0.1, 1.5\]"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, error, message):
    """Kills a number where there is no answer."""
    with pytest.raises(error, match=message):
        call()


def test_people_of_folds_that_take_no_part_are_not_counted():
    """A fold with a single case. Kills n of all rows."""
    truth = [0, 0, 0, 1, 1, 1, 1]
    folds = ["a"] * 6 + ["b"]
    result = delong([1, 2, 4, 3, 5, 6, 7], [1, 6, 2, 4, 3, 5, 7], truth, fold=folds)
    assert result.n == 6
