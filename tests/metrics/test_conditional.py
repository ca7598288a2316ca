"""Dependence with the label taken into account."""

import numpy as np
import pytest
import torch

from deconfound import metrics
from deconfound.errors import ShapeError


def cohort(n=300, seed=0):
    """Features and a confound that both follow the label: dependent, but not within a group."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, n)
    confound = label + 0.5 * rng.normal(size=n)
    features = 2 * label[:, None] + rng.normal(size=(n, 3))
    return features, confound, label


def test_within_group_dcor_is_the_plain_mean_over_groups():
    features, confound, label = cohort()
    each = [metrics.u_distance_correlation_sqr(features[label == g], confound[label == g]) for g in (0, 1)]
    found = metrics.within_group_dcor_sqr(features, confound, label)
    torch.testing.assert_close(found, torch.stack(each).mean())


def test_a_path_through_the_label_alone_shows_marginally_and_vanishes_within_groups():
    features, confound, label = cohort(n=1000)
    assert float(metrics.u_distance_correlation_sqr(features, confound)) > 0.1
    assert abs(float(metrics.within_group_dcor_sqr(features, confound, label))) < 0.01
    partial = metrics.partial_distance_correlation(features, confound, label)
    assert abs(float(partial)) < 0.05


def test_partial_distance_correlation_agrees_with_the_dcor_package():
    dcor = pytest.importorskip("dcor", reason="the dcor package, the oracle of this test, is not installed")
    features, confound, label = cohort(n=150)
    confound = confound + features[:, 0]
    expected = dcor.partial_distance_correlation(features, confound[:, None], label[:, None].astype(float))
    found = float(metrics.partial_distance_correlation(features, confound, label))
    assert found == pytest.approx(expected, abs=1e-8)


def test_partial_distance_correlation_is_zero_where_the_condition_leaves_nothing():
    features, confound, _ = cohort(n=50)
    assert float(metrics.partial_distance_correlation(features, confound, confound)) == 0


def test_a_group_that_is_too_small_is_named():
    with pytest.raises(ShapeError, match="at least 4 rows; got 2 in group 7"):
        metrics.within_group_dcor_sqr(torch.zeros(10), torch.zeros(10), torch.tensor([0] * 8 + [7] * 2))
