"""Checkpoints carry a format and nothing that depends on which features a new layer would sample."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.errors import DeconfoundError, DeconfoundWarning
from deconfound.layers import checkpoint
from deconfound.layers.pmdn import layer as pmdn_layer
from deconfound.layers.pmdn.sampled import Sampled

OLD = Path(__file__).parent / "data" / "checkpoints_0_1.pt"  # written by release 0.1 (commit 639e23b)


@pytest.mark.parametrize("layer", ["pmdn", "mdn", "rmdn", "pmdn-alternating"])
@pytest.mark.parametrize("built", [True, False], ids=["with an example", "without"])
def test_a_checkpoint_of_release_0_1_gives_its_outputs_with_one_warning_and_trains_on(layer, built):
    if layer == "pmdn-alternating" and not built:
        pytest.skip("its parameters must exist before")
    saved = torch.load(OLD, weights_only=True)
    design = dc.Design(confounds=["age", "site"], keep=["dx"]).fit(saved["table"])
    example = saved["x"][:2] if built else None
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    model = dc.normalize(network, design, at=["0", "2"], layer=layer, example=example)
    with pytest.warns(DeconfoundWarning, match=r"written by deconfound 0\.1: coefficients are kept") as seen:
        model.load_state_dict(saved[layer]["state"], strict=True)
    assert len(seen) == 1
    metadata = design.encode(saved["table"])
    torch.testing.assert_close(model.eval()(saved["x"], metadata=metadata), saved[layer]["outputs"])
    assert not torch.equal(model.layers["0"].beta, torch.zeros_like(model.layers["0"].beta))
    model.train()(saved["x"], metadata=metadata).square().mean().backward()
    if layer == "pmdn":  # 40 samples were seen before, so the coefficients do not start anew
        assert model.layers["0"].gain_numbers[0] == 80


def test_what_is_saved_now_loads_without_a_warning_and_says_its_format(cohort):
    layer = dc.PMDN(cohort.design, 5)
    state = layer.state_dict()
    assert json.loads(bytes(state["_extra_state"].tolist()))["format"] == 2
    dc.PMDN(cohort.design, 5).load_state_dict(state)  # warnings are errors here


def test_a_checkpoint_goes_on_with_the_features_that_it_sampled(cohort, monkeypatch):
    """Where a later release samples other features, a checkpoint still loads, and trains on as it would have."""
    metadata = cohort.metadata[:40].float()
    batches = [torch.randn(40, 2500) + metadata[:, :1] * step for step in range(4)]
    layer = dc.PMDN(cohort.design, 2500)
    for x in batches[:2]:
        layer(x, metadata)
    monkeypatch.setattr(pmdn_layer, "sample_of", lambda shape: Sampled(8, 40))
    other = dc.PMDN(cohort.design, 2500)
    assert other.gain_trend.shape != layer.gain_trend.shape
    other.load_state_dict(layer.state_dict())
    for x in batches[2:]:
        layer(x, metadata)
        other(x, metadata)
    assert torch.equal(layer.beta, other.beta)


def test_a_checkpoint_of_a_later_format_is_refused(cohort, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 3)
    state = dc.PMDN(cohort.design, 5).state_dict()
    monkeypatch.undo()
    with pytest.raises(DeconfoundError, match=r"format of a checkpoint must be at most 2; got 3\. Update deconfound"):
        dc.PMDN(cohort.design, 5).load_state_dict(state)
