"""Runs on images: built-in networks, pretrained weights, frozen stages, channels on one scale, augmentations."""

from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch

import deconfound as dc
from deconfound.errors import DeconfoundWarning, OptionError, RunError
from deconfound.networks import build_network
from deconfound.training import engine
from deconfound.training.augment import augmented
from deconfound.training.batches import loader
from deconfound.training.config_file import read_config
from deconfound.training.fold_data import fold_data
from deconfound.training.problem import open_problem
from deconfound.training.scaling import Scaler
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


def config(folder, name, **sections):
    defaults = {"training": {"epochs": 2}, "design": {"confounds": ["age"]}, "network": SMALL}
    data = {"table": str(folder / "table.csv")}
    given = {name: {**values, **sections.pop(name, {})} for name, values in defaults.items()}
    return tiny.settings(folder / "x.npy", folder / name, data=data, **given, **sections)


def state_of(run):
    return torch.load(run / "fold-0" / "checkpoint.pt", weights_only=True)


def test_a_run_goes_on_from_weights_with_frozen_stages_and_predicts_without_the_file(tmp_path):
    images(tmp_path)
    start = build_network("resnet18", (1, 12, 12), 3, {"width": 4}).state_dict()
    safetensors.torch.save_file(start, tmp_path / "w.safetensors")
    network = {"weights": str(tmp_path / "w.safetensors"), "freeze": ["conv1", "bn1", "layer[123]"]}
    given = config(tmp_path, "run", network=network)
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
        dc.fit(config(tmp_path, "run", network={"weights": "w.safetensors"}))
    with pytest.raises(OptionError, match=r"network\.freeze must match modules of the network; got 'layer9'"):
        dc.fit(config(tmp_path, "run", network={"freeze": "layer9"}))
    assert not (tmp_path / "run").exists()


def test_channels_are_standardised_by_the_training_rows_alone(tmp_path):
    images(tmp_path, shape=(2, 6, 6))
    problem = open_problem(read_config(config(tmp_path, "run", network={"name": "cnn2d", "options": {}})))
    x, data = np.load(tmp_path / "x.npy"), fold_data(problem, 0)
    assert problem.config.data.scale == "channels"
    rows = x[data.fold.train].astype(np.float64)
    expected = (x[data.fold.test] - rows.mean((0, 2, 3), keepdims=True)) / rows.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(data.samples(data.fold.test), expected, atol=1e-5)
    again = Scaler.from_dict(data.scaler.to_dict())
    assert np.array_equal(again(x), data.scaler(x))


def test_only_training_rows_are_augmented_in_a_way_that_seed_epoch_and_batch_decide(tmp_path):
    images(tmp_path)
    training = {"augment": ["flip", "rotate", "shift", "crop", "brightness"], "batch_size": 16}
    problem = open_problem(read_config(config(tmp_path, "run", training=training)))
    data = fold_data(problem, 0)

    def epoch(number, workers=0):
        several = replace(problem, config=problem.config.updated(training={"workers": workers}))
        batches = loader(replace(data, problem=several), data.train, seed=5)
        batches.sampler.set_epoch(number)
        return [batch["x"] for batch in batches], {key for _, key in batches.sampler}

    (first, keys), (again, same), (_, other) = epoch(0), epoch(0, workers=1), epoch(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert len(keys) == len(first)
    assert keys == same
    assert not keys & other
    plain = data.samples(data.validation.rows)
    assert torch.equal(torch.cat([batch["x"] for batch in loader(data, data.validation)]), plain)


def test_an_augmented_run_that_is_stopped_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    images(tmp_path)
    training = {"augment": ["flip", "rotate", "crop"], "epochs": 3, "batch_size": 8}
    whole, stopped = (config(tmp_path, name, training=training, run={"checkpoint_seconds": 0}) for name in "ab")
    dc.fit(whole)
    step = engine.Engine.training_step
    steps = []

    def fails_in_the_second_epoch(self, batch, batch_idx):
        steps.append(batch_idx)
        if self.current_epoch == 1 and batch_idx == 1:
            raise RuntimeError("stopped")
        return step(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(engine.Engine, "training_step", fails_in_the_second_epoch)
        with pytest.raises(RunError, match="stopped"):
            dc.fit(stopped)
    dc.fit(stopped)
    assert steps
    for name in ("fold-0/predictions.csv", "fold-1/predictions.csv"):
        assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()


def test_augmentations_of_tables_and_unknown_ones_are_refused(tmp_path):
    path = tiny.write(tmp_path)
    with pytest.raises(OptionError, match=r"left out but for images and scans; got samples of shape \(6,\)"):
        dc.fit(tiny.settings(path, tmp_path / "run", training={"augment": "flip"}))
    with pytest.raises(OptionError, match=r"training.augment must be .*'flip'.*; got 'flips'. Did you mean 'flip'"):
        dc.fit(tiny.settings(path, tmp_path / "run", training={"augment": "flips"}))


def spot(rows, columns, at):
    """An image that is dark but for one pixel."""
    image = torch.zeros(64, 1, rows, columns)
    image[:, :, at[0], at[1]] = 1
    return image


def centre(images):
    """Where the light is, `(n, 2)`, from the middle, in pixels."""
    mass = images.sum((1, 2, 3))
    places = [torch.arange(edge) - (edge - 1) / 2 for edge in images.shape[2:]]
    return torch.stack(
        [(images.sum((1, 3)) * places[0]).sum(1) / mass, (images.sum((1, 2)) * places[1]).sum(1) / mass], 1
    )


def test_each_augmentation_does_what_it_says():
    image = spot(41, 21, (20, 15))  # five pixels to the right of the middle
    flipped = centre(augmented(image, ["flip"], (1,)))
    assert {(round(y), round(x)) for y, x in flipped.tolist()} == {(0, 5), (0, -5)}
    turned = centre(augmented(spot(41, 21, (5, 10)), ["rotate"], (1,)))  # fifteen pixels above, in a high image
    angles = torch.rad2deg(torch.atan2(turned[:, 1], -turned[:, 0]))
    assert turned.norm(dim=1).sub(15).abs().max() < 0.5
    assert 7 < angles.abs().max() < 10.5
    moved = centre(augmented(image, ["shift"], (1,))) - torch.tensor([0.0, 5.0])
    assert moved[:, 0].abs().max() < 0.05 * 41 + 0.01
    assert moved[:, 1].abs().max() < 0.05 * 21 + 0.01
    assert moved.abs().max() > 1
    brighter = augmented(image, ["brightness"], (1,)).amax((1, 2, 3))
    assert 0.8 <= brighter.min() < 0.85
    assert 1.15 < brighter.max() <= 1.2
    ramp = torch.arange(40.0).expand(64, 1, 40, 40).contiguous()
    cropped = augmented(ramp, ["crop"], (1,))
    width = cropped[:, 0, 20, -2] - cropped[:, 0, 20, 1]
    assert 0.78 * 37 < width.min() < 0.85 * 37
    assert width.max() < 37.01


def test_a_scan_is_mirrored_at_its_first_axis_alone():
    scan = torch.zeros(16, 1, 5, 6, 7)
    scan[:, :, 1, 2, 3] = 1
    places = {tuple(place[2:]) for place in augmented(scan, ["flip"], (1,)).gt(0.5).nonzero().tolist()}
    assert places == {(1, 2, 3), (3, 2, 3)}
