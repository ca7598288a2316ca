"""Runs that are killed, run out of disk, or meet other data, other configs and other commands."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from deconfound.errors import StateError
from deconfound.runs import Run
from tests.runs.cohort import assert_same_predictions, make_cohort, make_config, train

ROOT = Path(__file__).parents[2]


def run_with_kills(config: dict[str, Any], kills: list[int]) -> str:
    """Fit in a process that is killed before it puts those files in their places."""
    command = [sys.executable, "-m", "tests.runs.kills", json.dumps(config), *map(str, kills)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return result.stdout.strip() or result.stderr


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Let no file grow beyond a size: the same error as that of a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "kills",
    [
        [5, 12],
        pytest.param(random.Random(0).choices(range(1, 9), k=10), marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_killed_goes_on_with_the_numbers_of_an_undisturbed_one(tmp_path, kills):
    """Kills a checkpoint without the optimiser, and an order of rows that a new start changes."""
    epochs = 2 * len(kills)
    config = make_config(tmp_path, training={"epochs": epochs}, method={"name": "pmdn"})
    assert run_with_kills(config, kills) == f"{[-9] * len(kills)} 0"
    disturbed = Run.load(tmp_path / "run")
    undisturbed = train(config, f"run.folder={tmp_path}/whole")
    assert disturbed.is_finished
    assert_same_predictions(disturbed, undisturbed)
    for fold in disturbed.folds:
        pd.testing.assert_frame_equal(disturbed.history(fold), undisturbed.history(fold))
    assert not [*(tmp_path / "run").rglob("last.pt")]


@pytest.mark.parametrize("size", [500, 2_000, 4_500])
def test_a_full_disk_is_told_with_its_path_and_the_run_goes_on_afterwards(tmp_path, size):
    """The description, a checkpoint or predictions, and results do not fit on the disk."""
    config = make_config(tmp_path)
    with disk_of(size), pytest.raises(StateError, match=r"no space left for '.*run.*it goes on"):
        train(config)
    assert not [*tmp_path.rglob("*.new")]
    for path in (tmp_path / "run").rglob("*.json"):
        json.loads(path.read_text())
    run = train(config)
    assert run.is_finished
    assert_same_predictions(run, train(config, f"run.folder={tmp_path}/whole"))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    config = make_config(tmp_path)
    place = tmp_path / "people.csv" / "run"
    with pytest.raises(StateError, match=r"people\.csv.* cannot be used"):
        train(config, f"run.folder={place}")


@pytest.mark.skipif(os.getuid() == 0, reason="root may read and write everything")
def test_a_folder_without_permissions_is_named(tmp_path):
    config = make_config(tmp_path)
    (tmp_path / "run").mkdir(mode=0o500)
    with pytest.raises(StateError, match=r"run.*Change its permissions"):
        train(config)


def test_a_damaged_file_is_named_and_never_used(tmp_path):
    train(make_config(tmp_path))
    (tmp_path / "run" / "results.json").write_text('{"folds": ["0", ')
    with pytest.raises(StateError, match=r"results\.json' is damaged"):
        Run.load(tmp_path / "run")


def test_another_config_is_refused_by_the_keys_that_differ(tmp_path):
    config = make_config(tmp_path)
    train(config)
    with pytest.raises(StateError, match=r"training\.epochs was 2 and is 4"):
        train(config, "training.epochs=4")
    # What does not decide the numbers may differ.
    moved = tmp_path / "moved.csv"
    moved.write_bytes((tmp_path / "people.csv").read_bytes())
    assert train(config, f"data.source={moved}", "compare.seeds=[7]").is_finished


def test_changed_data_are_refused(tmp_path):
    config = make_config(tmp_path)
    train(config)
    people = make_cohort()
    people.loc[0, "f1"] += 1
    people.to_csv(tmp_path / "people.csv", index=False)
    with pytest.raises(StateError, match="the contents of data have changed"):
        train(config)


def test_force_deletes_what_the_run_wrote_and_nothing_else(tmp_path):
    config = make_config(tmp_path, splits={"folds": 3})
    train(config)
    own = tmp_path / "run" / "folds" / "0" / "my notes.txt"
    own.write_text("mine")
    (tmp_path / "run" / "paper.docx").write_text("mine")
    run = train(config, "splits.folds=2", force=True)
    assert run.folds == ("0", "1")
    assert len(run.predictions) == 60
    assert not (tmp_path / "run" / "folds" / "2").exists()
    assert own.read_text() == "mine"
    assert (tmp_path / "run" / "paper.docx").exists()


@pytest.mark.parametrize("description", ["{}", '{"command": "compare", "identity": {}}'])
def test_the_folder_of_another_command_is_refused(tmp_path, description):
    config = make_config(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(description)
    with pytest.raises(StateError, match=r"belongs to another run: .*command was .* and is 'fit'"):
        train(config)
    assert [path.name for path in (tmp_path / "run").glob("[!.]*")] == ["run.json"]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_with_files_of_others_is_left_alone(tmp_path, force):
    config = make_config(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "predictions.csv").write_text("mine")
    with pytest.raises(StateError, match=r"'predictions\.csv', which no run wrote"):
        train(config, force=force)
    assert (tmp_path / "run" / "predictions.csv").read_text() == "mine"


def test_two_commands_do_not_work_in_one_folder(tmp_path):
    """A second command starts while the first one trains."""
    config = make_config(tmp_path)
    messages = []

    def start_another(*step: object) -> None:
        for part in () if messages else (None, (1, 2)):
            with pytest.raises(StateError, match="Another command works in the folder") as caught:
                train(config, part=part)
            messages.append(str(caught.value))

    assert train(config, on_progress=start_another).is_finished
    assert messages
