"""Folders of strangers, and names and files that were not meant for this."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from deconfound.errors import DeconfoundError, StateError
from deconfound.runs import Run, predict
from tests.runs.cohort import make_cohort, make_config, train


class Bomb:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("kind", ["torch", "pickle", "text", "other tensors"])
def test_a_forged_model_executes_nothing(tmp_path, kind):
    run = train(make_config(tmp_path))
    model = run.folder / "folds" / "0" / "model.pt"
    bomb = Bomb(tmp_path / "exploded")
    if kind == "torch":
        torch.save({"task": bomb}, model)
    elif kind == "other tensors":
        torch.save({"weight": torch.zeros(3)}, model)
    else:
        model.write_bytes(pickle.dumps(bomb) if kind == "pickle" else b"hello")
    for trust in (False, True):
        with pytest.raises(StateError, match=r"model\.pt' is not a model that a run wrote"):
            predict(run, make_cohort(), trust=trust)
    assert not bomb.path.exists()
    # The control: this pickle does something if it is loaded.
    pickle.loads(pickle.dumps(bomb))
    assert bomb.path.exists()


def test_forged_features_execute_nothing(tmp_path):
    run = train(make_config(tmp_path, run={"features": True}))
    bomb = np.array([Bomb(tmp_path / "exploded")], dtype=object)
    np.save(run.folder / "folds" / "0" / "features.npy", bomb, allow_pickle=True)
    with pytest.raises((DeconfoundError, ValueError)):
        Run.load(run.folder).features()
    assert not (tmp_path / "exploded").exists()


def test_code_beside_a_run_is_not_imported_without_trust(tmp_path, monkeypatch):
    """The network of a stranger's run is a module that lies in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code = "import torch\ndef net(shape, outputs):\n    return torch.nn.Linear(shape[0], outputs)\n"
    (tmp_path / "stranger.py").write_text(code)
    config = make_config(tmp_path, network={"name": "stranger:net", "options": {}})
    run = train(config)
    monkeypatch.delitem(__import__("sys").modules, "stranger")
    (tmp_path / "stranger.py").write_text("open('exploded', 'w').close()\n" + code)
    with pytest.raises(DeconfoundError, match="trust=True"):
        predict(run, make_cohort())
    assert not (tmp_path / "exploded").exists()
    assert len(predict(run, make_cohort(), trust=True)) == 60
    assert (tmp_path / "exploded").exists()
    # Changed code is another run.
    with pytest.raises(StateError, match=r"the contents of network\.name have changed"):
        train(config)


@pytest.mark.parametrize("content", [{}, {"command": "fit"}, {"command": "fit", "task": 3}, [1]])
def test_a_description_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(DeconfoundError):
        Run.load(tmp_path)


def test_names_of_folds_are_no_paths(tmp_path):
    people = make_cohort()
    people["part"] = people["site"].map({"A": "../../up", "B": "..", "C": "C: x*?"})
    config = make_config(
        tmp_path,
        people,
        splits={"kind": "column", "column": "part"},
        design={"confounds": ["age"]},
        data={"features": ["f*"]},
    )
    run = train(config)
    assert {*run.folds} == {"../../up", "..", "C: x*?"}
    assert run.is_finished
    assert {path.name for path in tmp_path.iterdir()} == {"people.csv", "run"}
    assert len([*(run.folder / "folds").iterdir()]) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["run.seed=5000000000"], "run.seed must be below"),
        (["training.augment={noise: abc}"], "training.augment: .*noise='abc'"),
        (
            ["method=none", "network=sklearn.svm:LinearSVC", "run.features=false"],
            "LinearSVC has no predict_proba.*CalibratedClassifierCV",
        ),
        (["launcher={precision: foo}"], "launcher: Lightning Fabric cannot be made of"),
    ],
)
def test_values_that_others_would_refuse_are_sentences(tmp_path, changes, words):
    with pytest.raises(DeconfoundError, match=words):
        train(make_config(tmp_path), *changes)


@pytest.mark.parametrize("jobs", [0, -7])
def test_a_number_of_processes_that_cannot_be_is_refused_first(tmp_path, jobs):
    with pytest.raises(DeconfoundError, match=f"jobs must be 1 or more, .*got {jobs}"):
        train(make_config(tmp_path), jobs=jobs)
    assert not any(tmp_path.rglob("run.json"))
