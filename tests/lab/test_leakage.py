"""Which rows go where in the MRI experiment: nothing of the test rows reaches a training; only they are predicted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from deconfound.training import train_in_memory
from deconfound_lab.harness import Signals
from deconfound_lab.mri.experiment import MriExperiment
from deconfound_lab.mri.plan import ARMS, Part, Plan
from deconfound_lab.mri.training import FoldTraining, Volumes, schedule_of, train_arm

PLAN = Plan(
    size=16, people=120, parts=(Part(("pmdn",), (40,), 1),), folds=3, filters=(2, 2, 2, 2), epochs=2, least_steps=1,
    patience=1.0,
)  # fmt: skip
ARM = ARMS["pmdn"]


@pytest.fixture(scope="module")
def experiment():
    made = MriExperiment(plan=PLAN)
    # Volumes are drawn once, and not stored.
    made.__dict__["volumes"] = tuple(
        Volumes(torch.from_numpy(each.read(np.arange(len(each)))), dict(each.table))
        for each in (made.cohort, made.independent)
    )
    return made


@pytest.fixture(scope="module")
def trained(experiment):
    """One training, refitted in the end as a cell is, and its data."""
    data = experiment.training(0, ARM)
    made, result = train_arm(PLAN, data, ARM, 40)
    data.refit(made)
    return data, made, result


def retrained(data, changes, plan=PLAN):
    """The same training where some columns or images have changed."""
    volumes = data.volumes
    images = changes.pop("images", volumes.images)
    other = replace(volumes, images=images, table={**volumes.table, **changes})
    fresh = FoldTraining(plan.network, other, data.fold, data.seed, plan.gamma)
    made, result = train_arm(plan, fresh, ARM, 40)
    fresh.refit(made)
    return fresh, made, result


def changed_at(values, rows, new):
    values = values.clone() if isinstance(values, torch.Tensor) else np.array(values)
    values[rows] = new(values[rows])
    return values


def flipped(data, rows):
    return {name: changed_at(data.volumes.table[name], rows, lambda label: 1 - label) for name in ("hiv", "mci")}


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_other_test_rows_give_equal_weights_bit_for_bit_and_other_validation_rows_do_not(trained):
    """Images, ages, sexes, sites and labels: neither design, scaling, best epoch nor refit may see them."""
    data, made, result = trained

    def changes(rows):
        table = data.volumes.table
        return {
            "images": changed_at(data.volumes.images, rows, lambda images: images.flip(2) + 0.5),
            "age": changed_at(table["age"], rows, lambda age: age + 30),
            "sex": changed_at(table["sex"], rows, lambda sex: np.where(sex == "F", "M", "F")),
            "site": changed_at(table["site"], rows, lambda site: np.roll(site, 1)),
            **flipped(data, rows),
        }

    _, again, other = retrained(data, changes(data.fold.test))
    assert same(made, again)
    assert other.history == result.history
    for rows in (data.fold.validation, data.fold.train):
        assert not same(made, retrained(data, changes(rows))[1])


def test_the_rows_that_are_stored_are_the_test_rows_and_so_are_the_predictions(experiment, trained):
    data, made, _ = trained
    (cell,) = experiment.cells()
    found = experiment.compute(cell, Signals())
    assert found["rows"].tolist() == data.fold.test.tolist()
    assert not set(found["rows"]) & {*data.fold.train, *data.fold.validation}
    for volumes, rows, logits in (
        (experiment.volumes[0], data.fold.test, found["logits"]),
        (experiment.volumes[1], np.arange(len(experiment.volumes[1])), found["independent"]),
    ):
        sample = data.volumes.images[data.fold.train[:256]]
        images = (volumes.images[rows] - sample.mean(0)) / (sample - sample.mean(0)).std()
        confounds = {name: np.asarray(volumes.table[name])[rows] for name in ("age", "sex", "site")}
        with torch.no_grad():
            by_hand = made.eval()(images, torch.from_numpy(data.design.encode(confounds)))
        np.testing.assert_allclose(logits, by_hand.numpy(), rtol=1e-3, atol=1e-4)


def test_other_test_labels_give_equal_predictions(trained):
    data, made, _ = trained
    other = replace(data.volumes, table={**data.volumes.table, **flipped(data, data.fold.test)})
    one, two = (data.predict(made, volumes, data.fold.test).logits for volumes in (data.volumes, other))
    assert torch.equal(one, two)


def test_the_best_epoch_is_taken_and_not_the_last(trained):
    """Where an earlier epoch is the best, the weights are those of a training that ends with it."""
    data, _, _ = trained
    for lr in (5e-4, 5e-3, 2e-2, 5e-2):
        longer = replace(PLAN, epochs=4, lr=lr)
        made, result = train_arm(longer, data, ARM, 40)
        if result.best < 3:
            break
    assert result.best < 3
    assert result.best == int(np.argmin([epoch.validation for epoch in result.history]))
    short, _ = train_arm(replace(longer, epochs=result.best + 1), data, ARM, 40)
    assert same(made, short)


def test_a_cell_is_judged_as_trained_and_refitted_on_the_validation_rows(experiment, trained):
    data, made, _ = trained
    found = experiment.compute(experiment.cells()[0], Signals())
    schedule = schedule_of(PLAN, 40, len(data.fold.train), None)
    by_hand = data.prepare(ARM, PLAN.lr)
    train_in_memory(by_hand, data.train, data.validation, data.criterion, schedule, seed=data.seed, refit=False)
    assert not same(made, by_hand)
    before = data.predict(by_hand, experiment.volumes[0], data.fold.test).logits.numpy()
    np.testing.assert_array_equal(before, found["logits as trained"])
    by_hand.refit(lambda: data.validation.batches(128))
    assert same(made, by_hand)
    assert not np.array_equal(before, found["logits"])


def test_balanced_arms_weigh_training_and_validation_rows_alone_and_break_the_tie(experiment):
    data = experiment.training(0, ARMS["pmdn-balanced"])
    weight, by_row = data.train.weight.numpy(), data.train.layer_weight.numpy()
    assert not weight[data.fold.test].any()
    assert not by_row[data.fold.test].any()
    table = {name: values[data.fold.train] for name, values in data.volumes.table.items()}
    for label, own in zip(("hiv", "mci"), weight[data.fold.train].T, strict=True):
        ages = [np.average(table["age"][table[label] == v], weights=own[table[label] == v]) for v in (0, 1)]
        plain = [table["age"][table[label] == v].mean() for v in (0, 1)]
        assert abs(ages[1] - ages[0]) < 0.01
        assert abs(plain[1] - plain[0]) > 1
    other = replace(data.volumes, table={**data.volumes.table, **flipped(data, data.fold.test)})
    again = FoldTraining(PLAN.network, other, data.fold, data.seed, PLAN.gamma, balanced=True)
    assert torch.equal(again.train.weight, data.train.weight)
