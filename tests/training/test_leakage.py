"""Runs on disk: test rows reach nothing that is fitted, and what is tested is the best epoch, refitted."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from deconfound.errors import RunError
from deconfound.methods import TrainingBatch
from deconfound.training.engine import Engine
from deconfound.training.fold import prepare
from deconfound.training.fold_data import fold_data
from deconfound.training.problem import open_problem
from tests.training import tiny

SECTIONS = {
    "splits": {"kind": "column", "column": "part", "validation": 0.25, "seed": 1},
    "network": {"options": {"hidden": [8]}},
}


def cohort():
    frame = tiny.cohort(96)
    frame["part"] = np.arange(96) // 2 % 2
    return frame


def run(tmp_path, name, frame=None, **sections):
    """A run whose folds are a column, so that labels do not decide them; its folder."""
    path = tiny.write(tmp_path, cohort() if frame is None else frame, f"{name}.csv")
    config = tiny.config(path, tmp_path / name, **SECTIONS | sections)
    tiny.fit(config)
    return tmp_path / name


def state(folder, fold=0):
    return torch.load(folder / f"fold-{fold}" / "checkpoint.pt", weights_only=True)


def predictions(folder, fold=0):
    return pd.read_csv(folder / f"fold-{fold}" / "predictions.csv")


def history(folder, fold=0):
    return pd.read_csv(folder / f"fold-{fold}" / "history.csv")


def same(one, two, part=""):
    return all(torch.equal(one[key], two[key]) for key in one if part in key)


def test_test_rows_change_no_weight_and_no_epoch(tmp_path):
    frame = cohort()
    tested = frame["part"] == 0
    frame.loc[tested, ["age", *(f"f{k}" for k in range(6))]] = 1e3 * np.random.default_rng(0).normal(size=(48, 7))
    frame.loc[tested, "site"] = frame.loc[tested, "site"].iloc[::-1].to_numpy()
    one, two = run(tmp_path, "one"), run(tmp_path, "two", frame)
    assert same(state(one), state(two))
    assert history(one).equals(history(two))
    assert not same(state(one, 1), state(two, 1))  # the control: there they are training rows


def test_labels_of_test_rows_change_no_prediction(tmp_path):
    frame = cohort()
    tested = frame["part"] == 0
    frame.loc[tested, "dx"] = np.random.default_rng(0).permutation(frame.loc[tested, "dx"].to_numpy())
    one, two = predictions(run(tmp_path, "one")), predictions(run(tmp_path, "two", frame))
    assert one["logit_dx"].equals(two["logit_dx"])
    assert not one["dx"].equals(two["dx"])  # the control: they were changed
    assert set(one["row"]) == set(np.flatnonzero(tested))


def test_a_run_validates_with_refitted_coefficients_and_ends_with_them(tmp_path):
    folders = {}
    for refit in (True, False):
        options = {"method": {"options": {"pmdn": {"refit": refit}}}, "training": {"epochs": 1}}
        folders[refit] = run(tmp_path, f"refit-{refit}", **options)
    first, second = (history(folders[refit]).iloc[0] for refit in (True, False))
    assert first["train_loss"] == second["train_loss"]
    assert first["val_loss"] != second["val_loss"]  # within the validation
    one, two = (state(folders[refit]) for refit in (True, False))
    assert same(one, two, "network.")
    assert not same(one, two, "beta")  # and in the end
    path = tmp_path / "refit-True.csv"
    data = fold_data(open_problem(tiny.config(path, tmp_path / "none", **SECTIONS)), 0)
    made, held = prepare(data), data.validation
    made.load_state_dict(two)
    batch = TrainingBatch(data.samples(held.rows), held.metadata, held.target)
    with torch.no_grad(), made.eval().refitted(lambda: [batch]):  # on the validation rows, and no others
        expected = binary_cross_entropy_with_logits(made(batch.x, batch.metadata), batch.target)
    assert first["val_loss"] == pytest.approx(float(expected), rel=1e-5)
    made.refit(lambda: [batch])
    for key, value in made.state_dict().items():
        if "beta" in key:
            torch.testing.assert_close(value, one[key])


def judge(monkeypatch, losses):
    """Let validation losses be these, whatever the network does."""
    counted, means = itertools.cycle(losses), Engine.epoch_means
    monkeypatch.setattr(Engine, "epoch_means", lambda self: means(self) | {"val_loss": float(next(counted))})


def test_the_best_epoch_is_tested_and_not_the_last(tmp_path, monkeypatch):
    judge(monkeypatch, [3.0, 1.0, 2.0, 2.0])
    best = run(tmp_path, "best")
    judge(monkeypatch, [2.0, 1.0])
    assert same(state(best), state(run(tmp_path, "until", training={"epochs": 2})))
    judge(monkeypatch, [4.0, 3.0, 2.0, 1.0])
    assert not same(state(best), state(run(tmp_path, "last")))


class Stopped(Exception):
    """A run that dies."""


@pytest.mark.parametrize("method", ["pmdn", "pmdn-alternating"])
def test_a_run_whose_best_epoch_is_late_resumes_equal(tmp_path, monkeypatch, method):
    """The resumed epochs count: what the optimisers remember decides the weights that are tested."""
    means, dies = Engine.epoch_means, []

    def falling(self):
        if self.current_epoch in dies:
            raise Stopped
        return means(self) | {"val_loss": 9.0 - self.current_epoch}

    monkeypatch.setattr(Engine, "epoch_means", falling)
    options = {"method": {"name": method}, "training": {"epochs": 6}, "run": {"checkpoint_seconds": 0.0}}
    whole = run(tmp_path, "whole", **options)
    dies.append(3)
    with pytest.raises(RunError, match="Stopped"):
        run(tmp_path, "broken", **options)
    assert (tmp_path / "broken" / "fold-0" / "last.ckpt").exists()
    dies.clear()
    broken = run(tmp_path, "broken", **options)
    assert history(broken)["val_loss"].tolist() == [9, 8, 7, 6, 5, 4]
    assert same(state(whole), state(broken))


def test_workers_read_the_rows_of_a_refit_too(tmp_path):
    one = run(tmp_path, "one", training={"epochs": 2})
    two = run(tmp_path, "two", training={"epochs": 2, "workers": 1})
    assert same(state(one), state(two))
