"""A new site without labels: its offset is found where controls are marked, and never confused with its prevalence."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.errors import OptionError

EFFECT = torch.tensor([1.0, -0.5, 0.0, 2.0, 0.3, 0.0])


def rows(n, prevalence, site, seed, offset=0.0):
    """Six features that follow the label, age and the site."""
    rng = np.random.default_rng(seed)
    dx = (rng.random(n) < prevalence).astype(float)
    site = np.asarray(rng.choice(["A", "B"], n) if site is None else [site] * n)
    table = {"age": rng.normal(60, 10, n), "site": site, "dx": dx}
    of_site = np.select([table["site"] == "A", table["site"] == "B"], [0.5, -0.5], 0.0)  # 0 is their average
    shift = of_site[:, None] + (table["age"][:, None] - 60) / 10
    noise = rng.normal(size=(n, 6))
    return table, torch.from_numpy(noise + shift).float() + torch.from_numpy(dx).float()[:, None] * EFFECT + offset


@pytest.fixture(scope="module")
def model():
    table, x = rows(1500, 0.4, None, 0)
    design = dc.Design(confounds=["age", "site"], keep=["dx"], unseen="mean").fit(table)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Identity(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
    made = dc.normalize(network, design, at=["0", "1", "3"], example=x[:2]).eval()
    made.refit([(x, design.encode(table))], prior=0)
    return made


def encoded(model, table, known=False):
    return model.design.encode({name: values for name, values in table.items() if known or name != "dx"})


def test_a_site_of_other_prevalence_and_no_offset_has_zero_inside_its_interval(model):
    table, x = rows(400, 0.8, "new", 1)
    found = model.adapt([(x, encoded(model, table))])
    first = found.offsets["0"]
    assert ((first.low < 0) & (first.high > 0)).all()
    assert first.subtracted.abs().max() < 0.2
    assert found.prevalence == (0.05, 0.95)
    # The naive offset, the difference of means, takes the prevalence for a shift: the control.
    at_mean = torch.from_numpy(encoded(model, table))
    naive = (model.layers["0"](x, at_mean).mean(0) - model.layers["0"]._beta()[-1]).abs()
    assert naive.max() > 0.5
    assert model.adapt([(x, encoded(model, table))], prevalence=(0.05, 0.5)).offsets["0"].low[3] > 0  # too low a range


def test_a_planted_offset_is_found_with_controls(model):
    offset = torch.tensor([0.8, 0.0, -1.0, 0.5, 0.0, 0.3])
    table, x = rows(600, 0.8, "new", 4, offset)
    table["dx"][table["dx"] == 1] = np.nan  # only the controls are marked
    found = model.adapt(
        [(x[:150], encoded(model, table, known=True)[:150]), (x[150:], encoded(model, table, True)[150:])]
    )
    first = found.offsets["0"]
    assert found.prevalence is None
    assert found.known == int((table["dx"] == 0).sum())
    assert (first.subtracted - offset).abs().max() < 0.3
    assert ((first.low < offset) & (offset < first.high)).float().mean() > 0.8
    assert (first.low[2] < first.high[2]) & (first.high[2] < 0)
    assert "rows with labels: the offset at '3' lies between" in str(found)


def test_without_labels_what_no_prevalence_explains_is_taken_off(model):
    offset = torch.tensor([0.0, 0.0, 1.5, 0.0, 0.0, -1.5])  # the label shows in neither of the two
    table, x = rows(400, 0.4, "new", 3, offset)
    found = model.adapt([(x, encoded(model, table))])
    assert (found.offsets["0"].subtracted - offset).abs().max() < 0.35
    adapted, plain = (each(x, metadata=encoded(model, table)) for each in (found.model, model))
    known, x_known = rows(400, 0.4, None, 4)
    usual = model(x_known, metadata=encoded(model, known)).mean()
    assert (adapted.mean() - usual).abs() < 0.5 * (plain.mean() - usual).abs()


def test_the_model_itself_is_not_changed_and_the_copy_copies(model):
    table, x = rows(60, 0.5, "new", 5, 1.0)
    metadata = encoded(model, table)
    before = model(x, metadata=metadata)
    found = model.adapt([(x, metadata)])
    assert torch.equal(model(x, metadata=metadata), before)
    assert not torch.allclose(found.model(x, metadata=metadata), before)
    assert torch.equal(copy.deepcopy(found.model)(x, metadata=metadata), found.model(x, metadata=metadata))


def test_the_offsets_of_a_copy_are_in_its_state_dict(model):
    table, x = rows(60, 0.5, "new", 5, 1.0)
    metadata = encoded(model, table)
    found, other = model.adapt([(x, metadata)]), model.adapt([(x + 7, metadata)])
    assert not torch.allclose(other.model(x, metadata=metadata), found.model(x, metadata=metadata))
    other.model.load_state_dict(found.model.state_dict())
    assert torch.equal(other.model(x, metadata=metadata), found.model(x, metadata=metadata))
    with pytest.raises(RuntimeError, match=r"Unexpected key.*site_offsets"):
        copy.deepcopy(model).load_state_dict(found.model.state_dict())


def test_what_adapt_refuses(model):
    table, x = rows(9, 0.5, "new", 6)
    with pytest.raises(OptionError, match="a new site must have at least 10 rows to adapt to; got 9"):
        model.adapt([(x, encoded(model, table))])
    with pytest.raises(OptionError, match=r"prevalence must be a range between 0 and 1; got \(0.5, 0.2\)"):
        model.adapt([(x, encoded(model, table))], prevalence=(0.5, 0.2))
    wide = nn.Sequential(nn.Linear(6, 12), nn.Linear(12, 1))
    erasing = dc.normalize(wide, model.design, at="0", layer="erase", example=x)
    with pytest.raises(OptionError, match="adapt must have layers that read the confounds; got layer='erase'"):
        erasing.adapt([(x, encoded(model, table))])
