import itertools

import numpy as np
import pytest
import torch

import deconfound as dc
from tests.conftest import least_squares_residual, make_cohort


def epochs(layer, cohort, batch, count):
    order = torch.Generator().manual_seed(1)
    for _ in range(count):
        for rows in torch.randperm(cohort.n, generator=order).split(batch):
            layer(cohort.features[rows], cohort.metadata[rows])


def relative_error(layer, cohort):
    expected = least_squares_residual(cohort)
    found = layer.eval()(cohort.features, cohort.metadata).numpy()
    return np.linalg.norm(found - expected) / np.linalg.norm(expected - expected.mean(0))


@pytest.mark.parametrize(
    ("batch", "mean"),
    # Single samples take the longest, and a mean far from zero is the harder half.
    [pytest.param(1, 0.0, marks=pytest.mark.slow), (1, 5.0), *itertools.product([2, 20, 200], [0.0, 5.0])],
)
def test_the_average_reaches_least_squares_on_fixed_features_at_every_batch_size(batch, mean):
    cohort = make_cohort(n=5000, mean=mean)
    layer = dc.PMDN(cohort.design, 5, step="average").double()
    assert relative_error(layer, cohort) > 0.5  # the control: nothing is removed yet
    layer.train()
    epochs(layer, cohort, batch, 5)
    assert relative_error(layer, cohort) <= 0.02


@pytest.mark.parametrize("step", ["average", None, 0.02])
def test_a_very_rare_site_stays_stable_at_batch_1(step):
    cohort = make_cohort(n=5000, rare=True)
    assert (cohort.table["site"] == "C").sum() <= 10
    layer = dc.PMDN(cohort.design, 5, step=step).double()
    largest = 0.0
    for row in range(cohort.n):
        layer(cohort.features[row : row + 1], cohort.metadata[row : row + 1])
        largest = max(largest, layer.beta.abs().max().item())
    assert largest < 20 * cohort.features.abs().max()
    assert relative_error(layer, cohort) < {"average": 0.05, None: 0.2, 0.02: 0.5}[step]


def test_without_the_cap_a_rare_site_would_explode():
    """The control of the test above: the same steps, uncapped, on the same rows."""
    cohort = make_cohort(n=5000, rare=True)
    white = cohort.metadata @ torch.from_numpy(cohort.design.whitening)
    regressors = torch.cat([white, torch.ones(cohort.n, 1, dtype=torch.float64)], dim=1)
    beta = torch.zeros(regressors.shape[1], 5, dtype=torch.float64)
    for row in range(cohort.n):
        step = max(1 / (row + 1), 0.02)
        error = cohort.features[row] - regressors[row] @ beta
        beta += step * torch.outer(regressors[row], error)
    assert beta.abs().max() > 1e3 * cohort.features.abs().max()


def test_weighted_fit_learns_from_chosen_rows_only_and_normalises_all():
    cohort = make_cohort(n=2000)
    controls = torch.from_numpy(cohort.table["dx"] == 0)
    layer = dc.PMDN(cohort.design, 5).double()
    spoiled = cohort.features.clone()
    spoiled[~controls] += 1e3 * cohort.metadata[~controls, :1]
    for _ in range(5):
        for rows in torch.arange(cohort.n).split(50):
            residual = layer(spoiled[rows], cohort.metadata[rows], fit_on=controls[rows])
    clean = dc.PMDN(cohort.design, 5).double()
    for _ in range(5):
        for rows in torch.arange(cohort.n).split(50):
            chosen = rows[controls[rows]]
            clean(cohort.features[chosen], cohort.metadata[chosen])
    assert residual.shape == (50, 5)
    for name, value in layer.coefficients().items():
        torch.testing.assert_close(value, clean.coefficients()[name])


def test_a_feature_that_is_not_finite_skips_its_step_and_is_counted(cohort):
    layer = dc.PMDN(cohort.design, 5).double()
    layer(cohort.features, cohort.metadata)
    before = layer.beta.clone()
    broken = cohort.features.clone()
    broken[3, 2] = torch.inf
    layer(broken, cohort.metadata)
    assert (layer.beta == before).all(0).tolist() == [False, False, True, False, False]
    assert layer.skipped == 1
    layer(cohort.features * 2, cohort.metadata)
    assert (layer.beta[:, 2] != before[:, 2]).all()
    assert layer.skipped == 1


def test_metadata_that_are_not_finite_teach_nothing(cohort):
    """As on a GPU or in compiled code, where nobody looks at them."""
    layer = dc.PMDN(cohort.design, 5).double()
    layer(cohort.features, cohort.metadata)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    broken = cohort.metadata.clone()
    broken[0, -1] = torch.nan
    layer.normalise(cohort.features, layer.whiten(broken))
    changed = {name for name, value in layer.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"skipped"}


def test_frozen_statistics_leave_every_buffer_alone(cohort):
    layer = dc.PMDN(cohort.design, 5).double()
    features = cohort.features.clone().requires_grad_()
    layer(features, cohort.metadata).square().mean().backward()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with dc.frozen_statistics(layer):
        layer(3 * features, cohort.metadata).square().mean().backward()
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name
    layer(3 * features, cohort.metadata)
    assert not torch.equal(layer.beta, before["beta"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gradient": "both"}, "gradient must be 'bilevel' or 'frozen'; got 'both'"),
        ({"step": 1.5}, r"step must be None, 'average' or a number in \(0, 1\]; got 1.5"),
        ({"step": "fast"}, "got 'fast'"),
        ({"step": "adaptive"}, r"got 'adaptive', the gain of release 0\.1\. Write memory=250"),
        ({"memory": 0}, "memory must be a positive number of samples; got 0"),
        ({"memory": "long"}, "got 'long'"),
    ],
)
def test_options_outside_their_range_are_refused(cohort, options, text):
    with pytest.raises(dc.errors.OptionError, match=text):
        dc.PMDN(cohort.design, 5, **options)
