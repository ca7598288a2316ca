"""Runs on ABIDE: features and people in two files, twenty sites. The data stay where they are: tests skip without."""

import os
from pathlib import Path

import pytest

from deconfound.training.config_file import read_config
from deconfound.training.problem import open_problem
from deconfound.training.start import start_config
from tests.training import tiny

DATA = Path(os.environ.get("DECONFOUND_DATA", Path(__file__).parents[3] / "shared" / "data")) / "abide1"


@pytest.fixture
def settings(tmp_path):
    if not DATA.exists():
        pytest.skip(f"abide1 is not at {DATA.parent}; set DECONFOUND_DATA to the folder that holds it")
    data = {"source": str(DATA / "features.csv"), "table": str(DATA / "participants.tsv"), "label": "diagnosis"}
    return {
        "data": {**data, "id": "participant_id"},
        "design": {"confounds": ["site", "spline(age, 4)", "sex"]},
        "splits": {"folds": 2, "stratify": ["diagnosis", "site"]},
        "training": {"epochs": 3, "accelerator": "cpu"},
        "run": {"folder": str(tmp_path / "run")},
    }


@pytest.mark.filterwarnings("ignore:.*near-zero variance:UserWarning")
def test_combat_harmonises_twenty_sites_that_are_all_in_training(settings):
    results = tiny.fit(read_config({**settings, "method": "combat"}))
    assert results["metrics"]["auc"]["mean"] > 0.5
    assert sum(fold["rows"]["test"] for fold in results["folds"]) == 1035


def test_every_site_is_left_out_once(settings):
    left_out = {"kind": "leave-one-out", "column": "site"}
    problem = open_problem(read_config({**settings, "splits": left_out}))
    assert len(problem.folds) == 20
    assert problem.config.design.unseen == "mean"
    for fold in problem.folds:
        assert set(problem.source.table["site"][fold.test]) == {fold.name}
        assert fold.name not in problem.source.table["site"][fold.train]


def test_init_sees_features_that_do_not_vary(settings):
    made = start_config(DATA / "participants.tsv", ["diagnosis"], ["site", "age"], DATA / "features.csv")
    assert any("4 features do not vary" in line for line in made.noticed)
    assert any(line.startswith("the confounds explain") for line in made.noticed)
