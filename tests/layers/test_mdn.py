import numpy as np
import pytest
import torch

import deconfound as dc
from tests.conftest import least_squares_residual, make_cohort


@pytest.mark.parametrize("gram", ["batch", "training"])
def test_mdn_on_a_full_batch_is_the_least_squares_residual(cohort, gram):
    layer = dc.MDN(cohort.design, 5, gram=gram).double()
    residual = layer(cohort.features, cohort.metadata)
    assert np.abs(residual.numpy() - least_squares_residual(cohort)).max() < 1e-10


def test_refitting_the_residual_finds_no_confound_and_the_features_do(cohort):
    residual = dc.MDN(cohort.design, 5, gram="batch").double()(cohort.features, cohort.metadata).numpy()
    regressors = np.column_stack([np.ones(cohort.n), cohort.metadata.numpy()])
    rows = slice(1, 1 + cohort.confounds)
    assert np.abs(np.linalg.lstsq(regressors, residual, rcond=None)[0][rows]).max() < 1e-10
    assert np.abs(np.linalg.lstsq(regressors, cohort.features.numpy(), rcond=None)[0][rows]).max() > 0.3


def test_beta_recovers_the_planted_confound_effect_with_keep_and_not_without():
    cohort = make_cohort(n=20_000)
    with_keep = dc.MDN(cohort.design, 5, gram="batch").double()
    removed = cohort.features - with_keep(cohort.features, cohort.metadata)
    error = (removed - cohort.confound_effect).norm() / cohort.confound_effect.norm()

    blind = dc.Design(confounds=["age", "sex", "site"]).fit(cohort.table)
    without_keep = dc.MDN(blind, 5, gram="batch").double()
    wrongly = cohort.features - without_keep(cohort.features, blind.encode(cohort.table, np.float64))
    control = (wrongly - cohort.confound_effect).norm() / cohort.confound_effect.norm()
    assert error < 0.03
    assert control > 0.1


def test_coefficients_are_in_the_units_of_the_table():
    cohort = make_cohort(n=500)
    table = cohort.table
    features = torch.from_numpy(
        0.25 * table["age"] + 3.0 * (table["sex"] == "M") - 2.0 * (table["site"] == "C") + 1.5 * table["dx"]
    )[:, None]
    layer = dc.MDN(cohort.design, 1, gram="batch", momentum=1.0).double()
    layer(features, cohort.metadata)
    found = {name: value.item() for name, value in layer.coefficients().items()}
    assert found == pytest.approx({"age": 0.25, "sex[M]": 3.0, "site[B]": 0.0, "site[C]": -2.0}, abs=1e-10)


def test_papers_form_uses_the_actual_size_of_a_short_batch(cohort):
    """Eq. 4 with N/b and the training table's Gram matrix, written out for a batch of 37 rows."""
    rows = slice(0, 37)
    layer = dc.MDN(cohort.design, 5, gram="training", center=False).double()
    residual = layer(cohort.features[rows], cohort.metadata[rows])
    table = cohort.metadata.numpy()
    by_hand = (cohort.n / 37) * np.linalg.inv(table.T @ table) @ (table[rows].T @ cohort.features[rows].numpy())
    expected = cohort.features[rows].numpy() - table[rows, : cohort.confounds] @ by_hand[: cohort.confounds]
    np.testing.assert_allclose(residual.numpy(), expected, atol=1e-10)


def test_centring_protects_small_batches_from_a_large_feature_mean():
    cohort = make_cohort(mean=5.0)
    errors = {}
    for center in (True, False):
        layer = dc.MDN(cohort.design, 5, center=center).double()
        for rows in torch.arange(cohort.n).split(20):
            layer(cohort.features[rows], cohort.metadata[rows])
        residual = layer.eval()(cohort.features, cohort.metadata).numpy()
        errors[center] = np.abs(residual - least_squares_residual(cohort)).mean()
    assert errors[True] < 0.5 * errors[False]


def test_running_beta_is_right_after_one_batch(cohort):
    layer = dc.MDN(cohort.design, 5, gram="batch", momentum=0.1).double()
    trained = layer(cohort.features, cohort.metadata)
    torch.testing.assert_close(layer.eval()(cohort.features, cohort.metadata), trained)


@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_running_beta_is_the_weighted_mean_of_the_batches(cohort, momentum):
    """Newer batches weigh more, by 1 / (1 − m) each; written out over all of them."""
    layer = dc.MDN(cohort.design, 5, gram="batch", momentum=momentum).double()
    parts = torch.arange(cohort.n).split(80)
    fits = []
    for rows in parts:
        layer(cohort.features[rows], cohort.metadata[rows])
        alone = dc.MDN(cohort.design, 5, gram="batch").double()
        alone(cohort.features[rows], cohort.metadata[rows])
        fits.append(alone.beta)
    weights = np.array([(1 - momentum) ** (len(parts) - 1 - place) for place in range(len(parts))])
    expected = sum(weight * fit for weight, fit in zip(weights / weights.sum(), fits, strict=True))
    torch.testing.assert_close(layer.beta, expected)


def test_the_gradient_goes_through_the_fit(cohort):
    """On a full batch the residual is a matrix times the features, and its gradient that matrix transposed."""
    features = cohort.features.clone().requires_grad_()
    weights = torch.randn(features.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    residual = dc.MDN(cohort.design, 5, gram="batch").double()(features, cohort.metadata)
    (residual * weights).sum().backward()
    regressors = np.column_stack([np.ones(cohort.n), cohort.metadata.numpy()])
    confounds = slice(1, 1 + cohort.confounds)
    removed = regressors[:, confounds] @ np.linalg.pinv(regressors)[confounds]
    expected = weights.numpy() - removed.T @ weights.numpy()
    np.testing.assert_allclose(features.grad.numpy(), expected, atol=1e-10)
    assert np.abs(expected - weights.numpy()).max() > 0.1
