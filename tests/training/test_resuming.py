"""A run that is killed at any moment and started again ends with the numbers of an unbroken run."""

import json
import os
import random
import signal
import stat

import numpy as np
import pytest

from deconfound.training import engine
from tests.training import tiny
from tests.training.children import exit_code_of


def numbers(folder):
    """Everything in results.json that training decides."""
    content = json.loads((folder / "results.json").read_text())
    return [content["folds"], content["metrics"], content["identity"]]


def predictions(folder):
    return [path.read_text() for path in sorted(folder.glob("fold-*/predictions.csv"))]


def features(folder):
    return [np.load(path)["features"].tobytes() for path in sorted(folder.glob("fold-*/features.npz"))]


def in_a_child(config, kill_at, note):
    """Run in a child that sends itself SIGKILL at the given event; which event it was, or None."""
    code = exit_code_of(_run, config, kill_at, note)
    assert code in (0, -signal.SIGKILL)
    return note.read_text() if code else None


def _run(config, kill_at, note):
    _arm(kill_at, note)
    tiny.fit(config)


def _arm(kill_at, note):
    """Count steps of training and of writing; at the chosen one, die: while writing with half of the file there."""
    left = [kill_at]

    def happen(event, before=lambda: None):
        left[0] -= 1
        if left[0] == 0:
            before()
            note.write_text(event)
            os.kill(os.getpid(), signal.SIGKILL)

    flush, rename, step = os.fsync, os.replace, engine.Engine.training_step

    def fsync(handle):
        about = os.fstat(handle)
        if stat.S_ISREG(about.st_mode):
            happen("half a file", lambda: os.ftruncate(handle, about.st_size // 2))
        flush(handle)

    def replace(source, target):
        happen(f"before {os.path.basename(target)}")
        rename(source, target)
        happen(f"after {os.path.basename(target)}")

    def training_step(self, batch, batch_idx):
        happen("a step")
        return step(self, batch, batch_idx)

    os.fsync, os.replace, engine.Engine.training_step = fsync, replace, training_step


@pytest.mark.parametrize(("method", "kills"), [("pmdn", 20), ("pmdn-alternating", 3)])
def test_kills_change_no_number(tmp_path, method, kills):
    path = tiny.write(tmp_path)
    options = {"method": {"name": method}, "training": {"epochs": 6 + kills}}
    tiny.fit(tiny.config(path, tmp_path / "whole", **options))
    run = {"checkpoint_seconds": 0.0}
    killed = tiny.config(path, tmp_path / "killed", run=run, **options)
    draw = random.Random(5)
    events = []
    for _ in range(kills):
        event = in_a_child(killed, draw.randint(4, 22), tmp_path / "event")
        assert event is not None, f"the run ended after {len(events)} kills"
        events.append(event)
    if kills == 20:
        assert {"half a file", "a step"} <= set(events)
        assert any("last.ckpt" in event for event in events)
    tiny.fit(killed)
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")
    assert predictions(tmp_path / "killed") == predictions(tmp_path / "whole")
    assert features(tmp_path / "killed") == features(tmp_path / "whole")
    left = [path.name for path in (tmp_path / "killed").rglob(".*.part")]
    assert left == []
