"""Runs on images: built-in networks, pretrained weights, frozen stages."""

import numpy as np
import pytest
import safetensors.torch
import torch

import deconfound as dc
from deconfound.errors import DeconfoundWarning, OptionError, RunError
from deconfound.networks import build_network
from tests.training import tiny

SMALL = {"name": "resnet18", "options": {"width": 4}}


def images(folder, shape=(1, 12, 12), n=48):
    """Images whose left half knows the label and whose right half knows the age."""
    frame = tiny.cohort(n)[["id", "dx", "age", "sex", "site"]]
    x = np.random.default_rng(0).normal(size=(n, *shape)).astype(np.float32)
    x[..., : shape[-1] // 2] += 2 * (frame["dx"] == "asd").to_numpy().reshape(-1, *[1] * len(shape))
    x[..., shape[-1] // 2 :] += (frame["age"].to_numpy().reshape(-1, *[1] * len(shape)) - 60) / 9
    np.save(folder / "x.npy", x)
    return tiny.write(folder, frame)


def config(folder, run, **sections):
    defaults = {"training": {"epochs": 2}, "design": {"confounds": ["age"]}, "network": SMALL}
    data = {"table": str(folder / "table.csv")}
    given = {name: {**values, **sections.pop(name, {})} for name, values in defaults.items()}
    return tiny.settings(folder / "x.npy", run, data=data, **given, **sections)


def state_of(run):
    return torch.load(run / "fold-0" / "checkpoint.pt", weights_only=True)


def test_a_run_goes_on_from_weights_with_frozen_stages_and_predicts_without_the_file(tmp_path):
    images(tmp_path)
    start = build_network("resnet18", (1, 12, 12), 3, {"width": 4}).state_dict()
    safetensors.torch.save_file(start, tmp_path / "w.safetensors")
    network = {"weights": str(tmp_path / "w.safetensors"), "freeze": ["conv1", "bn1", "layer[123]"]}
    given = config(tmp_path, tmp_path / "run", network=network)
    with pytest.warns(DeconfoundWarning, match="fc is left new"):
        dc.fit(given)
    ended = {name.rpartition("network.")[2]: values for name, values in state_of(tmp_path / "run").items()}
    same = {name for name, values in start.items() if values.shape == ended[name].shape and values.equal(ended[name])}
    learned = ("layer4", "fc")
    assert {name for name in start if not name.startswith(learned)} <= same
    assert not {name for name in same if name.startswith(learned) and name.endswith("weight")}
    (tmp_path / "w.safetensors").rename(tmp_path / "moved.safetensors")
    found = dc.predict(tmp_path / "run", tmp_path / "table.csv", tmp_path / "x.npy")
    assert len(found.ids) == 48
    other = {name: values + 1 for name, values in start.items()}
    safetensors.torch.save_file(other, tmp_path / "w.safetensors")
    with pytest.warns(DeconfoundWarning), pytest.raises(RunError, match="the file of the network's weights of"):
        dc.fit(given)


def test_weights_and_stages_that_cannot_be_are_told_before_training(tmp_path):
    images(tmp_path)
    with pytest.raises(OptionError, match=r"network\.weights must be a file; got 'w.safetensors'"):
        dc.fit(config(tmp_path, tmp_path / "run", network={"weights": "w.safetensors"}))
    with pytest.raises(OptionError, match=r"network\.freeze must match modules of the network; got 'layer9'"):
        dc.fit(config(tmp_path, tmp_path / "run", network={"freeze": "layer9"}))
    assert not (tmp_path / "run").exists()
