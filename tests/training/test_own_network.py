"""The file of a user's own network changes between two commands: a run takes the new one, or says why it cannot."""

import hashlib
import importlib
import json
import sys

import pytest

from deconfound.data.files import only_one
from deconfound.errors import RunError
from deconfound.training import compare, fit
from tests.training import tiny
from tests.training.children import exit_code_of

SOUND = """
import torch

def build(outputs, shape):
    return torch.nn.Linear(shape[0], outputs)
"""
BROKEN = SOUND.replace("return", "raise ValueError('broken on purpose')\n    return")
# The network of the second fold is the second that is built.
BROKEN_IN_THE_SECOND_FOLD = """
import pathlib
import torch

def build(outputs, shape):
    built = pathlib.Path(__file__).with_name("built")
    built.write_text("x" + (built.read_text() if built.exists() else ""))
    if built.read_text() == "xx":
        raise ValueError("broken on purpose")
    return torch.nn.Linear(shape[0], outputs)
"""
BROKEN_IN_TRAINING = """
import torch

class Tiring(torch.nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 12:
            raise ValueError("broken on purpose")
        return super().forward(x)

def build(outputs, shape):
    return Tiring(shape[0], outputs)
"""


@pytest.fixture
def given(tmp_path):
    """Write the network's file and its config, give a command in a new process; what it raises, or nothing."""
    module = f"own_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    table = tiny.write(tmp_path)

    def command(code, folder="run", call=fit):
        (tmp_path / f"{module}.py").write_text(code)
        content = tiny.settings(
            table,
            tmp_path / folder,
            network={"name": f"{module}:build", "options": {}},
            method={"name": "none"},
            compare={"methods": ["none", "covariate"], "seeds": [0], "permutations": 39, "bootstraps": 40},
            run={"checkpoint_seconds": 0.0},
        )
        (tmp_path / "config.json").write_text(json.dumps(content))
        note = tmp_path / "error.txt"
        assert exit_code_of(_give, call, tmp_path / "config.json", note) == 0
        return note.read_text()

    command.module = module
    return command


def _give(call, config, note):
    note.write_text("")
    try:
        done = call(config)
        if call is compare:
            done.raise_if_failed()
    except RunError as error:
        note.write_text(str(error))


def about(folder):
    return json.loads((folder / "run.json").read_text())


def folds(folder):
    return json.loads((folder / "results.json").read_text())["folds"]


def test_where_every_fold_failed_the_same_command_goes_on_with_the_repaired_file(given, tmp_path):
    failed = given(BROKEN)
    assert "got 2 that failed, first run fold 0: ValueError: broken on purpose." in failed
    assert failed.endswith("The others are kept: fix this and give the same command again.")
    assert given(SOUND) == ""
    assert given(SOUND, "whole") == ""
    assert folds(tmp_path / "run") == folds(tmp_path / "whole")
    assert about(tmp_path / "run")["network_source"] == hashlib.sha256(SOUND.encode()).hexdigest()


def test_a_comparison_that_failed_goes_on_with_the_repaired_file(given, tmp_path):
    assert given(BROKEN, call=compare).endswith("fix this and give the same command again.")
    assert given(SOUND, call=compare) == ""
    assert len(folds(tmp_path / "run" / "covariate-seed-0")) == 2


def test_where_a_fold_is_finished_a_failure_and_a_refusal_say_what_to_do(given, tmp_path):
    failed = given(BROKEN_IN_THE_SECOND_FOLD)
    assert "got 1 that failed, first run fold 1: ValueError: broken on purpose. The others are kept." in failed
    assert failed.endswith(
        f"If you fix this in the file of '{given.module}:build', with which they were trained, set run.folder to "
        "another folder; otherwise fix it and give the same command again."
    )
    kept = {path.name: path.read_bytes() for path in (tmp_path / "run/fold-0").iterdir()}
    before = about(tmp_path / "run")
    refused = given(SOUND)
    assert refused.endswith(
        "got a file that has changed since, and training with the old one in fold-0. Bring the old file back to go on, "
        "or set run.folder to another folder to train every fold with the new one."
    )
    assert about(tmp_path / "run") == before
    assert given(SOUND, "another") == ""
    assert given(BROKEN_IN_THE_SECOND_FOLD) == ""  # the old file, which fails once
    assert {path.name: path.read_bytes() for path in (tmp_path / "run/fold-0").iterdir()} == kept


def test_a_comparison_with_finished_folds_says_what_to_do(given, tmp_path):
    failed = given(BROKEN_IN_THE_SECOND_FOLD.replace('"xx"', '"xxx"'), call=compare)
    assert "first covariate-seed-0 fold 0: ValueError: broken on purpose. The others are kept. If you fix" in failed
    assert "training with the old one in fold-0, fold-1" in given(SOUND, call=compare)


def test_no_checkpoint_is_gone_on_from_with_another_network(given, tmp_path):
    assert "set run.folder to another folder; otherwise fix it" in given(BROKEN_IN_TRAINING)
    assert list((tmp_path / "run").glob("fold-*/result.json")) == []
    checkpoint = (tmp_path / "run/fold-0/last.ckpt").read_bytes()
    assert "training with the old one in fold-0, fold-1. Bring the old file back" in given(SOUND)
    assert (tmp_path / "run/fold-0/last.ckpt").read_bytes() == checkpoint


def test_a_job_that_still_trains_with_the_old_file_keeps_it(given, tmp_path):
    given(BROKEN)
    before = about(tmp_path / "run")
    with only_one(tmp_path / "run/fold-1"):
        assert "fold-1 must be worked on by one process; got another that holds it." in given(SOUND)
    assert about(tmp_path / "run") == before
    assert given(SOUND) == ""


def test_a_process_that_has_imported_the_old_file_does_not_train_it_as_the_new_one(given, tmp_path):
    given(BROKEN)
    for code, fault in ((BROKEN, "broken on purpose"), (SOUND, r"whose file has changed since this process imported")):
        (tmp_path / f"{given.module}.py").write_text(code)
        with pytest.raises(RunError, match=fault):
            fit(tmp_path / "config.json")
    assert about(tmp_path / "run")["network_source"] == hashlib.sha256(BROKEN.encode()).hexdigest()
    with pytest.raises(RunError, match=r"imported it\. Start Python again\."):
        fit(tmp_path / "config.json", f"run.folder={tmp_path / 'another'}")
    importlib.reload(sys.modules[given.module])
    fit(tmp_path / "config.json")
