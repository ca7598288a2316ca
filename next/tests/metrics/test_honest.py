"""Honest performance: a score that reads the confound alone is worth nothing."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

import deconfound as dc
from deconfound.errors import OptionError, ShapeError
from deconfound.metrics import Resampling, honest_performance, thirds
from tests.metrics.performance_oracles import auc_of_cells, correlation_within

FEW = Resampling(bootstraps=40)
NONE = Resampling(bootstraps=0)


def make_cohort(n=600, seed=0, sites=3):
    """Return labels, sites and ages, where cases are older and come from other sites."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, n)
    site = np.clip(rng.binomial(sites - 1, 0.3 + 0.4 * truth), 0, sites - 1)
    age = rng.normal(60 + 6 * truth, 8)
    return truth, np.array([f"site {code}" for code in range(sites)])[site], age


def test_a_score_that_knows_the_confounds_alone_is_worth_a_half():
    """Acceptance 24. Kills pairs across strata; a true signal is the positive control."""
    truth, site, _ = make_cohort(4000)
    balance = dc.balance({"dx": truth.astype(str), "site": site}, labels=["dx"], confounds=["site"])
    weights = balance.weights[:, 0]
    code = np.unique(site, return_inverse=True)[1].astype(float)
    linear = honest_performance(code, truth, {"site": site}, weights, resampling=FEW)
    assert linear.plain.value > 0.65
    assert linear.within_strata["site"].value == 0.5
    assert linear.balanced.value == pytest.approx(0.5, abs=1e-6)
    signal = np.random.default_rng(1).normal(size=4000) + truth
    honest = honest_performance(signal, truth, {"site": site}, weights, resampling=FEW)
    for estimate in (honest.plain, honest.within_strata["site"], honest.balanced):
        assert estimate.value == pytest.approx(0.76, abs=0.02)  # Φ(1 / √2)
        assert estimate.low < 0.76 < estimate.high
        assert estimate.n == 4000


def test_within_strata_is_the_mean_over_cells_by_hand():
    """Kills the weights n₁n₀, one weight per stratum, and pairs across test folds."""
    truth, site, _ = make_cohort(300, sites=4)
    rng = np.random.default_rng(2)
    fold = rng.integers(0, 3, 300)
    # The networks of different folds have different scales.
    scores = (truth + rng.normal(size=300)).round(1) * 10.0**fold
    weight = rng.exponential(size=300)
    honest = honest_performance(scores, truth, {"site": site}, weight, fold=fold, resampling=NONE)
    cells = np.array([f"{a} {b}" for a, b in zip(site, fold, strict=True)])
    ones = np.ones(300)
    found = [honest.plain.value, honest.within_strata["site"].value, honest.balanced.value]
    expected = [
        auc_of_cells(scores, truth, fold, ones),
        auc_of_cells(scores, truth, cells, ones),
        auc_of_cells(scores, truth, fold, weight),
    ]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert np.isnan([honest.plain.low, honest.plain.high]).all()


def test_a_stratum_without_cases_has_no_part_in_the_score():
    """Kills a .5 for strata that cannot be compared, and no score at all."""
    site = np.array(["A"] * 40 + ["B"] * 10)
    truth = np.array([0, 1] * 20 + [0] * 10)
    honest = honest_performance(truth + 0.0, truth, {"site": site}, resampling=FEW)
    assert honest.within_strata["site"].value == honest.within_strata["site"].low == 1
    alone = honest_performance(truth + 0.0, truth, {"dx": truth}, resampling=FEW)
    assert np.isnan(alone.within_strata["dx"].value)


def test_several_classes_are_each_compared_with_the_rest():
    """Kills the AUC of one class alone, and one weighted by the size of the classes."""
    rng = np.random.default_rng(0)
    truth = rng.choice(3, 400, p=[0.6, 0.35, 0.05])
    site = rng.choice(["A", "B"], 400)
    scores = rng.dirichlet(np.ones(3), 400) + np.eye(3)[truth] * [0.1, 0.3, 0.6]
    honest = honest_performance(scores, truth, {"site": site}, np.ones(400), resampling=FEW)
    each = [sklearn_metrics.roc_auc_score(truth == c, scores[:, c]) for c in range(3)]
    assert honest.label == "classes"
    assert honest.plain.value == honest.balanced.value == pytest.approx(np.mean(each))
    ones = np.ones(400)
    each = [auc_of_cells(scores[:, c], (truth == c) * 1, site, ones) for c in range(3)]
    assert honest.within_strata["site"].value == pytest.approx(np.mean(each))
    np.testing.assert_allclose(honest.effective, np.bincount(truth))
    assert not honest.has_enough_people


def test_the_worst_group_is_the_stratum_with_the_least_balanced_accuracy():
    """Kills plain accuracy, a threshold that is ignored, and the best group."""
    truth, site, age = make_cohort(900)
    rng = np.random.default_rng(1)
    noise = np.where(site == "site 1", 3.0, 0.5)
    scores = truth + noise * rng.normal(size=900)
    strata = {"site": site, "age": thirds(age)}
    worst = honest_performance(scores, truth, strata, threshold=0.5, resampling=FEW).worst_group
    rows = site == "site 1"
    expected = sklearn_metrics.balanced_accuracy_score(truth[rows], scores[rows] >= 0.5)
    assert (worst.confound, worst.level, worst.strata) == ("site", "site 1", 6)
    assert worst.score.value == pytest.approx(expected)
    assert worst.score.n == rows.sum()
    assert worst.score.low < expected < worst.score.high
    assert honest_performance(scores, truth, strata, resampling=NONE).worst_group is None


def test_a_stratum_with_nine_cases_is_never_the_worst():
    """Kills a limit that counts rows in place of people, and all classes together."""
    site = np.repeat(["A", "B", "C"], [60, 60, 49])
    truth = np.r_[[0, 1] * 60, [1] * 9, [0] * 40]
    scores = np.where(site == "C", 1 - truth, truth).astype(float)
    scores[:3] = 0.5
    options = {"threshold": 0.5, "resampling": NONE}
    honest = honest_performance(scores, truth, {"site": site}, **options)
    assert (honest.worst_group.level, honest.worst_group.strata) == ("A", 2)
    twice = np.repeat(np.arange(169), 2)
    person = twice
    doubled = honest_performance(
        scores[twice], truth[twice], {"site": site[twice]}, person=person, **options
    )
    assert (doubled.worst_group.level, doubled.worst_group.strata) == ("A", 2)
    more = honest_performance(scores[twice], truth[twice], {"site": site[twice]}, **options)
    assert (more.worst_group.level, more.worst_group.strata) == ("C", 3)  # eighteen rows count


def test_numeric_labels_have_a_correlation_within_strata():
    """A prediction that knows the site alone has no correlation within sites, and R² ≤ 0.

    Kills stratum means that leave one side only, and a mean of the truth without weights.
    """
    rng = np.random.default_rng(0)
    site = rng.integers(0, 4, 500)
    truth = 70 + 5.0 * site + rng.normal(size=500)
    predicted = 70 + 5.0 * site + 0.5 * (truth - 70 - 5 * site) + rng.normal(size=500)
    fold = rng.integers(0, 2, 500)
    weight = rng.exponential(size=500)
    honest = honest_performance(predicted, truth, {"site": site}, weight, fold=fold, resampling=FEW)
    expected = correlation_within(predicted, truth, 10 * site + fold)
    assert honest.within_strata["site"].value == pytest.approx(expected)
    assert honest.plain.value == pytest.approx(sklearn_metrics.r2_score(truth, predicted))
    expected = sklearn_metrics.r2_score(truth, predicted, sample_weight=weight)
    assert honest.balanced.value == pytest.approx(expected)
    assert honest.effective == pytest.approx((weight.sum() ** 2 / (weight**2).sum(),))
    errors = [np.abs(truth - predicted)[site == code].mean() for code in range(4)]
    assert honest.worst_group.score.value == pytest.approx(max(errors))
    assert honest.worst_group.level == str(np.argmax(errors))
    levels = np.array([70.1, 75.7, 80.3, 85.9])
    linear = honest_performance(levels[site], truth, {"site": site}, resampling=NONE)
    assert linear.plain.value > 0.9
    assert np.isnan(linear.within_strata["site"].value)  # and no correlation of rounding


def test_effective_numbers_count_people():
    """A person's rows count as one person with the sum of their weights. Kills a count of rows."""
    rng = np.random.default_rng(0)
    truth, weight = np.arange(120) % 2, rng.exponential(size=120)
    twice = np.repeat(np.arange(120), 2)
    strata = {"site": ["A"] * 120}
    once = honest_performance(truth, truth, strata, weight, resampling=NONE)
    doubled = honest_performance(
        truth[twice],
        truth[twice],
        {"site": ["A"] * 240},
        weight[twice],
        person=twice,
        resampling=NONE,
    )
    assert doubled.effective == pytest.approx(once.effective)
    assert doubled.plain.n == 120
    equal = honest_performance(truth, truth, strata, np.ones(120), resampling=NONE)
    assert equal.effective == (60, 60)
    assert equal.has_enough_people
    assert not once.has_enough_people


def test_intervals_are_those_of_people():
    """Rows that are repeated within people make no interval narrower. Kills a bootstrap of rows."""
    rng = np.random.default_rng(0)
    truth = np.arange(80) % 2
    scores = truth + rng.normal(size=80)
    many = np.repeat(np.arange(80), 6)
    strata, repeated = {"site": ["A"] * 80}, {"site": ["A"] * 480}
    once = honest_performance(scores, truth, strata).plain
    people = honest_performance(scores[many], truth[many], repeated, person=many).plain
    rows = honest_performance(scores[many], truth[many], repeated).plain
    assert people.value == pytest.approx(once.value)
    assert people.high - people.low == pytest.approx(once.high - once.low, rel=0.15)
    assert rows.high - rows.low < 0.6 * (once.high - once.low)


def test_thirds_have_equal_numbers_of_rows():
    """Kills bins of equal width; equal numbers stay together and a constant is one third."""
    age = np.random.default_rng(0).exponential(size=300)
    names, counts = np.unique(thirds(age), return_counts=True)
    assert counts.tolist() == [100, 100, 100]
    assert [name.split()[0] for name in names] == ["lower", "middle", "upper"]
    assert len(np.unique(thirds(np.ones(9)))) == 1


@pytest.mark.parametrize(
    ("scores", "truth", "options", "error", "message"),
    [
        (
            np.eye(3),
            [0, 1, 3],
            {},
            OptionError,
            "from 0 to 3, and `scores` has 3 columns. Pass who",
        ),
        ([0.1, 0.2], [0, 1, 1], {}, ShapeError, "`scores` has 2, `truth` has 3"),
        ([0.1, 0.2, 0.3], [0, 1, 1], {"person": [1, 2]}, ShapeError, "`person` has 2"),
        ([0.1, 0.2], [0, 1], {}, ShapeError, r"`strata\['site'\]` has 3"),
        ([0.1, 0.2, 0.3], [0, 1, 1], {"weights": [0, 0, 0]}, OptionError, "`weights` runs from 0"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(scores, truth, options, error, message):
    """Kills rows that are silently broadcast or cut."""
    with pytest.raises(error, match=message):
        honest_performance(scores, truth, {"site": ["A", "B", "B"]}, **options)


@pytest.mark.slow
@pytest.mark.parametrize("sites", [1, 10])
def test_intervals_cover_the_truth(sites):
    """95 % intervals of Φ(1 / √2) = .760 cover it in at least 90 % of 400 tables.

    The bound is four standard errors below .95. Kills a bootstrap whose samples are too much alike.
    """
    covered = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        truth = rng.integers(0, 2, 120)
        scores = truth + rng.normal(size=120)
        site = rng.integers(0, sites, 120)
        few = Resampling(bootstraps=200, seed=seed)
        estimate = honest_performance(scores, truth, {"site": site}, resampling=few)
        within = estimate.within_strata["site"]
        covered += within.low <= 0.7602 <= within.high
    assert covered >= 360
