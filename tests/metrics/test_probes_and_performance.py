"""Probes and performance against scikit-learn, with positive and negative controls."""

import numpy as np
import pytest
import torch

from deconfound import metrics
from deconfound.errors import OptionError, ShapeError
from deconfound.metrics.linear_models import ridge
from deconfound.metrics.probes import _held_out, _scores, _weighted_scores
from deconfound.metrics.resampling import Resampling, person_folds

linear_model = pytest.importorskip(
    "sklearn.linear_model", reason="scikit-learn, the oracle of these tests, is not installed"
)
sklearn_metrics = pytest.importorskip("sklearn.metrics")
FEW = Resampling(permutations=19, bootstraps=100)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_ridge_agrees_with_scikit_learn_at_the_penalty_that_gcv_chooses(rng):
    x = rng.normal(size=(60, 8)) * np.arange(1, 9)
    targets = np.stack([x[:, 0] + rng.normal(size=60), 5 * rng.normal(size=60)], axis=1)
    at = rng.normal(size=(5, 8))
    found = ridge(*(torch.from_numpy(part) for part in (x, targets, at))).numpy()
    centred = x - x.mean(0)
    penalties = np.logspace(-2, 4, 13) * np.mean(np.linalg.svd(centred)[1] ** 2)
    for target in range(2):
        y = targets[:, target] - targets[:, target].mean()

        def gcv(penalty, y=y):
            hat = centred @ np.linalg.inv(centred.T @ centred + penalty * np.eye(8)) @ centred.T
            return np.sum((y - hat @ y) ** 2) / (59 - np.trace(hat)) ** 2

        best = min(penalties, key=gcv)
        expected = linear_model.Ridge(alpha=best).fit(x, targets[:, target]).predict(at)
        np.testing.assert_allclose(found[:, target], expected, rtol=1e-8)


def test_auc_agrees_with_scikit_learn_also_with_ties_and_in_batches(rng):
    scores, positive = rng.normal(size=(3, 200)).round(1), rng.integers(0, 2, (3, 200))
    expected = [sklearn_metrics.roc_auc_score(p, s) for p, s in zip(positive, scores, strict=True)]
    np.testing.assert_allclose(metrics.auc(scores, positive), expected, atol=1e-12)
    codes, many = rng.integers(0, 4, 200), rng.dirichlet(np.ones(4), 200)
    expected = sklearn_metrics.roc_auc_score(codes, many, multi_class="ovr", average="macro")
    assert float(metrics.macro_auc(many, codes)) == pytest.approx(expected, abs=1e-12)
    assert metrics.auc(np.zeros(3), np.zeros(3)).isnan()


def test_accuracies_agree_with_scikit_learn_and_with_the_papers_rule(rng):
    true, predicted = rng.integers(0, 3, 100), rng.integers(0, 3, 100)
    assert float(metrics.accuracy(predicted, true)) == sklearn_metrics.accuracy_score(true, predicted)
    expected = sklearn_metrics.balanced_accuracy_score(true, predicted)
    assert float(metrics.balanced_accuracy(predicted, true)) == pytest.approx(expected)
    expected = sklearn_metrics.r2_score(true, predicted)
    assert float(metrics.r_squared(predicted, true)) == pytest.approx(expected)
    # two labels: right when both are, averaged over the four groups
    true, predicted = rng.integers(0, 2, (100, 2)), rng.integers(0, 2, (100, 2))
    groups = true[:, 0] * 2 + true[:, 1]
    each = [np.mean([(predicted[i] == true[i]).all() for i in np.flatnonzero(groups == g)]) for g in range(4)]
    assert float(metrics.group_accuracy(predicted, true, groups)) == pytest.approx(np.mean(each))
    with pytest.raises(ShapeError, match=r"one shape; got \(3,\) and \(4,\)"):
        metrics.accuracy(np.zeros(3), np.zeros(4))


def test_a_linear_probe_finds_a_planted_age_and_nothing_in_noise(rng):
    age = metrics.column("age", 60 + 10 * rng.normal(size=300))
    noise = torch.from_numpy(rng.normal(size=(300, 5)))
    planted = noise + 0.2 * age.values[:, None]
    found = metrics.probe(planted, age, resampling=FEW)
    assert found.statistic == "linear_probe_r2"
    assert found.value > 0.9
    assert found.low <= found.value <= found.high
    assert found.p == 1 / 20
    independent = metrics.probe(noise, age, resampling=FEW)
    assert independent.value < 0.05
    assert independent.low < 0.05


def test_only_the_nonlinear_probe_finds_a_confound_that_sets_the_spread(rng):
    sex = rng.integers(0, 2, 600)
    x = torch.from_numpy(rng.normal(size=(600, 2)) * np.where(sex, 3.0, 1.0)[:, None])
    column = metrics.column("sex", np.array(["F", "M"])[sex])
    assert metrics.probe(x, column, "linear", resampling=FEW).value < 0.6
    found = metrics.probe(x, column, "nonlinear", resampling=FEW)
    assert found.value > 0.75
    assert found.statistic == "nonlinear_probe_auc"


def test_the_auc_of_independent_data_has_chance_level_one_half_also_for_many_small_sites(rng):
    site = metrics.column("site", np.array([f"s{k}" for k in range(12)])[rng.integers(0, 12, 300)])
    found = metrics.probe(torch.from_numpy(rng.normal(size=(300, 1))), site, resampling=FEW)
    assert found.chance == pytest.approx(0.5, abs=0.02)


def test_a_baseline_permuted_within_groups_holds_what_the_label_tells(rng):
    label = rng.integers(0, 2, 400)
    sex = metrics.column("sex", np.where(rng.uniform(size=400) < 0.2, 1 - label, label))
    outputs = torch.from_numpy(label[:, None] + 0.3 * rng.normal(size=(400, 1)))
    plain = metrics.probe(outputs, sex, resampling=FEW)
    within = metrics.probe(outputs, sex, groups=torch.from_numpy(label), resampling=FEW)
    assert plain.p == 1 / 20
    assert plain.chance == pytest.approx(0.5, abs=0.05)
    assert within.chance == pytest.approx(within.value, abs=0.05)


def test_a_persons_rows_never_help_to_predict_their_own():
    # Each person has a random age and a fingerprint that all their rows share: with rows split at random, a
    # probe would read the age off the fingerprint.
    rng = torch.Generator().manual_seed(0)
    person = torch.arange(60).repeat_interleave(5)
    fingerprint = torch.randn(60, 40, generator=rng)[person]
    age = metrics.column("age", torch.randn(60, generator=rng)[person].numpy())
    grouped = metrics.probe(fingerprint, age, units=person, resampling=FEW)
    split_at_random = metrics.probe(fingerprint, age, resampling=FEW)
    assert split_at_random.value > 0.5
    assert grouped.value < 0.2


def test_held_out_rows_do_not_reach_the_model_that_predicts_them():
    rng = torch.Generator().manual_seed(0)
    x, age = torch.randn(50, 3, generator=rng), torch.randn(1, 50, generator=rng).double()
    fold = person_folds(torch.arange(50), 5, rng)
    column = metrics.column("age", age[0].numpy())
    before = _held_out(x, age, fold, column)
    changed = age.clone()
    changed[0, fold == 2] += 100
    after = _held_out(x, changed, fold, column)
    assert torch.equal(before[:, fold == 2], after[:, fold == 2])
    assert not torch.allclose(before[:, fold != 2], after[:, fold != 2])


def test_a_probe_of_levels_is_as_sharp_as_logistic_regression(rng):
    site = rng.integers(0, 6, 400)
    x = rng.normal(size=(400, 8)) + 0.5 * rng.normal(size=(6, 8))[site]
    fold = person_folds(torch.arange(400), 5, torch.Generator().manual_seed(0))
    column = metrics.column("site", site.astype(str))
    found = _held_out(torch.from_numpy(x), column.values[None], fold, column)[0].numpy()
    ours, theirs = [], []
    for held in range(5):
        test = (fold == held).numpy()
        logistic = linear_model.LogisticRegression(C=1.0, max_iter=500).fit(x[~test], site[~test])
        for scores, into in ((found[test], ours), (logistic.decision_function(x[test]), theirs)):
            into.append(float(metrics.macro_auc(scores, site[test])))
    assert np.mean(ours) > 0.7
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=0.01)


@pytest.mark.parametrize("kind", ["numeric", "categorical"])
def test_a_bootstrap_replicate_is_the_score_of_the_rows_drawn(rng, kind):
    values = rng.normal(size=90) if kind == "numeric" else rng.choice(["a", "b", "c"], 90)
    column = metrics.column("c", values)
    x = torch.from_numpy(rng.normal(size=(90, 3))) + column.values[:, None]
    fold = person_folds(torch.arange(90), 3, torch.Generator().manual_seed(0))
    weights = torch.from_numpy(rng.multinomial(90, np.ones(90) / 90, size=5))
    predicted = _held_out(x, column.values[None], fold, column)
    found = _weighted_scores(predicted[0], column.values, fold, column, weights.double())
    for replicate, weight in zip(found, weights, strict=True):
        pick = torch.arange(90).repeat_interleave(weight)
        expected = _scores(predicted[:, pick], column.values[None, pick], fold[pick], column)[0]
        assert float(replicate) == pytest.approx(float(expected), abs=1e-9)


def test_an_unknown_kind_of_probe_is_refused():
    with pytest.raises(OptionError, match="'linear' or 'nonlinear'; got 'deep'"):
        metrics.probe(torch.zeros(5, 1), metrics.column("age", [1.0, 2, 3, 4, 5]), "deep")


# What cannot be measured is an error, never a number


@pytest.mark.parametrize("name", ["auc", "accuracy", "balanced_accuracy", "brier_score", "calibration", "r_squared"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_performance_of_numbers_that_are_not_finite_is_refused(name, bad):
    with pytest.raises(ShapeError, match="must be finite; got NaN or infinity in row 1"):
        getattr(metrics, name)(torch.tensor([0.1, bad, 0.3, 0.4]), torch.tensor([0.0, 1.0, 0.0, 1.0]))


def test_labels_of_an_auc_are_zero_or_one_and_nothing_is_broadcast():
    with pytest.raises(ShapeError, match=r"positive must be 0 or 1 in every row; got \[1.0, 2.0\]"):
        metrics.auc([0.1, 0.4, 0.3], [1, 2, 1])
    with pytest.raises(ShapeError, match=r"must have one shape; got \(3,\) and \(3, 1\)"):
        metrics.auc(np.zeros(3), np.zeros((3, 1)))
    with pytest.raises(ShapeError, match="must have one shape"):
        metrics.r_squared(np.zeros((4, 1)), np.arange(4.0))
    with pytest.raises(ShapeError, match="codes must be whole numbers from 0 to 2"):
        metrics.macro_auc(np.eye(3), [0, 1, 3])
    with pytest.raises(ShapeError, match="probabilities must lie between 0 and 1; got -1 to 2"):
        metrics.brier_score([-1.0, 2.0], [0, 1])
    with pytest.raises(ShapeError, match="groups must hold one value per row"):
        metrics.group_accuracy([0, 1], [0, 1], [0, 1, 1])


def test_r_squared_keeps_its_digits_beside_a_large_mean(rng):
    true = rng.normal(size=200)
    predicted = true + 0.5 * rng.normal(size=200)
    far = metrics.r_squared(predicted + 2.0**40, true + 2.0**40)
    assert float(far) == pytest.approx(float(metrics.r_squared(predicted, true)), abs=1e-3)
    assert float(metrics.r_squared(true + 1e8, true + 1e8)) == 1


def test_arrays_of_any_byte_order_stride_and_width_are_read(rng):
    scores, positive = rng.normal(size=50), rng.integers(0, 2, 50)
    plain = float(metrics.auc(scores, positive))
    assert float(metrics.auc(scores.astype(">f8"), positive.astype(bool))) == plain
    assert float(metrics.auc(scores[::-1], positive[::-1])) == plain
    half = torch.from_numpy(scores).bfloat16()
    assert float(metrics.auc(half, positive)) == pytest.approx(plain, abs=0.02)


# The AUC taken apart, and calibration


def test_the_auc_is_exactly_its_part_within_strata_and_its_part_between(rng):
    site = rng.integers(0, 5, 300)
    positive = rng.random(300) < np.array([0.1, 0.3, 0.5, 0.7, 1.0])[site]
    scores = (positive + site + rng.normal(size=300)).round(1)
    split = metrics.auc_split(scores, positive, site)
    up, down = np.flatnonzero(positive), np.flatnonzero(~positive)
    wins = (scores[up][:, None] > scores[down]) + 0.5 * (scores[up][:, None] == scores[down])
    same = site[up][:, None] == site[down]
    assert split.share_within == pytest.approx(same.mean())
    assert split.within == pytest.approx(wins[same].mean())
    assert split.between == pytest.approx(wins[~same].mean())
    assert split.auc == pytest.approx(split.share_within * split.within + (1 - split.share_within) * split.between)
    assert np.isnan(split.strata[4][0])
    assert split.strata[4][1] == 0


def test_calibration_and_brier_score_agree_with_their_definitions_and_with_scikit_learn(rng):
    p = rng.random(400)
    truth = rng.random(400) < p**2  # too sure throughout
    assert float(metrics.brier_score(p, truth)) == pytest.approx(sklearn_metrics.brier_score_loss(truth, p))
    found = metrics.calibration(p, truth, bins=8)
    order = np.argsort(p).reshape(8, 50)
    np.testing.assert_allclose(found.predicted, p[order].mean(1))
    np.testing.assert_allclose(found.observed, truth[order].mean(1))
    assert found.error == pytest.approx(np.mean(np.abs(p[order].mean(1) - truth[order].mean(1))))
    assert metrics.calibration(np.full(20, 0.5), np.arange(20) % 2).counts == (20,)
