"""An epoch in which a method is still warming up is not the best one, however low its loss."""

import itertools

import pytest

from deconfound.errors import OptionError
from deconfound.training.dry_run import dry_run
from deconfound.training.engine import Engine, KeepBestEpoch
from deconfound.training.jobs import plan
from deconfound.training.problem import open_problem
from deconfound.training.step import BestEpoch
from deconfound.training.workers import run_job
from tests.training import tiny


def best_of(*epochs):
    """The best of some (loss, warming)."""
    best = BestEpoch()
    for epoch, (loss, warming) in enumerate(epochs):
        if best.yields_to(loss, warming):
            best = BestEpoch(epoch, loss, {}, warming)
    return best


def test_the_lowest_loss_wins_among_epochs_in_which_the_method_is_in_force():
    assert best_of((3.0, False), (1.0, False), (2.0, False)).epoch == 1
    assert best_of((1.0, True), (0.5, True), (3.0, False), (2.0, False), (2.5, False)).epoch == 3
    assert best_of((1.0, True), (0.5, True), (0.7, True)).epoch == 1


def test_a_method_that_is_warming_up_is_waited_for():
    assert BestEpoch().waited(7) == 0
    assert best_of((0.5, True)).waited(7) == 0
    assert best_of((0.5, True), (2.0, False)).waited(7) == 6


def rising(monkeypatch):
    """Validation losses 1, 2, 3, …: by them the first epoch is the best."""
    counted, means = itertools.count(1), Engine.epoch_means
    monkeypatch.setattr(Engine, "epoch_means", lambda self: means(self) | {"val_loss": float(next(counted))})


def config(tmp_path, warmup, **training):
    splits = {"folds": 2, "validation": 0.2}
    method = {"name": "adversarial", "options": {"adversarial": {"warmup": warmup}}}
    path = tiny.write(tmp_path)
    training = {"epochs": 6, "batch_size": 16, "accelerator": "cpu"} | training
    return tiny.config(path, tmp_path / "run", method=method, training=training, splits=splits)


@pytest.mark.parametrize(("warmup", "best"), [(0, 0), (2, 1), (3, 2)])
def test_a_run_keeps_the_first_epoch_at_whose_end_the_weight_is_full(tmp_path, monkeypatch, warmup, best):
    """Two batches an epoch, and twice the warm-up until the weight is full."""
    rising(monkeypatch)
    assert [fold["best_epoch"] for fold in tiny.fit(config(tmp_path, warmup))["folds"]] == [best, best]


def test_patience_begins_after_the_warmup(tmp_path, monkeypatch):
    rising(monkeypatch)
    assert [fold["epochs"] for fold in tiny.fit(config(tmp_path, 3, patience=1))["folds"]] == [4, 4]


def test_a_resumed_run_of_before_there_was_a_warmup_keeps_its_best_epoch(tmp_path):
    keeper = KeepBestEpoch(tmp_path / "last.ckpt", 5, None, 30.0, None)
    keeper.load_state_dict({"history": [], "finished": False, "best": {"epoch": 3, "loss": 1.0, "weights": {}}})
    assert not keeper.best.yields_to(2.0, warming=False)
    assert keeper.best.waited(5) == 2


def test_a_warmup_that_does_not_end_fails_the_fold_where_there_was_no_dry_run(tmp_path):
    problem = open_problem(config(tmp_path, 6))
    result = run_job(plan([problem])[0][0])
    assert "a warm-up must end before training does; got 12 batches of warm-up and 12" in result.error


def test_a_warmup_that_does_not_end_is_told_before_training(tmp_path):
    with pytest.raises(OptionError, match="a warm-up must end before training does; got 12 batches of warm-up and 12"):
        dry_run(open_problem(config(tmp_path, 6)))
    dry_run(open_problem(config(tmp_path, 5)))
