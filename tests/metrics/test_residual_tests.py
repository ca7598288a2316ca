"""Dependence given a numeric label: what curves take out, and what is left."""

import numpy as np
import pytest
import torch

from deconfound import metrics
from deconfound.metrics.conditional import confound_beyond, outputs_beyond
from deconfound.metrics.residual_tests import NEIGHBOURS, residuals
from deconfound.metrics.smoothing import _left_out_errors, normal_scores, smooth_residuals
from tests.metrics.test_levels import FEW, N, found_in, log_normal, sites


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


def test_remainders_are_exchanged_among_neighbours_in_the_label_alone():
    rng = np.random.default_rng(0)
    outputs, age, label = (torch.from_numpy(part)[:, None] for part in log_normal(rng, 0.0))
    left = residuals(outputs, age, [metrics.column("label", label[:, 0])], None)
    order = label[left.rows, 0].argsort()
    assert (left.strata[order].diff() >= 0).all()  # a neighbourhood is a stretch of the label
    sizes = torch.bincount(left.strata)
    assert NEIGHBOURS <= int(sizes.min()) <= int(sizes.max()) < 2 * NEIGHBOURS


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


def test_rows_of_a_person_are_not_joined_by_a_curve_from_person_to_person():
    rng = np.random.default_rng(0)
    person = torch.arange(100).repeat_interleave(3)
    label = torch.from_numpy(rng.normal(size=100))[person, None]
    score = torch.from_numpy(rng.normal(size=100))[person, None] + 0.1 * torch.from_numpy(rng.normal(size=(300, 1)))
    assert smooth_residuals(score, label)[1] > 60
    assert smooth_residuals(score, label, person)[1] < 10


@pytest.mark.parametrize("columns", [2, 9])
def test_the_penalty_is_judged_on_people_to_whom_the_curve_was_not_fitted(columns):
    """Every person is left out in turn and a ridge regression with an intercept fitted to the others, one by one."""
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(8), [1, 5, 3, 3, 1, 6, 2, 5])  # more rows than columns, and fewer
    basis, y = rng.normal(size=(26, columns)), rng.normal(size=(26, 2))
    basis, y = basis - basis.mean(0), y - y.mean(0)
    u, s, _ = np.linalg.svd(basis, full_matrices=False)
    penalties = np.array([0.1, 3.0])
    shrink = s**2 / (s**2 + penalties[:, None])
    expected = np.zeros((2, 2))
    for place, penalty in enumerate(penalties):
        for one in range(8):
            own = person == one
            design = np.column_stack([np.ones(26), basis])
            gram = design[~own].T @ design[~own] + penalty * np.diag([0.0] + [1.0] * columns)
            fitted = design[own] @ np.linalg.solve(gram, design[~own].T @ y[~own])
            expected[place] += ((y[own] - fitted) ** 2).sum(0)
    found = _left_out_errors(*(torch.from_numpy(part) for part in (y, u, shrink, person)))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_people_with_one_row_each_have_the_numbers_that_rows_have():
    rng = np.random.default_rng(0)
    outputs, age, label = log_normal(rng, 0.5)
    person = torch.from_numpy(rng.permutation(N))
    x, y = (torch.from_numpy(part)[:, None] for part in (outputs, age))
    given = [metrics.column("label", label)]
    rows, people = (residuals(x, y, given, units) for units in (None, person))
    assert (torch.equal(rows.x, people.x), torch.equal(rows.y, people.y), rows.wider) == (True, True, people.wider)
    found = metrics.residual_dcor_test(x, y, given, torch.arange(N), FEW)
    assert found == metrics.residual_dcor_test(x, y, given, None, FEW)
    # The published figures rest on these numbers.
    assert (found.value, found.independent) == pytest.approx((0.16407116101058047, 0.03233944827842793), rel=1e-9)


def test_the_null_is_widened_by_people_and_not_by_rows():
    rng = np.random.default_rng(0)
    person = torch.arange(40).repeat_interleave(4)
    label, age, score = (torch.from_numpy(rng.normal(size=40))[person] for _ in range(3))
    given = [metrics.column("label", label)]
    left = residuals(score[:, None], age[:, None], given, person)
    costs = [
        function(side[:, None], label[:, None], person)[1]
        for function, side in ((outputs_beyond, score), (confound_beyond, age))
    ]
    assert left.wider == pytest.approx(40 / (40 - min(costs)))
    alone = residuals(score[:, None], age[:, None], given, torch.zeros_like(person))
    assert alone.wider == 1.0  # one person: no curve costs more than there are people


def test_outputs_that_are_the_label_leave_nothing_of_people_with_several_rows():
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(50), 3)
    label, site = rng.normal(size=50)[person], rng.integers(0, 2, 50)[person]
    x, y = torch.from_numpy(np.exp(label))[:, None], torch.from_numpy(site)[:, None].double()
    found = metrics.residual_dcor_test(x, y, [metrics.column("label", label)], torch.from_numpy(person), FEW)
    assert (abs(found.value) < 1e-6, found.p) == (True, 1.0)


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
