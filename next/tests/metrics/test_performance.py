"""Scores of predictions against scikit-learn and against sums over pairs."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import calibration as sklearn_calibration
from sklearn import metrics as sklearn_metrics

from deconfound.errors import OptionError, ShapeError, TableError
from deconfound.metrics import (
    accuracy,
    auc,
    balanced_accuracy,
    brier_score,
    calibration,
    group_accuracy,
    r_squared,
    weighted_auc,
)
from tests.metrics.performance_oracles import auc_by_pairs


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_auc_is_that_of_scikit_learn_also_with_ties_and_weights(rng):
    """Kills ties that count as lost, and weights that apply to cases alone."""
    for decimals in (0, 1, 8):
        scores, truth = rng.normal(size=80).round(decimals), rng.integers(0, 2, 80)
        weight = rng.exponential(size=80)
        expected = sklearn_metrics.roc_auc_score(truth, scores)
        assert auc(scores, truth) == pytest.approx(expected, abs=1e-12)
        expected = sklearn_metrics.roc_auc_score(truth, scores, sample_weight=weight)
        found = weighted_auc(scores, truth, weight)
        assert found == pytest.approx(expected, abs=1e-12)
        assert found == pytest.approx(auc_by_pairs(scores, truth, weight), abs=1e-12)


def test_auc_knows_order_alone(rng):
    """Kills an AUC that depends on the scale; a reversed score has the complement."""
    scores, truth = rng.normal(size=60), rng.integers(0, 2, 60)
    assert auc(np.exp(5 * scores), truth) == pytest.approx(auc(scores, truth))
    assert auc(-scores, truth) == pytest.approx(1 - auc(scores, truth))
    assert auc(truth, truth) == 1
    assert auc(np.zeros(60), truth) == 0.5


def test_auc_without_both_classes_has_no_value():
    """Kills a default of .5, which would look like chance."""
    assert np.isnan(auc([0.1, 0.2], [1, 1]))
    assert np.isnan(weighted_auc([0.1, 0.2, 0.3], [1, 0, 0], [1, 0, 0]))


def test_accuracies_are_those_of_scikit_learn_with_and_without_weights(rng):
    """Kills weights that are not divided by their sum, within a class or in all."""
    truth, predicted = rng.integers(0, 3, (2, 100))
    for weight in (None, rng.exponential(size=100), rng.integers(0, 3, 100)):
        expected = sklearn_metrics.accuracy_score(truth, predicted, sample_weight=weight)
        assert accuracy(predicted, truth, weight) == pytest.approx(expected)
        expected = sklearn_metrics.balanced_accuracy_score(truth, predicted, sample_weight=weight)
        assert balanced_accuracy(predicted, truth, weight) == pytest.approx(expected)


def test_group_accuracy_is_the_paper_s(rng):
    """A row is right if both labels are; the groups count the same, however large they are.

    Kills the mean over labels, and the mean over rows.
    """
    truth = (rng.random((300, 2)) < 0.2).astype(int)
    predicted = rng.integers(0, 2, (300, 2))
    groups = 2 * truth[:, 0] + truth[:, 1]
    shares = []
    for group in range(4):
        rows = np.flatnonzero(groups == group)
        shares.append(np.mean([tuple(predicted[row]) == tuple(truth[row]) for row in rows]))
    assert group_accuracy(predicted, truth, groups) == pytest.approx(np.mean(shares))
    assert group_accuracy(predicted, truth, groups) != pytest.approx(accuracy(predicted, truth))


def test_r_squared_and_brier_score_are_those_of_scikit_learn(rng):
    """Kills a mean of the truth that ignores the weights."""
    truth = rng.normal(size=(200))
    predicted = truth + rng.normal(size=200)
    probabilities, is_case = rng.random(200), rng.integers(0, 2, 200)
    for weight in (None, rng.exponential(size=200)):
        expected = sklearn_metrics.r2_score(truth, predicted, sample_weight=weight)
        assert r_squared(predicted, truth, weight) == pytest.approx(expected)
        expected = sklearn_metrics.brier_score_loss(is_case, probabilities, sample_weight=weight)
        assert brier_score(probabilities, is_case, weight) == pytest.approx(expected)
    assert np.isnan(r_squared([1.0, 2.0], [3.0, 3.0]))


def test_r_squared_keeps_its_digits_beside_a_large_mean(rng):
    """Kills the variance as a difference of squares."""
    truth = rng.normal(size=200)
    predicted = truth + 0.5 * rng.normal(size=200)
    far = r_squared(predicted + 2.0**30, truth + 2.0**30)
    assert far == pytest.approx(r_squared(predicted, truth), abs=1e-5)


@pytest.mark.parametrize("bins", [1, 4, 10])
def test_calibration_is_scikit_learn_s_quantile_curve(rng, bins):
    """Kills bins of equal width, and an error that counts all bins the same."""
    probabilities = rng.random(403) ** 2
    truth = rng.random(403) < probabilities**2
    curve = calibration(probabilities, truth, bins=bins)
    observed, predicted = sklearn_calibration.calibration_curve(
        truth, probabilities, n_bins=bins, strategy="quantile"
    )
    np.testing.assert_allclose(curve.observed, observed)
    np.testing.assert_allclose(curve.predicted, predicted)
    assert sum(curve.counts) == 403
    expected = np.average(np.abs(observed - predicted), weights=curve.counts)
    assert curve.error == pytest.approx(expected)
    assert calibration(np.full(20, 0.5), np.arange(20) % 2).counts == (20,)


@pytest.mark.parametrize(
    "convert",
    [lambda x: x.astype(">f8"), list, lambda x: x[::-1][::-1], lambda x: x[:, None]],
    ids=["big-endian", "list", "strided", "one column"],
)
def test_scores_come_as_any_array(rng, convert):
    """Kills a linear that knows float64 arrays alone."""
    scores, truth = rng.normal(size=50).round(2), rng.integers(0, 2, 50)
    assert auc(convert(scores), truth) == auc(scores, truth.astype(bool))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: auc([0.1, np.nan], [0, 1]), TableError, "`scores` is NaN or infinite in 1 of 2"),
        (lambda: auc([0.1, 0.2, 0.3], [0, 1]), ShapeError, "`scores` has 3, `truth` has 2"),
        (lambda: auc([0.1, 0.2], [1, 2]), OptionError, "`truth` holds 2. Pass 1 or True for cases"),
        (lambda: auc([0.1, 0.2], ["a", "b"]), OptionError, "`truth` holds values that are not"),
        (lambda: auc(np.zeros((2, 2)), [0, 1]), ShapeError, "`scores` has 2 columns"),
        (lambda: weighted_auc([1, 2], [0, 1], [1, -1]), OptionError, "`weight` runs from -1 to 1"),
        (lambda: weighted_auc([1, 2], [0, 1], [0, 0]), OptionError, "at least one of them posit"),
        (lambda: accuracy([1, 0], [1, 0], [1]), ShapeError, "`weight` has 1 rows for 2"),
        (lambda: accuracy([1, 0, 1], [1, 0]), ShapeError, r"shape \(3,\) and `truth` \(2,\)"),
        (lambda: accuracy(["1", "0"], [1, 0]), OptionError, "Pass the same classes in both"),
        (lambda: accuracy([1.0, np.nan], [1, 0]), TableError, "`predicted` is missing in 1 of 2"),
        (lambda: group_accuracy([1], [1], ["a", "b"]), ShapeError, "`groups` has 2"),
        (lambda: brier_score([-1.0, 2.0], [0, 1]), OptionError, "from -1 to 2.*apply a sigmoid"),
        (lambda: calibration([0.5], [1], bins=0), OptionError, "`bins` cannot be 0"),
    ],
)
def test_what_cannot_be_scored_is_refused_with_the_way_out(call, error, message):
    """Kills a number where there is no answer."""
    with pytest.raises(error, match=message):
        call()


def test_texts_may_be_objects():
    """NumPy texts and pandas objects hold the same classes. Kills a comparison of dtypes."""
    classes = ["AD", "CN"]
    assert accuracy(np.array(classes), np.array(classes, dtype=object)) == 1.0
