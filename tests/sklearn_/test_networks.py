"""The network inside an estimator: the user's own, where its layers go, and how training ends."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from deconfound.sklearn import DeconfoundedClassifier, DeconfoundedRegressor
from deconfound.sklearn.problem import Task
from tests.sklearn_.people import CONFOUNDS, make_people

FAST = {"epochs": 3, "hidden": (8,), "random_state": 0}


class TwoLogits(nn.Module):
    """A user's network: images in, a logit for each class out."""

    def __init__(self, shape, outputs):
        super().__init__()
        assert outputs == 1
        self.convolution = nn.Conv2d(shape[0], 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.convolution(x).relu().mean((2, 3)))


def test_a_network_class_sees_images_and_may_give_both_logits():
    rng = np.random.default_rng(0)
    dx = np.arange(60) % 2
    images = rng.normal(size=(60, 1, 6, 6)) + dx[:, None, None, None]
    table = {"age": rng.normal(60 + 5 * dx, 8)}
    model = DeconfoundedClassifier(network=TwoLogits, epochs=30, lr=0.02, random_state=0)
    model.fit(images, dx, confounds=table)
    assert [place.path for place in model.model_.plan.places] == ["head"]
    assert next(model.model_.parameters()).dtype == torch.float32
    assert model.decision_function(images, confounds=table).shape == (60,)
    assert model.score(images, dx, confounds=table) > 0.9
    flat = DeconfoundedClassifier(**FAST).fit(images, dx, confounds=table)
    assert flat.model_.network.fc1.in_features == 36


def test_a_module_is_copied_and_starts_from_its_own_weights():
    X, dx = make_people(80)
    network = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1)).double()
    before = [parameter.clone() for parameter in network.parameters()]
    model = DeconfoundedClassifier(CONFOUNDS, network=network, at="0", **FAST)
    model.set_params(lr=1e-12, weight_decay=0.0).fit(X, dx)
    assert list(model.model_.layers) == ["0"]
    pairs = zip(network.parameters(), before, model.model_.network.parameters(), strict=True)
    for now, then, trained in pairs:
        assert torch.equal(now, then)
        torch.testing.assert_close(trained, then, atol=1e-8, rtol=0)
    assert clone(model).network is not network


def test_layer_options_reach_normalize():
    X, dx = make_people(80)
    options = {"gradient": "frozen", "where": "before"}
    model = DeconfoundedClassifier(CONFOUNDS, at="out", layer_options=options, **FAST).fit(X, dx)
    assert model.model_.layers["out"].gradient == "frozen"
    assert model.model_.plan.places[0].where == "before"


@pytest.mark.parametrize("layer", ["pmdn-joint", "pmdn-alternating"])
def test_layers_with_trainable_beta_are_trained(layer):
    X, dx = make_people(80)
    model = DeconfoundedClassifier(CONFOUNDS, layer=layer, **FAST).fit(X, dx)
    assert all(module.beta.abs().max() > 0 for module in model.model_.layers.values())


def test_training_stops_on_held_out_rows_and_goes_back_to_the_best_epoch():
    X, dx = make_people(120)
    noise = np.random.default_rng(0).permutation(dx)
    options = {"hidden": (32,), "lr": 0.02, "random_state": 0}
    model = DeconfoundedClassifier(CONFOUNDS, epochs=60, patience=5, **options).fit(X, noise)
    losses = [epoch.validation for epoch in model.history_]
    best = int(np.argmin(losses)) + 1
    assert len(losses) == best + 5 < 60
    again = DeconfoundedClassifier(CONFOUNDS, epochs=best, patience=60, **options).fit(X, noise)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    through = DeconfoundedClassifier(CONFOUNDS, epochs=8, early_stopping=False, **options).fit(X, noise)
    assert [epoch.validation for epoch in through.history_] == [None] * 8


def test_verbose_prints_the_losses(capsys):
    X, dx = make_people(80)
    DeconfoundedClassifier(CONFOUNDS, verbose=True, **FAST).fit(X, dx)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("epoch 1/3: loss 0.")
    assert "validation" in lines[0]


@pytest.mark.parametrize("layer", ["pmdn", "mdn", "rmdn", "pmdn-alternating"])
def test_coefficients_refit_on_the_rows_that_are_held_out(layer):
    X, dx = make_people(150)
    options = {**FAST, "epochs": 1, "layer": layer}  # one epoch, so that both choose the same
    kept = DeconfoundedClassifier(CONFOUNDS, refit=False, **options).fit(X, dx)
    refitted = DeconfoundedClassifier(CONFOUNDS, **options).fit(X, dx)
    weights = [dict(model.model_.network.named_parameters()) for model in (kept, refitted)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    moved = [
        (a._beta() - b._beta()).abs().max()
        for a, b in zip(kept.model_.layers.values(), refitted.model_.layers.values(), strict=True)
    ]
    assert min(moved) > 1e-6
    first, second = (
        DeconfoundedClassifier(CONFOUNDS, early_stopping=False, refit=refit, **options).fit(X, dx).decision_function(X)
        for refit in (True, False)
    )
    assert np.array_equal(first, second)  # nothing is held out


def test_a_share_that_would_hold_out_every_row_leaves_one_of_each_class():
    X, dx = make_people(40)
    model = DeconfoundedClassifier(CONFOUNDS, validation_fraction=0.999, **FAST).fit(X, dx)
    assert np.isfinite(model.decision_function(X)).all()


def drawn(task, weight=None, seed=0, fraction=0.15):
    """The rows that are held out."""
    learned, held = task.hold_out(fraction, np.random.RandomState(seed), weight)
    assert sorted([*learned.tolist(), *held.tolist()]) == list(range(len(task.target)))
    return held.numpy()


@pytest.mark.parametrize("classes", [None, 2])
def test_rows_without_weight_are_held_out_as_little_as_rows_that_are_left_out(classes):
    rng = np.random.default_rng(0)
    target = np.arange(40) % 2
    weight = np.where(rng.random(40) < 0.4, 2.5, 0.0)
    counted = np.flatnonzero(weight)
    task, fewer = Task(target, classes), Task(target[counted], classes)
    for seed in range(30):
        held = drawn(task, weight, seed)
        assert len(held)
        np.testing.assert_array_equal(held, counted[drawn(fewer, seed=seed)])


def test_the_rows_held_out_without_weights_and_with_equal_ones_are_those_of_the_seed():
    task = Task(np.arange(40) % 2, 2)
    rng = np.random.RandomState(0)
    expected = np.sort(np.concatenate([rng.permutation(np.arange(first, 40, 2))[:3] for first in (0, 1)]))
    np.testing.assert_array_equal(drawn(task), expected)
    np.testing.assert_array_equal(drawn(task, np.full(40, 0.5)), expected)


def test_labels_of_rows_without_weight_do_not_scale_the_others():
    rng = np.random.default_rng(0)
    X, age = rng.normal(size=(80, 3)), rng.normal(60, 8, 80)
    y, weight = X[:, 0] + 50.0, np.repeat([1.0, 0.0], [60, 20])
    spoilt = np.where(weight > 0, y, -999.0)
    found = [
        DeconfoundedRegressor(epochs=3, random_state=0).fit(X, values, confounds={"age": age}, sample_weight=weight)
        for values in (y, spoilt)
    ]
    clean, other = (model.predict(X[:60], confounds={"age": age[:60]}) for model in found)
    np.testing.assert_allclose(other, clean, atol=1e-5)
    assert abs(clean.mean() - y[:60].mean()) < 1


def test_every_seed_trains_where_most_rows_have_no_weight():
    rng = np.random.default_rng(0)
    dx, table, X = np.arange(40) % 2, {"age": rng.normal(60, 8, 40)}, rng.normal(size=(40, 3))
    weight = (rng.random(40) < 0.4) * 1.0
    for seed in range(30):
        model = DeconfoundedClassifier(epochs=1, hidden=(4,), random_state=seed)
        model.fit(X, dx, confounds=table, sample_weight=weight)
        assert np.isfinite(model.history_[0].validation)


def test_too_few_rows_with_a_weight_are_all_trained_on():
    X, dx = make_people(40)
    weight = np.zeros(40)
    for label in (0, 1):
        weight[np.flatnonzero(dx == label)[:3]] = 1.0  # 0.15 of 3 rows is less than half a row
    with_weight = DeconfoundedClassifier(["age"], **FAST).fit(X[["f0", "f1", "age"]], dx, sample_weight=weight)
    assert [epoch.validation for epoch in with_weight.history_] == [None] * 3
    without = DeconfoundedClassifier(["age"], **FAST).fit(X[["f0", "f1", "age"]], dx)
    assert all(epoch.validation is not None for epoch in without.history_)
