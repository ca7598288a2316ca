"""Dependence given a numeric label: level and power by simulation over laws that break simpler tests."""

import numpy as np
import pytest
import torch

from deconfound import metrics
from deconfound.metrics.conditional import confound_beyond, outputs_beyond
from deconfound.metrics.smoothing import normal_scores, smooth_residuals

FEW = metrics.Resampling(permutations=39, bootstraps=40)
N = 90


def one_hot(codes):
    return np.eye(3)[codes]


def drawn(rng, shares):
    """One of three sites for each row, by its shares."""
    shares = shares / shares.sum(1, keepdims=True)
    return (rng.random(len(shares))[:, None] > shares.cumsum(1)[:, :-1]).sum(1)


def log_normal(rng, direct):
    """A confound with a long tail makes the label; the model knows the label."""
    age = np.exp(rng.normal(size=N))
    label = age + rng.normal(size=N)
    return label + rng.normal(size=N) + direct * age, age, label


def log_normal_curved(rng, direct):
    age = np.exp(1.5 * rng.normal(size=N))
    label = np.log(age) + rng.normal(size=N)
    return np.exp(0.5 * label) + 0.3 * rng.standard_t(3, N) + direct * np.log(age), age, label


def heavy_noise(rng, direct):
    age = rng.standard_t(2, N)
    label = age + rng.standard_t(2, N)
    return label + rng.standard_t(2, N) + direct * age, age, label


def unequal_variances(rng, direct):
    label = rng.normal(size=N)
    age = label + np.exp(label / 1.5) * rng.normal(size=N)
    return label + np.exp(label / 1.5) * rng.normal(size=N) + direct * age, age, label


def sine(rng, direct):
    label = rng.normal(size=N)
    age = np.sin(2 * label) + 0.5 * rng.normal(size=N)
    return np.sin(2 * label) + 0.5 * rng.normal(size=N) + direct * age, age, label


def sites(rng, direct):
    label = 60 + 10 * rng.normal(size=N)
    lean = np.exp((label[:, None] - 60) / 10 * [1.5, 0, -1.5])
    site = drawn(rng, lean)
    return label + 5 * rng.normal(size=N) + 12 * direct * (site == 0), one_hot(site), label


DESIGNS = [log_normal, log_normal_curved, heavy_noise, unequal_variances, sine, sites]


def found_in(outputs, confound, label):
    y = torch.from_numpy(np.asarray(confound, dtype=float).reshape(N, -1))
    given = [metrics.column("label", label)]
    return metrics.residual_dcor_test(torch.from_numpy(outputs)[:, None], y, given, None, FEW)


def rate(design, direct, trials, seed=0):
    rng = np.random.default_rng(seed)
    return np.mean([found_in(*design(rng, direct)).p <= 0.05 for _ in range(trials)])


@pytest.mark.parametrize("design", DESIGNS)
def test_a_model_that_knows_only_the_label_is_accused_at_the_nominal_rate_and_a_confounded_one_is_found(design):
    assert rate(design, 0.0, trials=60) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 60)
    assert rate(design, 1.0, trials=20) >= 0.7


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_false_positives_stay_below_seven_and_a_half_per_cent_in_two_thousand_simulations(design):
    assert rate(design, 0.0, trials=2000, seed=1) <= 0.075


def test_thirds_of_the_label_would_accuse_a_model_that_knows_only_the_label():
    rng = np.random.default_rng(0)
    rejected = 0
    for _ in range(20):
        _, confound, label = sites(rng, 0.0)
        thirds = torch.from_numpy(np.digitize(label, np.quantile(label, [1 / 3, 2 / 3])))
        x, y = torch.from_numpy(label)[:, None], torch.from_numpy(confound)
        rejected += metrics.dcor_test(x, y, thirds, None, FEW).p <= 0.05
    assert rejected >= 7


def test_outputs_that_are_the_label_leave_nothing():
    rng = np.random.default_rng(0)
    _, confound, label = sites(rng, 0.0)
    for outputs in (label, np.exp(label / 20)):
        found = found_in(outputs, confound, label)
        assert (abs(found.value) < 1e-6, found.p) == (True, 1.0)
    assert found_in(label + 6 * confound[:, 0], confound, label).p == 1 / 40


def test_the_number_is_that_of_the_estimator():
    rng = np.random.default_rng(0)
    outputs, age, label = log_normal(rng, 0.5)
    found = found_in(outputs, age, label)
    assert found.value == pytest.approx(float(metrics.residual_dcor_sqr(outputs, age, label)), abs=1e-9)
    x, y, given = (torch.from_numpy(part)[:, None] for part in (outputs, age, label))
    left = outputs_beyond(x, given)[0], confound_beyond(y, given)[0]
    assert found.value == pytest.approx(float(metrics.u_distance_correlation_sqr(*left)), abs=1e-9)


def test_a_curve_is_followed_and_noise_is_not():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(np.sort(rng.normal(size=300)))[:, None]
    noise = torch.from_numpy(rng.normal(size=(300, 2)))
    signal = torch.cat([3 * x.sin(), torch.zeros_like(x)], dim=1)
    left, cost = smooth_residuals(signal + noise, x)
    torch.testing.assert_close(left, noise - noise.mean(0), atol=1.0, rtol=0)
    assert float((left - noise).square().mean()) < 0.1
    assert 1 < cost < 40


def test_normal_scores_are_the_quantiles_of_the_mid_ranks():
    stats = pytest.importorskip("scipy.stats", reason="scipy, the oracle of this test, is not installed")
    values = np.array([3.0, 1.0, 3.0, 8.0, 2.0])
    expected = stats.norm.ppf((stats.rankdata(values) - 0.5) / 5)
    np.testing.assert_allclose(normal_scores(torch.from_numpy(values)[:, None])[:, 0], expected, atol=1e-12)


def test_a_categorical_label_beside_a_numeric_one_is_conditioned_on_too():
    rng = np.random.default_rng(0)
    sex, age = rng.integers(0, 2, N), rng.normal(size=N)
    site = (rng.random(N) < 0.2 + 0.6 * sex).astype(int)
    outputs = torch.from_numpy(3 * sex + age)[:, None]
    given = [metrics.column("sex", sex), metrics.column("age", age)]
    y = torch.from_numpy(site.astype(float))[:, None]
    assert metrics.residual_dcor_test(outputs, y, given, None, FEW).p > 0.05
    assert metrics.residual_dcor_test(outputs, y, given[1:], None, FEW).p <= 0.05
