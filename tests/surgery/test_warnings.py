"""What a user is told while training: skipped batches, batches that are not shuffled; and what teaches nothing."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.errors import DeconfoundWarning


@pytest.fixture
def model(cohort):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 1))
    return dc.normalize(network, cohort.design, at=["0", "2"], example=torch.zeros(2, 5))


def test_skipped_batches_are_counted_by_place_and_said_once_when_training_ends(model, cohort):
    x, metadata = cohort.features[:50].float(), cohort.metadata[:50].float()
    model(x, metadata=metadata)
    model.eval()  # nothing was skipped: no warning, which would be an error here
    model.train()
    spoilt = x.clone()
    spoilt[0, 0] = torch.inf
    model(spoilt, metadata=metadata)
    assert model.skipped() == {"0": 1, "2": 1}
    with pytest.warns(DeconfoundWarning, match=r"skipped by the layers at '0' \(1\), '2' \(1\): features or metadata"):
        model.eval()
    model.train()
    model.eval()  # once is enough


def order(cohort, rows, batch, model):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for part in torch.as_tensor(rows).split(batch):
            model(cohort.features[part].float(), metadata=cohort.metadata[part].float())
    return [str(warning.message) for warning in seen]


@pytest.mark.parametrize("batch", [2, 8, 16])
def test_sorted_batches_are_said_once_and_shuffled_ones_never(model, cohort, batch):
    by_site = np.argsort(cohort.table["site"], kind="stable")
    shuffled = np.random.default_rng(0).permutation(cohort.n)
    plain = copy.deepcopy(model)
    assert order(cohort, np.tile(shuffled, 3), batch, plain) == []
    (text,) = order(cohort, by_site, batch, model)
    assert "Training batches are not shuffled" in text
    assert "shuffle=True" in text
    assert order(cohort, by_site, batch, model) == []


def test_balanced_batches_pass_for_shuffled_ones(model, cohort):
    draw = np.random.default_rng(0)
    groups = [np.flatnonzero(cohort.table["site"] == site) for site in "ABC"]
    rows = np.concatenate([draw.choice(group, 6) for _ in range(60) for group in groups])
    assert order(cohort, rows, 18, model) == []


def test_one_batch_again_and_again_says_nothing_about_the_order(model, cohort):
    one_site = np.flatnonzero(cohort.table["site"] == "A")[:16]
    assert order(cohort, np.tile(one_site, 40), 16, model) == []


def test_a_saliency_map_in_training_mode_teaches_nothing(model, cohort):
    """`torch.autograd.grad` of a logit with respect to the inputs is no step of training."""
    metadata = cohort.metadata.float()
    model(cohort.features.float(), metadata=metadata).square().mean().backward()
    x = cohort.features.float().requires_grad_()
    logits = model(x, metadata=metadata)
    before = copy.deepcopy(model.state_dict())
    (saliency,) = torch.autograd.grad(logits.sum(), x, retain_graph=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert saliency.abs().max() > 0
    logits.square().mean().backward()  # the step itself teaches, also where inputs require gradients
    assert not torch.equal(model.layers["0"].gradient_mean, before["layers.0.gradient_mean"])


def test_layers_that_were_never_called_are_refitted_like_others(cohort):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 1))
    x, metadata = cohort.features.float(), cohort.metadata.float()
    found = []
    for example in (None, x[:2]):
        for batches in ([(x, metadata)], [(x[:200], metadata[:200]), (x[200:], metadata[200:])]):
            model = dc.normalize(copy.deepcopy(network), cohort.design, at=["0", "2"], example=example).eval()
            model.refit(batches, prior=0)
            found.append(model.layers["0"].beta.clone())
    assert found[0].abs().max() > 0.1
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-3, atol=1e-4)
