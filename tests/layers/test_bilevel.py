"""The network's gradient through β, against autograd through the closed form."""

import pytest
import torch
from torch import nn

import deconfound as dc
from tests.conftest import make_cohort
from tests.layers.runaway import feature_norms


def through_closed_form(cohort, features, loss):
    """∂ loss(residual) / ∂ features by autograd through exact least squares on the whole table."""
    features = features.detach().clone().requires_grad_()
    ones = torch.ones(len(features), 1, dtype=torch.float64)
    regressors = torch.cat([ones, cohort.metadata], dim=1)
    coefficients = torch.linalg.pinv(regressors) @ features
    confounds = slice(1, 1 + cohort.confounds)
    loss(features - cohort.metadata[:, : cohort.confounds] @ coefficients[confounds]).backward()
    return features.grad


def task(cohort, rows=slice(None)):
    """A loss that is tied to the confounds, so that the way through β matters."""
    label = torch.from_numpy(cohort.table["dx"]).double()[rows]
    return lambda residual: nn.functional.binary_cross_entropy_with_logits(residual.sum(1), label)


def layer_gradient(layer, cohort, features, loss, rows=slice(None)):
    part = features[rows].detach().clone().requires_grad_()
    loss(layer(part, cohort.metadata[rows])).backward()
    return part.grad


def test_full_batch_gradient_is_autograd_through_the_closed_form(cohort):
    expected = through_closed_form(cohort, cohort.features, task(cohort))
    bilevel = dc.PMDN(cohort.design, 5, step=1.0).double()
    frozen = dc.PMDN(cohort.design, 5, step=1.0, gradient="frozen").double()
    assert (layer_gradient(bilevel, cohort, cohort.features, task(cohort)) - expected).abs().max() < 1e-8
    control = layer_gradient(frozen, cohort, cohort.features, task(cohort)) - expected
    assert control.abs().max() > 0.1 * expected.abs().max()


def test_minibatch_average_converges_to_the_full_gradient():
    cohort = make_cohort(n=1000)
    expected = through_closed_form(cohort, cohort.features, task(cohort))
    layer = dc.PMDN(cohort.design, 5, step="average").double()
    order = torch.Generator().manual_seed(2)
    distances = []
    for epoch in range(40):
        total = torch.zeros_like(expected)
        for rows in torch.randperm(cohort.n, generator=order).split(50):
            total[rows] = layer_gradient(layer, cohort, cohort.features, task(cohort, rows), rows) * 50 / cohort.n
        if epoch in (0, 39):
            distances.append(((total - expected).norm() / expected.norm()).item())
    assert distances[0] > 0.05
    assert distances[1] < 0.01


def test_a_loss_times_1000_gives_gradients_times_1000_at_once(cohort):
    plain = dc.PMDN(cohort.design, 5).double()
    scaled = dc.PMDN(cohort.design, 5).double()
    for step in range(40):
        rows = torch.arange(step * 100, step * 100 + 100) % cohort.n
        factor = 1000.0 if step >= 20 else 1.0
        one = layer_gradient(plain, cohort, cohort.features, task(cohort, rows), rows)
        other = layer_gradient(
            scaled, cohort, cohort.features, lambda r, rows=rows, k=factor: k * task(cohort, rows)(r), rows
        )
        error = (other / factor - one).norm() / one.norm()
        # At the change itself the new scale is known only up to the batch's own noise.
        assert error < (1e-12 if step < 20 else 0.02)


def test_a_short_last_batch_does_not_spoil_the_average():
    cohort = make_cohort(n=1003)
    expected = through_closed_form(cohort, cohort.features, task(cohort))
    layer = dc.PMDN(cohort.design, 5, step="average").double()
    for epoch in range(30):
        order = torch.Generator().manual_seed(epoch)
        total = torch.zeros_like(expected)
        for rows in torch.randperm(cohort.n, generator=order).split(50):
            share = len(rows) / cohort.n
            total[rows] = layer_gradient(layer, cohort, cohort.features, task(cohort, rows), rows) * share
    assert len(rows) == 3
    assert (total - expected).norm() / expected.norm() < 0.015


def test_a_growing_and_overflowing_grad_scaler_does_not_spoil_the_average(cohort):
    """Scales that double, overflow once and halve: gradients divided by the scale stay those of no scaler."""
    plain = dc.PMDN(cohort.design, 5).double()
    scaled = dc.PMDN(cohort.design, 5).double()
    scales = [2.0**10] * 10 + [2.0**11] * 10 + [torch.inf] + [2.0**10] * 10
    for step, scale in enumerate(scales):
        rows = torch.arange(step * 100, step * 100 + 100) % cohort.n
        one = layer_gradient(plain, cohort, cohort.features, task(cohort, rows), rows)
        other = layer_gradient(
            scaled, cohort, cohort.features, lambda r, rows=rows, k=scale: k * task(cohort, rows)(r), rows
        )
        if scale != torch.inf:
            assert (other / scale - one).norm() / one.norm() < 0.05
    assert torch.isfinite(scaled.gradient_mean).all()


def test_features_run_away_with_frozen_beta():
    norms = feature_norms("frozen", noise=0.3, steps=8000)
    assert norms[-1] > 5 * norms[100]


def test_features_do_not_run_away_with_the_bilevel_gradient():
    norms = feature_norms("bilevel", noise=0.3, steps=8000)
    assert max(norms[100:]) < 2 * norms[100]


@pytest.mark.parametrize("shape", [(3, 4), (6,)])
def test_shared_positions_have_the_gradient_of_the_closed_form(cohort, shape):
    share = "positions" if len(shape) == 2 else None
    layer = dc.PMDN(cohort.design, shape, step=1.0, share=share).double()
    x = torch.randn(cohort.n, *shape, dtype=torch.float64)
    loss = lambda r: (r.sigmoid() * cohort.metadata[:, :1].reshape(-1, *[1] * len(shape))).square().mean()  # noqa: E731

    def closed(x):
        ones = torch.ones(cohort.n, 1, dtype=torch.float64)
        pooled = x.mean(2) if share else x
        beta = (torch.linalg.pinv(torch.cat([ones, cohort.metadata], 1)) @ pooled)[1 : 1 + cohort.confounds]
        effect = cohort.metadata[:, : cohort.confounds] @ beta
        return x - (effect.unsqueeze(-1) if share else effect)

    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss(layer(a, cohort.metadata)).backward()
    loss(closed(b)).backward()
    torch.testing.assert_close(a.grad, b.grad, atol=1e-10, rtol=0)


def test_backward_under_half_precision_autocast_keeps_the_average_finite(cohort):
    """A loss scale that overflows half-precision products, with backward inside the autocast block."""
    layer = dc.PMDN(cohort.design, 5)
    features = cohort.features.float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        for _ in range(3):
            (2.0**20 * layer(features, cohort.metadata).square().mean()).backward()
    assert layer.gradient_mean.abs().max() > 0
    assert torch.isfinite(layer.gradient_mean).all()
    assert torch.isfinite(features.grad).all()
