"""A row's weight is the number of samples that it counts for when β is learned."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import deconfound as dc
from tests import oracles
from tests.helpers import (
    CONFOUNDS,
    LAYERS,
    assert_same_state,
    encode,
    fit_design,
    learn,
    make_people,
    state_of,
)

N = 400


@pytest.fixture(params=LAYERS)
def make(request):
    """Return what makes each kind of layer in turn."""
    return LAYERS[request.param]


@pytest.fixture(scope="module")
def people():
    """Return features, table, design, metadata and a random row weight of mean 1."""
    x, table = make_people(N)
    design = fit_design(table)
    weight = np.random.default_rng(0).uniform(0.2, 2.0, N)
    return x, table, design, encode(design, table), weight / weight.mean()


def test_a_weight_of_two_is_the_row_twice_and_zero_is_no_row(people, make):
    """Kills: a weight that the fit ignores; batches whose size is the number of rows, not Σw."""
    x, _, design, metadata, _ = people
    weighted, repeated = make(design, 3).double(), make(design, 3).double()
    counts = torch.randint(4, (60,), generator=torch.Generator().manual_seed(0))
    for rows in torch.arange(60).split([25, 5, 30]):
        copies = rows.repeat_interleave(counts[rows])
        residual = learn(weighted, x[rows], metadata[rows], counts[rows].double())
        expected = learn(repeated, x[copies], metadata[copies])
        first_copy = residual.repeat_interleave(counts[rows], dim=0)
        torch.testing.assert_close(first_copy, expected, rtol=1e-8, atol=1e-8)
    numbers = zip(weighted.state_dict().values(), repeated.state_dict().values(), strict=True)
    for ours, theirs in numbers:
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("value", [1e3, float("nan")])
def test_rows_of_weight_zero_are_not_learned_from_but_their_confounds_are_removed(
    people, make, value
):
    """Controls only: whatever stands in the other rows, β is the same. Kills 0 · NaN."""
    x, table, design, metadata, _ = people
    is_control = torch.tensor((table["label"] == "control").to_numpy())
    other = torch.where(is_control[:, None], x, torch.full_like(x, value))
    layers = [make(design, 3).double() for _ in range(2)]
    for layer, features in zip(layers, (x, other), strict=True):
        learn(layer, features, metadata, is_control.double())
    torch.testing.assert_close(layers[0].beta, layers[1].beta, rtol=1e-9, atol=1e-9)
    removed = x - layers[0].eval()(x, metadata)
    assert float(removed[~is_control].detach().abs().mean()) > 0.1


def test_a_batch_without_weight_leaves_the_state_and_still_has_a_gradient(people, make):
    """Nothing is learned in forward or backward, and the network still gets a finite gradient."""
    x, _, design, metadata, _ = people
    layer = make(design, 3).double()
    f = x[:50].clone().requires_grad_()
    learn(layer, f, metadata[:50]).square().mean().backward()
    before = state_of(layer)
    f = x[50:90].clone().requires_grad_()
    learn(layer, f, metadata[50:90], torch.zeros(40)).square().mean().backward()
    assert_same_state(layer, before)
    assert f.grad.isfinite().all()
    assert float(f.grad.abs().max()) > 0


def test_a_first_batch_without_weight_changes_nothing(people, make):
    """Before anything is learned, the residual is the features."""
    x, _, design, metadata, _ = people
    layer = make(design, 3).double()
    before = state_of(layer)
    residual = learn(layer, x[:5], metadata[:5], torch.zeros(5))
    torch.testing.assert_close(residual, x[:5], rtol=0, atol=1e-12)
    assert_same_state(layer, before)


def test_every_layer_reaches_weighted_least_squares(people, make):
    """With the design fitted under the same weights, as layers expect.

    Kills: a weight that the fit ignores. Control: the unweighted residual is another one.
    """
    x, table, _, _, weight = people
    design = dc.Design(CONFOUNDS, keep=["label"]).fit(table, weight)
    metadata = encode(design, table)
    layer = make(design, 3).double()
    for _ in range(40):
        learn(layer, x, metadata, torch.from_numpy(weight))
    residual = layer.eval()(x, metadata).detach()
    expected = torch.from_numpy(oracles.residual(x, table, CONFOUNDS, ["label"], weight))
    torch.testing.assert_close(residual, expected, rtol=0, atol=1e-5)
    plain = torch.from_numpy(oracles.residual(x, table, CONFOUNDS, ["label"]))
    assert float((residual - plain).abs().max()) > 1e-2


@pytest.mark.parametrize("name", ["mdn-batch", "rmdn", "pmdn", "alternating"])
def test_the_fit_is_weighted_least_squares_also_under_a_plain_design(people, name):
    """Whitening under other weights changes the path to β, not β."""
    x, _, design, metadata, weight = people
    layer = LAYERS[name](design, 3).double()
    for _ in range(60):
        learn(layer, x, metadata, torch.from_numpy(weight))
    r = oracles.white_regressors(metadata, design.whitening).numpy()
    expected = torch.from_numpy(oracles.least_squares(r, x.numpy(), weight))
    torch.testing.assert_close(layer.beta.detach(), expected, rtol=0, atol=1e-5)
