"""Runs under attack: data that change, processes that die or meet, disks and folders that refuse."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from deconfound import __version__
from deconfound.cli import app
from deconfound.cli.options import complete_methods, complete_override
from deconfound.data.files import only_one
from deconfound.errors import RunError
from deconfound.training import predict
from deconfound.training.jobs import open_runs, plan
from deconfound.training.tasks import Task, classes_of, performance
from deconfound.training.workers import run_job
from tests.training import tiny
from tests.training.children import exit_code_of

NONE = {"method": {"name": "none"}, "training": {"epochs": 2}}


def overwrite(path, frame):
    """Other values in the same file, while its old time of change is kept."""
    about = path.stat()
    changed = frame.assign(f0=frame["f0"] + 1)
    changed.to_csv(path, index=False)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def test_data_that_are_overwritten_between_two_folds_are_refused(tmp_path):
    frame = tiny.cohort()
    path = tiny.write(tmp_path, frame)

    def after_the_first_fold(progress):
        if progress.text == "1 of 2 folds":
            overwrite(path, frame)

    with pytest.raises(RunError, match=r"run fold 1: the data of .*run must be those it was started with"):
        tiny.fit(tiny.config(path, tmp_path / "run", **NONE), progress=after_the_first_fold)
    assert not (tmp_path / "run" / "results.json").exists()
    assert not (tmp_path / "run" / "fold-1" / "result.json").exists()


def test_data_that_are_overwritten_while_a_fold_reads_them_are_refused(tmp_path):
    frame = tiny.cohort()
    table = tiny.write(tmp_path, frame[["id", "dx", "age", "sex", "site"]])
    values = frame[[f"f{k}" for k in range(6)]].to_numpy(np.float32)
    np.save(tmp_path / "x.npy", values)

    def in_the_first_fold(progress):
        if "epoch 1" in progress.text:
            np.lib.format.open_memmap(tmp_path / "x.npy", mode="r+")[:] += 1  # in place: readers see it at once

    config = tiny.config(tmp_path / "x.npy", tmp_path / "run", data={"table": str(table)}, **NONE)
    with pytest.raises(RunError, match=r"fold 0: the data of .*run must be those it was started with"):
        tiny.fit(config, progress=in_the_first_fold)
    assert not list((tmp_path / "run").rglob("result.json"))


def test_a_job_that_waited_in_a_queue_refuses_data_that_changed_meanwhile(tmp_path):
    frame = tiny.cohort()
    path = tiny.write(tmp_path, frame)
    jobs, _ = plan(open_runs([tiny.config(path, tmp_path / "run", **NONE)]))
    overwrite(path, frame)
    open_runs([tiny.config(path, tmp_path / "other", **NONE)])  # so that no problem of the old data is open
    assert "must be those it was started with; got files with other content" in run_job(jobs[0]).error


def _die_in_the_writes(config, write, when):
    rename, count = os.replace, [0]

    def die_at(source, target):
        count[0] += 1
        if count[0] == write and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)
        if count[0] == write:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = die_at
    tiny.fit(config)


@pytest.mark.parametrize("write", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_in_the_first_writes_of_a_folder_leaves_it_usable(tmp_path, write, when):
    config = tiny.config(tiny.write(tmp_path), tmp_path / "run", **NONE)
    assert exit_code_of(_die_in_the_writes, config, write, when) == -signal.SIGKILL
    assert (tmp_path / "run").exists()
    assert len(tiny.fit(config)["folds"]) == 2


def test_a_second_fit_on_a_folder_is_refused_at_once_and_the_first_one_ends(tmp_path):
    config = tiny.config(tiny.write(tmp_path), tmp_path / "run", **NONE)
    refused = []

    def second(progress):
        if progress.stage == "training" and not refused:
            refused.append(exit_code_of(_exit_where_refused, config))

    assert len(tiny.fit(config, progress=second)["folds"]) == 2
    assert refused == [7]
    assert (tmp_path / "run" / "results.json").exists()


def _exit_where_refused(config):
    try:
        tiny.fit(config)
    except RunError as error:
        os._exit(7 if "one process" in str(error) else 8)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def free(folder):
    """Whether no process holds a folder; the last thread of one that ends may do so a little longer than it lives."""
    try:
        with only_one(folder):
            return True
    except RunError:
        return False


def endless(outputs, shape, folder):
    """A network whose training does not end by itself; it leaves its process number."""
    (Path(folder) / f"{os.getpid()}.pid").write_text("")
    return torch.nn.Linear(shape[0], outputs)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("how", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_a_killed_command_leaves_no_process_behind(tmp_path, how):
    content = tiny.settings(
        tiny.write(tmp_path), tmp_path / "run", method={"name": "none"}, training={"epochs": 10**6},
        network={"name": "tests.training.test_hardening:endless", "options": {"folder": str(tmp_path)}},
    )  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "deconfound.cli", "fit", str(tmp_path / "config.yaml"), "--jobs", "2"]
    path = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, **quiet)
    try:
        wait_until(lambda: len(list(tmp_path.glob("*.pid"))) >= 2 or process.poll() is not None)
        workers = [int(file.stem) for file in tmp_path.glob("*.pid") if int(file.stem) != process.pid]
        assert len(workers) == 2
        process.send_signal(how)
        process.wait(30)
        wait_until(lambda: not any(map(alive, workers)), 20)
    finally:
        for pid in (process.pid, *(int(file.stem) for file in tmp_path.glob("*.pid"))):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(map(free, [tmp_path / "run", *(tmp_path / "run").glob("fold-*")])), 20)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    config = tiny.config(tiny.write(tmp_path), "/proc/run", **NONE)
    with pytest.raises(RunError, match="must be written; got No such file"):
        tiny.fit(config)


def brittle(outputs, shape):
    """A network without an answer for extreme inputs."""

    class Net(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + (100 - x[:, :1]).sqrt() * 0

    return Net(shape[0], outputs)


def test_rows_without_a_finite_score_have_no_class_and_are_counted(tmp_path):
    binary = Task("binary", ("dx",), (("a", "b"),))
    scores = torch.tensor([[0.2], [float("nan")], [0.9], [float("inf")]]).double()
    assert classes_of(binary, scores) == {"dx": ["a", "", "b", ""]}
    classes = Task("multiclass", ("dx",), (("a", "b"),))
    assert classes_of(classes, torch.tensor([[0.1, 0.9], [float("nan"), 0.4]])) == {"dx": ["b", ""]}
    logits, codes = torch.tensor([[-1.0], [float("nan")], [2.0], [1.0]]), np.array([[0.0], [1.0], [1.0], [0.0]])
    assert performance(binary, logits, codes) == performance(binary, logits[[0, 2, 3]], codes[[0, 2, 3]])
    network = {"network": {"name": "tests.training.test_hardening:brittle", "options": {}}, "data": {"scale": "none"}}
    tiny.fit(tiny.config(tiny.write(tmp_path), tmp_path / "run", **NONE, **network))
    frame = tiny.cohort().head(4)
    frame.loc[1, "f0"] = 1e6
    found = predict(tmp_path / "run", tiny.write(tmp_path, frame, "new.csv"), trust=True)
    assert found.without_score == int((~found.scores.isfinite()).any(1).sum()) == 1
    line = found.to_csv().split("\n")[2].split(",")
    assert (line[0], line[-1]) == ("0001", "")


def test_the_command_tells_its_version():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"deconfound {__version__}\n")


def test_method_names_are_completed():
    assert complete_methods("none,pm") == ["none,pmdn", "none,pmdn-alternating", "none,pmdn-joint"]
    assert complete_override("method=md") == ["method=mdn"]
    assert complete_override("training") == []


def test_piped_output_has_plain_lines_with_elapsed_and_remaining_time(tmp_path, monkeypatch):
    monkeypatch.setattr("deconfound.cli.progress.LINE_EVERY", 0.0)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tiny.settings(tiny.write(tmp_path), tmp_path / "run", **NONE)))
    done = CliRunner().invoke(app, ["fit", str(tmp_path / "config.yaml")])
    assert done.exit_code == 0, done.output
    lines = done.output.split("\n")
    assert lines[0] == "reading: reading the data"
    assert lines[1] == "training: 0 of 2 folds are finished"
    assert any("run fold 0 · epoch 1 · validation loss" in line and "remaining about 0:" in line for line in lines)
    assert any(line.startswith("training: 2 of 2 folds · elapsed 0:0") for line in lines)
    assert "\x1b" not in done.output


def test_a_run_that_was_moved_or_whose_result_is_gone_is_trained_again(tmp_path):
    config = tiny.config(tiny.write(tmp_path), tmp_path / "run", **NONE)
    before = tiny.fit(config)
    (tmp_path / "run" / "fold-0" / "result.json").unlink()
    (tmp_path / "run" / "config.yaml").unlink()
    assert tiny.fit(config)["folds"] == before["folds"]
    assert json.loads((tmp_path / "run" / "results.json").read_text())["folds"] == before["folds"]
