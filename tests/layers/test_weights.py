"""One weight per row: what is fitted is fitted by weighted least squares, whatever the estimator."""

import math

import numpy as np
import pytest
import torch

import deconfound as dc
from deconfound.errors import ShapeError
from tests.conftest import make_cohort


@pytest.fixture
def weights(cohort):
    return torch.rand(cohort.n, generator=torch.Generator().manual_seed(0)).double() * 3 + 0.1


def by_hand(cohort, weights, rows=slice(None)):
    """Weighted least squares with an intercept in whitened units, by numpy."""
    white = cohort.metadata.numpy()[rows] @ cohort.design.whitening
    regressors = np.column_stack([white, np.ones(len(white))])
    root = np.sqrt(weights.numpy()[rows])[:, None]
    return np.linalg.lstsq(root * regressors, root * cohort.features.numpy()[rows], rcond=None)[0]


def distance(layer, expected):
    """Of the coefficients of the confounds, relative to their size."""
    q = layer.design.confound_directions
    return np.abs(layer._beta().detach().numpy() - expected)[:q].max() / np.abs(expected[:q]).max()


def test_mdn_on_a_full_batch_is_weighted_least_squares(cohort, weights):
    layer = dc.MDN(cohort.design, 5, gram="batch").double()
    layer(cohort.features, cohort.metadata, weight=weights)
    assert distance(layer, by_hand(cohort, weights)) < 1e-10
    assert distance(layer, by_hand(cohort, torch.ones_like(weights))) > 0.01  # the control


def test_mdn_with_the_running_gram_matrix_reaches_it(cohort, weights):
    layer = dc.MDN(cohort.design, 5, momentum=1.0).double()
    for _ in range(60):
        layer(cohort.features, cohort.metadata, weight=weights)
    assert distance(layer, by_hand(cohort, weights)) < 0.005


@pytest.mark.parametrize("size", [1, 33, 400])
def test_rmdn_without_forgetting_is_weighted_least_squares_for_any_split(cohort, weights, size):
    layer = dc.RMDN(cohort.design, 5, forgetting=1.0, ridge=1e-9).double()
    for rows in torch.arange(cohort.n).split(size):
        layer(cohort.features[rows], cohort.metadata[rows], weight=weights[rows])
    assert distance(layer, by_hand(cohort, weights)) < 1e-6


@pytest.mark.parametrize("layer", ["pmdn", "mdn", "rmdn", "pmdn-alternating"])
def test_every_refit_without_a_prior_is_weighted_least_squares(cohort, weights, layer):
    network = torch.nn.Sequential(torch.nn.Identity())
    model = dc.normalize(network, cohort.design, at="0", layer=layer, example=cohort.features[:2]).double()
    parts = [(cohort.features[r], cohort.metadata[r], weights[r]) for r in torch.arange(cohort.n).split(150)]
    model.refit(parts, prior=0)
    assert distance(model.layers["0"], by_hand(cohort, weights)) < 1e-8


def test_pmdn_on_full_batches_stands_still_at_weighted_least_squares(cohort, weights):
    layer = dc.PMDN(cohort.design, 5, step=0.5).double()
    expected = torch.from_numpy(by_hand(cohort, weights))
    layer.set_beta(expected)
    layer(cohort.features, cohort.metadata, weight=weights)
    torch.testing.assert_close(layer._beta(), expected, rtol=0, atol=1e-12)
    layer(cohort.features, cohort.metadata)  # without weights it moves: the control
    assert (layer._beta() - expected).abs().max() > 1e-3


@pytest.mark.parametrize("options", [{"step": "average"}, {"memory": math.inf}], ids=str)
def test_pmdn_that_never_forgets_reaches_weighted_least_squares_in_small_batches(options):
    cohort = make_cohort(n=3000)
    weights = torch.rand(cohort.n, generator=torch.Generator().manual_seed(0)).double() * 2
    layer = dc.PMDN(cohort.design, 5, **options).double()
    order = torch.Generator().manual_seed(1)
    for _ in range(6):
        for rows in torch.randperm(cohort.n, generator=order).split(30):
            layer(cohort.features[rows], cohort.metadata[rows], weight=weights[rows])
    assert distance(layer, by_hand(cohort, weights)) < 0.005
    assert distance(layer, by_hand(cohort, torch.ones_like(weights))) > 0.01  # the control


@pytest.mark.parametrize("kind", [dc.PMDN, dc.RMDN, dc.MDN])
def test_a_weight_of_two_is_the_row_twice(cohort, kind):
    twice = torch.arange(50).repeat_interleave(torch.tensor([1, 2] * 25))
    one, two = kind(cohort.design, 5).double(), kind(cohort.design, 5).double()
    one(cohort.features[:50], cohort.metadata[:50], weight=torch.tensor([1.0, 2.0] * 25))
    two(cohort.features[twice], cohort.metadata[twice])
    torch.testing.assert_close(one._beta(), two._beta(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(dc.PMDN, {}), (dc.PMDN, {"step": 0.1}), (dc.PMDN, {"gradient": "frozen"}), (dc.RMDN, {}), (dc.MDN, {}),
     (dc.MDN, {"gram": "batch"}), (dc.MDN, {"gram": "training"}), (dc.JointPMDN, {}), (dc.AlternatingPMDN, {}),
     (dc.Erase, {})],
)  # fmt: skip
def test_a_batch_whose_rows_all_have_weight_zero_teaches_nothing_and_has_a_gradient(kind, options):
    """Overlap weights are 0 where a site lacks a class, and a small batch may hold such rows alone."""
    cohort = make_cohort(24, features=9)
    layer = kind(cohort.design, 9, **options).double()
    layer(cohort.features, cohort.metadata)
    before = layer._beta().clone()
    x = cohort.features.clone().requires_grad_()
    out = layer(x, cohort.metadata, weight=torch.zeros(24))
    loss = out.square().mean() + (layer.penalty if hasattr(layer, "penalty") else 0)
    loss.backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()
    torch.testing.assert_close(layer._beta(), before, rtol=0, atol=0)
    assert layer(cohort.features, cohort.metadata).isfinite().all()


def test_fit_on_is_a_weight_of_zero_or_one_and_both_multiply(cohort, weights):
    mask = torch.arange(cohort.n) % 3 > 0
    for given in ({"fit_on": mask, "weight": weights}, {"weight": weights * mask}):
        layer = dc.PMDN(cohort.design, 5).double()
        layer(cohort.features, cohort.metadata, **given)
        if "fit_on" in given:
            first = layer._beta().clone()
    torch.testing.assert_close(first, layer._beta())


@pytest.mark.parametrize("controls", [True, False], ids=["fit_on", "weights"])
def test_the_implicit_gradient_of_weighted_rows_is_autograd_through_weighted_least_squares(controls):
    """Rows that take part are not white: without their Gram matrix the error is .2."""
    cohort = make_cohort(n=1000)
    dx = torch.from_numpy(cohort.table["dx"])
    weights = (dx == 0).double() if controls else 0.2 + 2.0 * (cohort.metadata[:, 0] > 0.5).double()
    loss = lambda residual: torch.nn.functional.binary_cross_entropy_with_logits(residual.sum(1), dx.double())  # noqa: E731

    x = cohort.features.clone().requires_grad_()
    white = cohort.metadata @ torch.from_numpy(cohort.design.whitening)
    regressors = torch.cat([white, torch.ones(cohort.n, 1).double()], 1)
    root = weights.sqrt()[:, None]
    beta = torch.linalg.pinv(root * regressors, rtol=1e-9) @ (root * x)
    q = cohort.design.confound_directions
    confounds = cohort.metadata[:, : cohort.confounds] @ torch.from_numpy(
        cohort.design.whitening[: cohort.confounds, :q]
    )
    loss(x - confounds @ beta[:q]).backward()

    def error(**given):
        layer = dc.PMDN(cohort.design, 5, step=1.0).double()
        for _ in range(3):
            layer.set_beta(beta)
            features = cohort.features.clone().requires_grad_()
            loss(layer(features, cohort.metadata, **given)).backward()
        return (features.grad - x.grad).norm() / x.grad.norm()

    assert error(weight=weights) < 0.005
    assert error() > 0.05  # the control: as if the rows that take part were white


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        ([1.0, 2.0], r"weight must be one number per sample, shape \(400,\); got torch.float64 of shape \(2,\)"),
        (torch.full((400,), -1.0), "weight must be finite and not negative; got -1.0"),
        (torch.full((400,), torch.nan), "weight must be finite and not negative; got nan"),
    ],
)
def test_weights_that_are_none_are_refused(cohort, weight, text):
    layer = dc.PMDN(cohort.design, 5).double()
    with pytest.raises(ShapeError, match=text):
        layer(cohort.features, cohort.metadata, weight=weight)
    assert layer.samples == 0
