"""Refitting: β fitted to held-out rows, the network standing still."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.errors import OptionError, ShapeError

LAYERS = ["pmdn", "mdn", "rmdn", "pmdn-alternating", "pmdn-joint"]


def people(n, seed):
    draw = np.random.default_rng(seed)
    dx = draw.integers(0, 2, n)
    return {
        "age": 60 + 8 * draw.standard_normal(n) + 5 * dx,
        "income": 4e4 + 9e3 * draw.standard_normal(n),
        "site": np.array(["a", "b", "c"])[draw.integers(0, 3, n)],
        "dx": dx,
    }


def inputs(table, seed):
    draw = np.random.default_rng(seed)
    columns = [(table["age"] - 60) / 8, (table["income"] - 4e4) / 9e3, table["site"] == "b", table["dx"]]
    clean = np.stack([np.asarray(column, dtype=float) for column in columns], 1) @ draw.standard_normal((4, 5))
    return torch.as_tensor(clean + draw.standard_normal(clean.shape), dtype=torch.float32)


@pytest.fixture
def design():
    return dc.Design(confounds=["age", "income", "site"], keep=["dx"]).fit(people(400, 0))


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))


def attach(design, layer="pmdn"):
    return dc.normalize(network(), design, at=["0", "3", "5"], layer=layer, example=torch.zeros(2, 5))


def explained(outputs, table):
    """R² of the confounds beside the label: an independent regression, on columns of our own."""
    dummies = [table["site"] == "b", table["site"] == "c"]
    confounds = np.stack([table["age"] - 60, table["income"] / 1e4 - 4, *dummies], 1).astype(float)
    kept = np.stack([np.ones(len(confounds)), table["dx"]], 1)
    full = np.concatenate([kept, confounds], 1)
    y = outputs.detach().double().numpy()

    def error(columns):
        return ((y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]) ** 2).sum()

    return 1 - error(full) / error(kept)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("sizes", [(600,), (250, 250, 100)], ids=["one batch", "three batches"])
def test_after_refitting_the_held_out_rows_show_no_linear_effect_of_any_confound(design, layer, sizes):
    model, table = attach(design, layer).eval(), people(600, 1)
    x, metadata = inputs(table, 1), torch.from_numpy(design.encode(table))
    batches = list(zip(x.split(sizes), metadata.split(sizes), strict=True))
    assert explained(model(x, metadata=metadata), table) > 0.05  # β is zero before: the control
    model.refit(batches, prior=0)
    assert explained(model(x, metadata=metadata), table) < 1e-6


def test_every_layer_refits_on_what_the_layers_before_it_let_through(design):
    model, table = attach(design).eval(), people(300, 1)
    x, metadata = inputs(table, 1), torch.from_numpy(design.encode(table))
    kept = {}
    for path in ("0", "3"):
        model.network.get_submodule(path).register_forward_hook(
            lambda module, given, output, path=path: kept.update({path: output})
        )
    model.refit(lambda: zip(x.split(100), metadata.split(100), strict=True), prior=0)
    model(x, metadata=metadata)
    for features in kept.values():
        assert explained(features, table) < 1e-6


@pytest.mark.parametrize("layer", LAYERS)
def test_refitted_leaves_no_trace_and_the_network_is_never_changed(design, layer):
    model, table = attach(design, layer), people(100, 1)
    x, metadata = inputs(table, 1), design.encode(table)
    for _ in range(3):
        model(x, metadata=metadata)
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    with model.refitted([(x, metadata)]):
        assert model.training
        changed = [key for key, value in model.state_dict().items() if not torch.equal(value, before[key])]
        assert len(changed) >= 3
        assert all(key.startswith("layers.") for key in changed)
    assert all(torch.allclose(value, before[key], rtol=1e-6) for key, value in model.state_dict().items())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items() if "network" in key)
    assert torch.equal(state, torch.get_rng_state())  # dropout is off


def test_refitted_builds_layers_before_it_remembers_them_and_puts_them_back_after_a_fault(design):
    table = people(100, 1)
    x, metadata = inputs(table, 1), design.encode(table)
    model = dc.normalize(network(), design, at=["0", "3", "5"])
    with model.refitted([(x, metadata)], prior=0):
        assert all(layer.beta.abs().max() > 0 for layer in model.layers.values())
    assert all(layer.beta.abs().max() == 0 for layer in model.layers.values())
    passes = []

    def batches():
        passes.append(1)
        if len(passes) > 4:  # two looks, the first layer's pass, and then
            raise OSError("the disk is gone")
        yield x[:50], metadata[:50]
        yield x[50:], metadata[50:]

    with pytest.raises(OSError, match="the disk is gone"), model.refitted(batches, prior=0):
        pass
    assert len(passes) > 4
    assert all(layer.beta.abs().max() == 0 for layer in model.layers.values())


def test_the_training_beta_counts_for_so_many_rows_and_the_intercept_is_free(design):
    """Where R is white on the held-out rows themselves, the refitted β is a weighted mean."""
    table = people(400, 0)  # those of the design
    layer = dc.PMDN(design, 1)
    model = dc.normalize(nn.Sequential(nn.Identity()), design, at=["0"], example=torch.zeros(2, 1)).eval()
    features = torch.as_tensor(table["age"], dtype=torch.float32)[:, None] / 10
    metadata = design.encode(table)
    model.refit([(features, metadata)], prior=0)
    exact = model.layers["0"].beta.clone()
    for prior, share in ((400.0, 0.5), (1200.0, 0.25)):
        model.layers["0"].set_beta(torch.zeros_like(layer.beta))
        model.refit([(features, metadata)], prior=prior)
        torch.testing.assert_close(model.layers["0"].beta[:-1], share * exact[:-1], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(model.layers["0"].beta[-1], exact[-1])


def test_held_out_features_of_another_mean_are_refitted_as_well_as_others(design):
    """The prior does not hold the intercept: a shift by 3 sd of all held-out features changes no coefficient."""
    table = people(60, 1)
    x, metadata = inputs(table, 1), design.encode(table)
    found = []
    for shift in (0.0, 3.0):
        model = dc.normalize(nn.Sequential(nn.Identity()), design, at=["0"], example=torch.zeros(2, 5)).eval()
        model.refit([(x + shift, metadata)])
        found.append(model.layers["0"].beta[:-1].clone())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_without_a_prior_rows_of_one_site_leave_the_others_alone(design):
    """β of what one site cannot tell stays; what it can tell is exact least squares."""
    table = people(600, 1)
    table = {name: values[table["site"] == "c"] for name, values in table.items()}
    x, metadata = inputs(table, 1), design.encode(table)
    model = dc.normalize(nn.Sequential(nn.Identity()), design, at=["0"], example=torch.zeros(2, 5)).eval()
    start = 0.1 * torch.randn(model.layers["0"].beta.shape, generator=torch.Generator().manual_seed(0))
    model.layers["0"].set_beta(start)
    model.refit([(x, metadata)], prior=0)
    assert (model.layers["0"].beta[:-1] - start[:-1]).abs().max() < 3  # the sd of the features is 1 to 3
    known = np.stack([np.ones(len(x)), table["age"] - 60, table["income"] / 1e4 - 4, table["dx"]], 1)
    residual = model(x, metadata=metadata).numpy()
    slopes = np.linalg.lstsq(known, residual, rcond=None)[0]
    assert np.abs(slopes[1:3]).max() < 1e-4


def test_a_site_that_is_not_held_out_stays_as_far_from_the_mean_of_the_others(design):
    """Held-out rows say how b differs from a; how c differs from the mean of both is left as training found it."""
    trained, table = people(400, 0), people(300, 1)
    share = (trained["site"] == "b").sum() / (trained["site"] != "c").sum()
    table = {name: values[table["site"] != "c"] for name, values in table.items()}
    model = dc.normalize(nn.Sequential(nn.Identity()), design, at=["0"], example=torch.zeros(2, 5)).eval()
    beta = model.layers["0"].beta
    model.layers["0"].set_beta(2 * torch.randn(beta.shape, generator=torch.Generator().manual_seed(0)))
    x, metadata = inputs(table, 1), design.encode(table)
    x = x + 5.0 * torch.as_tensor(table["site"] == "b", dtype=torch.float32)[:, None]
    before = model.coefficients()["0"]
    model.refit([(x, metadata)])
    after = model.coefficients()["0"]
    moved = (after["site[b]"] - before["site[b]"]).abs().max()
    distance = [found["site[c]"] - share * found["site[b]"] for found in (before, after)]
    assert moved > 1
    assert distance[0].abs().max() > 1
    assert (distance[1] - distance[0]).abs().max() < 0.1 * moved  # age and income move a little of it


def test_what_refit_refuses(design):
    model, table = attach(design), people(20, 1)
    x = inputs(table, 1)
    with pytest.raises(OptionError, match=r"batches must be there to be read again; got an iterator\. Pass a list"):
        model.refit(iter([(x, design.encode(table))]))
    with pytest.raises(OptionError, match="pairs of inputs and metadata, or these and weights; got Tensor"):
        model.refit([x])
    with pytest.raises(OptionError, match="batches must hold at least one; got none"):
        model.refit([])
    with pytest.raises(OptionError, match="prior must be a number of rows, 0 or more; got -1"):
        model.refit([(x, design.encode(table))], prior=-1)
    del table["dx"]
    with pytest.raises(ShapeError, match="training metadata must hold every keep column; got NaN in dx"):
        model.refit([(x, design.encode(table))])
    assert model.training
    assert all(layer.refitter is None and layer.training for layer in model.layers.values())


def test_by_default_the_training_beta_counts_for_a_hundred_rows_per_direction_of_the_confounds(design):
    assert design.confound_directions == 4
    table = people(50, 1)
    batches = [(inputs(table, 1), design.encode(table))]
    first, second = attach(design), attach(design)
    first.refit(batches)
    second.refit(batches, prior=400)
    for path in first.layers:
        assert torch.equal(first.layers[path].beta, second.layers[path].beta)


def test_refitted_coefficients_solve_the_penalised_least_squares_of_the_theory():
    from deconfound.layers.functional import moments
    from deconfound.layers.refit import refitted_coefficients

    draw = torch.Generator().manual_seed(0)
    slopes, features = torch.randn(40, 2, generator=draw).double(), torch.randn(40, 2, generator=draw).double() + 5
    regressors = torch.cat([slopes, torch.ones(40, 1).double()], 1)
    weights = torch.rand(40, generator=draw).double() * 3
    start, prior = torch.randn(3, 2, generator=draw).double(), 7.0
    # Seven rows' worth of the old β, written as rows of a least squares problem; none for the intercept.
    held = prior**0.5 * torch.eye(3).double()[:2]
    stacked = torch.cat([weights.sqrt()[:, None] * regressors, held])
    targets = torch.cat([weights.sqrt()[:, None] * features, held @ start])
    wanted = torch.linalg.lstsq(stacked, targets).solution
    torch.testing.assert_close(refitted_coefficients(start, moments(features, regressors, weights), prior), wanted)
