"""Trainings that failed are recorded with their fold's result, and those that did not are not."""

import numpy as np

from tests.training import tiny


def kinds(results):
    return [{problem["kind"] for problem in fold["problems"]} for fold in results["folds"]]


def test_a_network_that_does_not_learn_is_recorded_and_one_that_does_is_not(tmp_path):
    frame = tiny.cohort(160)
    path = tiny.write(tmp_path, frame)
    method = {"name": "none"}
    still = {"epochs": 2, "lr": 1e-12, "weight_decay": 0.0}
    found = kinds(tiny.fit(tiny.config(path, tmp_path / "still", training=still, method=method)))
    assert all("loss at chance" in each for each in found)
    frame["f0"] = 5.0 * (frame["dx"] == "asd") + np.random.default_rng(0).normal(size=160)
    path = tiny.write(tmp_path, frame, "clear.csv")
    learns = {"epochs": 20, "lr": 0.01}
    found = kinds(tiny.fit(tiny.config(path, tmp_path / "learns", training=learns, method=method)))
    assert all(not each & {"loss at chance", "constant outputs", "best epoch is the first"} for each in found)


def test_more_epochs_are_advised_where_the_last_is_the_best(tmp_path):
    frame = tiny.cohort(120)
    frame["f0"] = 5.0 * (frame["dx"] == "asd") + np.random.default_rng(0).normal(size=120)
    config = tiny.config(tiny.write(tmp_path, frame), tmp_path / "run", training={"epochs": 2, "lr": 0.01})
    for fold in tiny.fit(config)["folds"]:
        texts = {problem["kind"]: problem["text"] for problem in fold["problems"]}
        assert texts["best epoch is the last"].endswith("the best of 2 epochs is the last: train longer")
        assert fold["best_epoch"] == 1
