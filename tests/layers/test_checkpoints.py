"""Checkpoints carry a format, and those of older formats keep their coefficients."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.errors import DeconfoundError, DeconfoundWarning
from deconfound.layers import checkpoint

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
    with pytest.warns(DeconfoundWarning, match=r"written by an older deconfound: coefficients are kept") as seen:
        model.load_state_dict(saved[layer]["state"], strict=True)
    assert len(seen) == 1
    metadata = design.encode(saved["table"])
    torch.testing.assert_close(model.eval()(saved["x"], metadata=metadata), saved[layer]["outputs"])
    assert not torch.equal(model.layers["0"].beta, torch.zeros_like(model.layers["0"].beta))
    model.train()(saved["x"], metadata=metadata).square().mean().backward()
    if layer == "pmdn":  # 40 samples were seen before, so the coefficients do not start anew
        assert model.layers["0"].samples == 80


def test_what_is_saved_now_loads_without_a_warning_and_says_its_format(cohort):
    layer = dc.PMDN(cohort.design, 5)
    state = layer.state_dict()
    assert json.loads(bytes(state["_extra_state"].tolist()))["format"] == 3
    dc.PMDN(cohort.design, 5).load_state_dict(state)  # warnings are errors here


def test_a_checkpoint_with_an_adaptive_gain_keeps_coefficients_and_samples(cohort):
    """As 0.2 wrote it before the memory was fixed: format 2, with buffers that are no more."""
    layer, metadata = dc.PMDN(cohort.design, 5).double(), cohort.metadata
    layer(cohort.features.clone().requires_grad_(), metadata).square().mean().backward()
    state = layer.state_dict()
    spec = json.loads(bytes(state["_extra_state"].tolist())) | {"format": 2, "sampled": [8, 8]}
    state["_extra_state"] = torch.frombuffer(bytearray(json.dumps(spec).encode()), dtype=torch.uint8)
    del state["gradient_square"]
    state["gain_numbers"] = torch.tensor([float(state.pop("samples")), *[0.1] * 9])
    state |= {"gain_trend": torch.ones(6, 5), "gain_scale": torch.ones(5), "gradient_size": torch.ones(2)}
    state |= {"gradient_numbers": torch.ones(4), "gradient_trend": torch.ones(4, 5), "gradient_scale": torch.ones(5)}
    fresh = dc.PMDN(cohort.design, 5).double()
    with pytest.warns(DeconfoundWarning, match="written by an older deconfound") as seen:
        fresh.load_state_dict(state, strict=True)
    assert len(seen) == 1
    assert torch.equal(fresh.beta, layer.beta)
    assert fresh.samples == cohort.n
    assert (fresh.gradient_mean == 0).all()
    assert (fresh.gradient_square == 0).all()


def test_a_checkpoint_of_a_later_format_is_refused(cohort, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 4)
    state = dc.PMDN(cohort.design, 5).state_dict()
    monkeypatch.undo()
    with pytest.raises(DeconfoundError, match=r"format of a checkpoint must be at most 3; got 4\. Update deconfound"):
        dc.PMDN(cohort.design, 5).load_state_dict(state)
