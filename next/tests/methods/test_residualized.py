"""Residualised inputs are least squares on the training rows, and the rows are never held."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from deconfound.adjust import ComBat, Residualizer
from deconfound.errors import OptionError, ShapeError, StateError
from deconfound.methods import Method, Setting, make_method
from tests import oracles
from tests.methods.problem import CONFOUNDS, Problem, make_network, make_problem, outputs

PROBLEM = make_problem()


def make_residual(
    problem: Problem = PROBLEM, x: torch.Tensor | None = None, by: str = "regression"
) -> Method:
    """Return the method with a network that does nothing, so that its output is the residual."""
    setting = Setting(problem.design, (problem.x if x is None else x)[:2], stratum="site")
    return make_method("residualized-inputs", nn.Identity(), setting, {"by": by})


@pytest.mark.parametrize("size", [7, 120])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_it_is_least_squares_by_numpy(size, offset):
    """On the user's own columns. Kills labels that are removed, or left out of the fit.

    The offset kills sums in single precision.
    """
    x = PROBLEM.x + offset
    problem = Problem(x, PROBLEM.table, PROBLEM.design, PROBLEM.metadata, PROBLEM.target)
    method = make_residual(problem)
    method.fit(problem.batches(size))
    expected = oracles.residual(x, PROBLEM.table, CONFOUNDS, ["label"])
    left = outputs(method, x, PROBLEM.metadata).numpy()
    np.testing.assert_allclose(left, expected, atol=1e-5 + 1e-6 * offset)
    # In single precision the offset would cost three digits of the coefficients.
    metadata = PROBLEM.metadata.double().numpy()
    effects = Residualizer(PROBLEM.design).fit(x.double().numpy(), metadata).coefficients()
    for name, effect in method.effect.coefficients().items():
        np.testing.assert_allclose(effect, effects[name], rtol=1e-4, atol=1e-5)
    # The control: what would be left if the labels took no part.
    without = oracles.residual(x, PROBLEM.table, CONFOUNDS, [])
    assert np.abs(without - expected).max() > 0.05


def test_rows_count_by_layer_weight_and_rows_of_weight_0_may_be_incomplete():
    """Kills weights that miss the intercept."""
    weight = (torch.arange(120) % 3).float()
    expected = oracles.residual(PROBLEM.x, PROBLEM.table, CONFOUNDS, ["label"], weight.numpy())
    metadata = torch.where(weight[:, None] > 0, PROBLEM.metadata, torch.nan)
    gaps = Problem(PROBLEM.x, PROBLEM.table, PROBLEM.design, metadata, PROBLEM.target)
    method = make_residual()
    method.fit(gaps.batches(40, weight))
    left = outputs(method, PROBLEM.x, PROBLEM.metadata).numpy()
    # The oracle centres the confounds by their weighted mean, the design by that of all rows.
    shift = (left - expected).mean(0)
    np.testing.assert_allclose(left - shift, expected, atol=1e-5)


def test_images_are_residualised_pixel_by_pixel():
    """And equal `Residualizer` on the flattened images."""
    images = torch.randn(120, 2, 3, 4) + PROBLEM.metadata[:, 0].view(-1, 1, 1, 1)
    problem = Problem(images, PROBLEM.table, PROBLEM.design, PROBLEM.metadata, PROBLEM.target)
    method = make_residual(problem)
    method.fit(problem.batches(50))
    left = outputs(method, images, PROBLEM.metadata)
    assert left.shape == images.shape
    metadata = PROBLEM.metadata.double().numpy()
    flat = images.flatten(1).double().numpy()
    expected = Residualizer(PROBLEM.design).fit(flat, metadata).transform(flat, metadata)
    np.testing.assert_allclose(left.flatten(1), expected, atol=1e-5)


def test_by_combat_is_combat_on_the_rows_that_count():
    """Fitted on all batches together, once. A checkpoint keeps every digit of the estimates.

    Kills sites that are mixed up in the checkpoint, and rows of weight 0 that take part.
    """
    weight = (torch.arange(120) % 4 > 0).float()
    does_count = weight > 0
    metadata = PROBLEM.metadata.double().numpy()
    combat = ComBat(PROBLEM.design, "site")
    combat.fit(PROBLEM.x[does_count], metadata[does_count.numpy()])
    expected = combat.transform(PROBLEM.x, metadata)
    method = make_residual(by="combat")
    method.fit(PROBLEM.batches(50, 3 * weight))
    left = outputs(method, PROBLEM.x, PROBLEM.metadata)
    np.testing.assert_allclose(left, expected, atol=1e-5)
    # The control: the sites of these people do differ.
    assert np.abs(expected - PROBLEM.x.numpy()).max() > 0.3
    loaded = make_residual(by="combat")
    loaded.load_state_dict(method.bfloat16().state_dict())
    torch.testing.assert_close(outputs(loaded, PROBLEM.x, PROBLEM.metadata), left, rtol=0, atol=0)
    # A state that was saved before the fit is one without estimates.
    loaded.load_state_dict(make_residual(by="combat").state_dict())
    with pytest.raises(StateError, match="not fitted"):
        outputs(loaded, PROBLEM.x, PROBLEM.metadata)


def test_combat_of_images_keeps_their_shape():
    images = PROBLEM.x.view(120, 1, 2, 3)
    problem = Problem(images, PROBLEM.table, PROBLEM.design, PROBLEM.metadata, PROBLEM.target)
    flat, shaped = make_residual(by="combat"), make_residual(problem, by="combat")
    flat.fit(PROBLEM.batches())
    shaped.fit(problem.batches())
    left = outputs(shaped, images, PROBLEM.metadata)
    torch.testing.assert_close(left.flatten(1), outputs(flat, PROBLEM.x, PROBLEM.metadata))


def test_combat_needs_a_stratum_and_takes_no_weights():
    options = {"by": "combat"}
    setting = Setting(PROBLEM.design, PROBLEM.x[:2])
    with pytest.raises(OptionError, match=r"got none\. Set design\.stratum in a config"):
        make_method("residualized-inputs", make_network(), setting, options)
    setting = Setting(PROBLEM.design, PROBLEM.x[:2], stratum="age")
    with pytest.raises(OptionError, match=r"must be a categorical confound .* got 'age'"):
        make_method("residualized-inputs", make_network(), setting, options)
    method = make_residual(by="combat")
    weight = 1 + (torch.arange(120) % 2).float()
    with pytest.raises(OptionError, match="0 and one other number; got several"):
        method.fit(PROBLEM.batches(40, weight))


def test_training_passes_change_nothing_of_the_fit():
    """In training and evaluation mode the inputs are the same."""
    method = make_residual()
    method.fit(PROBLEM.batches())
    before = outputs(method, PROBLEM.x, PROBLEM.metadata)
    training = method.train()(PROBLEM.x, PROBLEM.metadata)
    torch.testing.assert_close(training, before)
    torch.testing.assert_close(outputs(method, PROBLEM.x, PROBLEM.metadata), before)


def test_fitting_again_replaces_the_fit():
    method = make_residual()
    other = make_problem(seed=1)
    method.fit(other.batches())
    method.fit(PROBLEM.batches())
    fresh = make_residual()
    fresh.fit(PROBLEM.batches())
    torch.testing.assert_close(
        outputs(method, PROBLEM.x, PROBLEM.metadata), outputs(fresh, PROBLEM.x, PROBLEM.metadata)
    )


def test_what_cannot_be_fitted_is_refused_with_the_way_out():
    method = make_residual()
    with pytest.raises(StateError, match=r"Call method\.fit\(training_batches\)"):
        outputs(method, PROBLEM.x, PROBLEM.metadata)
    with pytest.raises(OptionError, match="a row with a layer_weight above 0; got none"):
        method.fit(PROBLEM.batches(40, torch.zeros(120)))
    gaps = PROBLEM.x.clone()
    gaps[3, 0] = torch.nan
    problem = Problem(gaps, PROBLEM.table, PROBLEM.design, PROBLEM.metadata, PROBLEM.target)
    with pytest.raises(ShapeError, match="inputs must be finite; got NaN or infinity"):
        method.fit(problem.batches())
    with pytest.raises(ShapeError, match=r"floating-point numbers; got torch\.uint8"):
        make_residual(x=torch.zeros(2, 3, dtype=torch.uint8))
    with pytest.raises(OptionError, match="by must be 'regression' or 'combat'; got 'splines'"):
        make_method("residualized-inputs", make_network(), PROBLEM.setting(), {"by": "splines"})
