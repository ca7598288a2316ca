"""What can break: each with a clear error, and finished folds intact."""

import json
import resource
import signal

import numpy as np
import pytest

from deconfound.data import files
from deconfound.data.files import only_one, read_checked, write_checked, write_json, write_text
from deconfound.errors import OptionError, RunError
from deconfound.training.run_folder import open_run
from tests.training import tiny


@pytest.fixture
def config(tmp_path):
    return tiny.config(tiny.write(tmp_path), tmp_path / "run", method={"name": "none"})


@pytest.fixture
def broken_off(config, tmp_path, monkeypatch):
    """A run whose second fold was stopped in the middle; the numbers of the first."""
    stop_at = [6]

    def stop(progress):
        stop_at[0] -= "epoch" in progress.text
        if stop_at[0] == 0:
            raise KeyboardInterrupt

    eager = tiny.config(
        tmp_path / "table.csv", tmp_path / "run", method={"name": "none"}, run={"checkpoint_seconds": 0.0}
    )
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        tiny.fit(eager, progress=stop)
    assert (tmp_path / "run" / "fold-0" / "result.json").exists()
    assert (tmp_path / "run" / "fold-1" / "last.ckpt").exists()
    return eager


def first_fold(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "fold-0").iterdir()) if path.is_file()}


def test_a_stopped_run_goes_on_to_the_numbers_of_a_whole_one(broken_off, tmp_path):
    kept = first_fold(tmp_path / "run")
    done = tiny.fit(broken_off)
    whole = tiny.fit(tiny.config(tmp_path / "table.csv", tmp_path / "whole", method={"name": "none"}))
    assert done["folds"] == whole["folds"]
    assert first_fold(tmp_path / "run") == kept
    assert not (tmp_path / "run" / "fold-1" / "last.ckpt").exists()


def test_a_run_whose_rows_are_now_divided_otherwise_does_not_go_on(broken_off, tmp_path, monkeypatch):
    monkeypatch.setattr("deconfound.training.problem.person_codes", lambda *_: np.arange(72)[::-1])
    with pytest.raises(RunError, match="must be divided as when it was started; got other test rows in fold-0"):
        tiny.fit(broken_off)
    monkeypatch.undo()
    assert len(tiny.fit(broken_off)["folds"]) == 2


def test_a_corrupt_checkpoint_is_named_and_finished_folds_stay(broken_off, tmp_path):
    kept = first_fold(tmp_path / "run")
    last = tmp_path / "run" / "fold-1" / "last.ckpt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    with pytest.raises(
        RunError, match=r"last\.ckpt must be as it was written; got content that does not match its digest"
    ):
        tiny.fit(broken_off)
    assert first_fold(tmp_path / "run") == kept
    last.unlink()
    assert len(tiny.fit(broken_off)["folds"]) == 2


@pytest.mark.parametrize("cut", [0, 10, 400])
def test_a_cut_off_checkpoint_is_refused(tmp_path, cut):
    path = tmp_path / "last.ckpt"
    write_checked(path, b"x" * 1000)
    assert read_checked(path) == b"x" * 1000
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(RunError, match="does not match its digest"):
        read_checked(path)


def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(config, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, hard))  # the description fits, a checkpoint does not
        with pytest.raises(RunError, match=r"must be written; got .*Make room or choose another folder"):
            tiny.fit(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert not list((tmp_path / "run").rglob("*.part"))
    assert not list((tmp_path / "run").rglob("result.json"))
    whole = tiny.fit(tiny.config(tmp_path / "table.csv", tmp_path / "whole", method={"name": "none"}))
    assert tiny.fit(config)["folds"] == whole["folds"]


def test_an_old_file_stays_whole_when_a_new_one_cannot_be_written(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_json(path, {"auc": 0.7})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RunError, match=r"results\.json must be written; got No space left on device"):
        write_json(path, {"auc": 0.8})
    monkeypatch.undo()
    assert json.loads(path.read_text()) == {"auc": 0.7}
    assert [item.name for item in tmp_path.iterdir()] == ["results.json"]


def test_another_config_in_the_folder_is_refused_by_key(config, tmp_path):
    tiny.fit(config)
    changed = tiny.config(tmp_path / "table.csv", tmp_path / "run", method={"name": "none"}, training={"lr": 0.5})
    with pytest.raises(RunError, match=r"got training\.lr: 0\.001 then, 0\.5 now"):
        tiny.fit(changed)


def test_changed_data_are_refused(config, tmp_path):
    tiny.fit(config)
    frame = tiny.cohort()
    frame.loc[0, "f0"] += 1
    tiny.write(tmp_path, frame)
    with pytest.raises(RunError, match=r"the data of .* must be those it was started with"):
        tiny.fit(config)


def test_moved_data_and_a_moved_run_are_the_same_run(config, tmp_path):
    results = tiny.fit(config)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    (tmp_path / "table.csv").rename(tmp_path / "other.csv")
    moved = tiny.config(tmp_path / "other.csv", tmp_path / "elsewhere", method={"name": "none"})
    assert tiny.fit(moved)["folds"] == results["folds"]


def test_a_foreign_folder_is_left_alone(config, tmp_path):
    write_text(tmp_path / "run" / "thesis.txt", "mine")
    with pytest.raises(RunError, match="must be empty or hold a run; got a folder with other files"):
        tiny.fit(config)
    assert (tmp_path / "run" / "thesis.txt").read_text() == "mine"


def test_a_missing_file_is_named(config, tmp_path):
    (tmp_path / "table.csv").unlink()
    with pytest.raises(ValueError, match=r"table\.csv must be a file; got nothing there"):
        tiny.fit(config)
    fresh = tiny.config(tiny.write(tmp_path), tmp_path / "run2", method={"name": "none"})
    tiny.fit(fresh)
    (tmp_path / "run2" / "fold-1" / "result.json").write_text("{")
    with pytest.raises(RunError, match=r"fold-1/result\.json must be JSON that can be read"):
        tiny.fit(fresh)


def test_a_folder_is_worked_on_by_one_process(tmp_path):
    def second():
        with only_one(tmp_path / "fold"):
            pass

    with only_one(tmp_path / "fold"), pytest.raises(RunError, match="must be worked on by one process"):
        second()
    second()


def test_a_loss_that_is_not_finite_stops_the_fold_with_advice(tmp_path):
    frame = tiny.cohort()
    frame["f0"] = np.where(np.arange(len(frame)) % 9 == 0, 1e30, frame["f0"])
    options = {
        "training": {"lr": 1e6, "optimizer": "sgd", "epochs": 3},
        "data": {"scale": "none"},
        "method": {"name": "none"},
    }
    with pytest.raises(RunError, match=r"_loss must be finite; got .* Lower training\.lr"):
        tiny.fit(tiny.config(tiny.write(tmp_path, frame), tmp_path / "run", **options))


def test_settings_that_lightning_refuses_are_an_error_of_the_config(config, tmp_path):
    wrong = tiny.config(tmp_path / "table.csv", tmp_path / "run", training={"precision": "7-bit"})
    with pytest.raises(RunError, match="training must have settings that Lightning accepts here"):
        tiny.fit(wrong)


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path):
    table = tiny.write(tmp_path)
    with pytest.raises(RunError, match=r"must be a folder; got a file\. Set run.folder to another place"):
        tiny.fit(tiny.config(table, table))


def test_a_rare_site_is_told_with_its_rows_in_the_table_and_the_key_that_helps(tmp_path):
    frame = tiny.cohort()
    frame.loc[[40], "site"] = "rare"
    frame.loc[5, "dx"] = None
    with pytest.raises(OptionError) as caught:
        tiny.fit(tiny.config(tiny.write(tmp_path, frame), tmp_path / "run"))
    assert "got 'rare' in row 40" in str(caught.value) or "got 'rare' in rows 40" in str(caught.value)
    assert "set design.unseen: mean" in str(caught.value)


def test_infinite_features_and_slips_among_numbers_are_told_before_training(tmp_path):
    frame = tiny.cohort()
    frame.loc[3, "f1"] = np.inf
    frame["age"] = frame["age"].astype(object)
    frame.loc[7, "age"] = "seventy"
    with pytest.raises(OptionError) as caught:
        tiny.fit(tiny.config(tiny.write(tmp_path, frame), tmp_path / "run"))
    assert "samples must be finite; got infinite values in row 3, in 1 column: f1 (1)." in str(caught.value)
    assert "got 'seventy' in row 7 among numbers" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_comparison_given_as_a_run_is_told_with_one_of_its_runs(tmp_path):
    (tmp_path / "pmdn-seed-0").mkdir()
    write_json(tmp_path / "pmdn-seed-0" / "run.json", {})
    with pytest.raises(RunError, match=r"got those of 1 runs\. Give one of them, such as .*pmdn-seed-0"):
        open_run(tmp_path)
