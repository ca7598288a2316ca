"""The last layer fitted anew to balanced held-out rows, and the worst group."""

import numpy as np
import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.errors import OptionError
from deconfound.methods import Setting, TrainingBatch, method, refit_last_layer
from deconfound.methods.last_layer import overlap_weights
from deconfound.training import Samples, Schedule, bce, mse, predict_in_memory, train_in_memory


def tied(n, seed, tie):
    """A label that shows weakly in one feature; a site that shows strongly in another and goes with the label."""
    rng = np.random.default_rng(seed)
    case = rng.random(n) < 0.5
    site = rng.random(n) < np.where(case, 0.5 + tie / 2, 0.5 - tie / 2)
    x = np.stack([1.5 * case + rng.normal(size=n), 3.0 * site + rng.normal(0, 0.3, n)], axis=1)
    table = {"site": np.where(site, "B", "A"), "dx": case.astype(int)}
    return torch.tensor(x).float(), table


def samples_of(x, table, design):
    target = torch.tensor(table["dx"]).float()[:, None]
    return Samples(x, torch.from_numpy(design.encode(table)), target)


def trained(name, **options):
    x, table = tied(1500, 0, 0.9)
    design = dc.Design(confounds=["site"], keep=["dx"]).fit(table)
    train, held = samples_of(x, table, design), samples_of(*tied(600, 1, 0.9), design)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    made = method(name).prepare(network, Setting(design, None, lambda: train.batches(100), site="site"), **options)
    train_in_memory(made, train, held, bce, Schedule(epochs=30, batch_size=50, lr=5e-3))
    return made, design


def accuracy_by_group(made, design):
    """Where label and site are independent: of each site, the accuracy."""
    x, table = tied(4000, 2, 0.0)
    logits = predict_in_memory(made, samples_of(x, table, design)).logits[:, 0].numpy()
    right = (logits > 0) == (table["dx"] == 1)
    groups = [(table["site"] == site) & (table["dx"] == dx) for site in "AB" for dx in (0, 1)]
    return min(right[group].mean() for group in groups)


@pytest.fixture(scope="module")
def plain():
    return accuracy_by_group(*trained("none"))


@pytest.mark.parametrize(("name", "options"), [("last-layer", {}), ("group-dro", {"step": 0.05})])
def test_the_worst_group_gains(plain, name, options):
    assert plain < 0.45  # the control: the plain network calls controls of site B cases
    assert accuracy_by_group(*trained(name, **options)) > plain + 0.1


def test_overlap_weights_balance_the_confounds_of_cases_and_controls():
    _, table = tied(800, 0, 0.8)
    design = dc.Design(confounds=["site"], keep=["dx"]).fit(table)
    confounds = torch.from_numpy(design.encode(table))[:, :1]
    target = torch.tensor(table["dx"]).float()
    weight = overlap_weights(confounds, target)
    means = [float(np.average(confounds[target == dx, 0], weights=weight[target == dx])) for dx in (0, 1)]
    assert means[0] == pytest.approx(means[1], abs=1e-6)
    assert weight.mean() == pytest.approx(1.0)
    assert abs(float(confounds[target == 1].mean() - confounds[target == 0].mean())) > 1.0  # before
    assert torch.equal(overlap_weights(confounds, torch.randn(800)), torch.ones(800).double())


def test_numbers_are_fitted_by_ridge_and_the_rest_of_the_network_stands_still():
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    first = network[0].weight.clone()
    target = torch.sin(x[:, :1]) + 0.1
    refit_last_layer(network, [TrainingBatch(x, torch.zeros(200, 1), target)], confounds=1, ridge=0.0)
    assert torch.equal(network[0].weight, first)
    features = torch.cat([network[1](network[0](x)), torch.ones(200, 1)], dim=1).double().detach()
    expected = features @ torch.linalg.lstsq(features, target.double()).solution
    torch.testing.assert_close(network(x).double().detach(), expected, atol=1e-3, rtol=1e-3)


def test_networks_and_labels_that_do_not_fit_are_refused():
    x, table = tied(60, 0, 0.5)
    design = dc.Design(confounds=["site"], keep=["dx"]).fit(table)
    train = samples_of(x, table, design)
    setting = Setting(design, None, lambda: train.batches(60), site="site")
    with pytest.raises(OptionError, match="network must have a linear layer for method 'last-layer'; got none"):
        method("last-layer").prepare(nn.Sequential(nn.Tanh()), setting)
    squashed = nn.Sequential(nn.Linear(2, 1), nn.Tanh())
    with pytest.raises(
        OptionError, match="the network's output must be that of its last linear layer, '0'; got another"
    ):
        refit_last_layer(squashed, train.batches(60), 1)
    with pytest.raises(OptionError, match="site must be a categorical confound for method 'group-dro'; got None"):
        method("group-dro").prepare(nn.Linear(2, 1), Setting(design, None, lambda: train.batches(60)))
    numbers = Samples(x, train.metadata, torch.randn(60, 1))
    with pytest.raises(OptionError, match="labels must be classes for method 'group-dro'; got numbers"):
        method("group-dro").prepare(nn.Linear(2, 1), Setting(design, None, lambda: numbers.batches(60), site="site"))
    made = method("group-dro").prepare(nn.Linear(2, 1), setting)
    with pytest.raises(OptionError, match="a criterion must return one loss per row for method 'group-dro'"):
        made.loss(train.batch(torch.arange(10)), lambda logits, target: mse(logits, target).mean())
