"""Run the cells of a grid, several seeds side by side, and keep every finished cell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from deconfound.data.files import read_json, write_json
from deconfound.errors import DeconfoundError, RunError
from deconfound.training.origin import provenance
from deconfound_lab.synthetic.grid import TRAINING_IMAGES, Cell
from deconfound_lab.synthetic.learner import Learner
from deconfound_lab.synthetic.measures import gap, measure
from deconfound_lab.synthetic.problems import TEST_PER_GROUP, make_problem
from deconfound_lab.synthetic.stages import run_stages

RESULTS = "results.json"
# A validation costs as much as a large step, so it comes at most every so many steps.
VALIDATE_EVERY = 5
Tick = Callable[[int], None]


def run_grid(
    cells: Sequence[Cell],
    folder: Path,
    device: str,
    *,
    seconds: float | None = None,
    test_per_group: int = TEST_PER_GROUP,
    started: Callable[[Cell], Tick] | None = None,
) -> dict[str, Any]:
    """Run what is not in the folder's `results.json` yet, and return all of it.

    Args:
        cells: The grid.
        folder: Where `results.json` is, or will be.
        device: "cpu" or "cuda".
        seconds: Start no further cell after so long; the same call goes on later.
        test_per_group: Test images in each group.
        started: Called before each cell; what it returns is called with the number of steps done.
    """
    path = folder / RESULTS
    empty = {"test_per_group": test_per_group, "provenance": [], "cells": [], "failures": {}}
    content: dict[str, Any] = read_json(path) if path.exists() else empty
    if content["test_per_group"] != test_per_group:
        raise RunError(
            f"{path} must be of the same experiment; got test sets of {2 * content['test_per_group']} images where "
            f"{2 * test_per_group} are asked for. Choose another folder."
        )
    done = {Cell(**{**cell["cell"], "seeds": (), "stages": _stages(cell["cell"])}).key for cell in content["cells"]}
    begin, source = time.monotonic(), provenance(0, "")
    for cell in cells:
        if cell.key in done:
            continue
        if seconds is not None and time.monotonic() - begin > seconds:
            break
        tick = started(cell) if started is not None else _silent
        if source not in content["provenance"]:
            content["provenance"].append(source)
        try:
            result = run_cell(cell, torch.device(device), tick, test_per_group)
        except (DeconfoundError, RuntimeError) as error:  # one cell must not take the others with it
            content["failures"][cell.key] = str(error).strip().splitlines()[0]
        else:
            content["failures"].pop(cell.key, None)
            content["cells"].append({**result, "provenance": content["provenance"].index(source)})
        write_json(path, content)
    return content


def run_cell(cell: Cell, device: torch.device, tick: Tick, test_per_group: int = TEST_PER_GROUP) -> dict[str, Any]:
    """Train every seed of a cell and measure it."""
    began = time.monotonic()
    if cell.stages:
        seeds = [run_stages(cell, seed, device, tick, test_per_group) for seed in cell.seeds]
    else:
        seeds = _run_seeds(cell, device, tick, test_per_group)
    return {"cell": cell.to_dict(), "seeds": seeds, "seconds": round(time.monotonic() - began, 1)}


def _run_seeds(cell: Cell, device: torch.device, tick: Tick, test_per_group: int) -> list[dict[str, Any]]:
    last = max(cell.steps, cell.long)
    learners = [
        Learner(cell, seed, make_problem(cell.problem, seed, device, test_per_group=test_per_group), last)
        for seed in cell.seeds
    ]
    every = max(VALIDATE_EVERY, TRAINING_IMAGES // cell.batch)
    measured: list[dict[str, Any]] = [{"seed": seed} for seed in cell.seeds]
    for step in range(1, last + 1):
        for learner in learners:
            learner.step()
        if step % every == 0 or step in (cell.steps, last):
            for learner in learners:
                learner.validate()
        if step % 50 == 0 or step == last:
            _wait(device)
            tick(step)
        if step == cell.steps:
            for learner, result in zip(learners, measured, strict=True):
                result.update(_measured(learner))
        if step == last and cell.long:
            for learner, result in zip(learners, measured, strict=True):
                learner.load(learner.last)
                result["long"] = measure(learner)
    return measured


def _measured(learner: Learner) -> dict[str, Any]:
    """The network of the best validation loss, and the last one; training then goes on as it was."""
    _wait(learner.device)
    now = learner.copied()
    found: dict[str, Any] = {"best_step": int(learner.best_step), "validation_loss": float(learner.best_loss)}
    for name, state in (("last", learner.last), ("best", learner.best)):
        learner.load(state)
        found[name] = measure(learner)
    found["gap"] = gap(learner)
    learner.load(now)
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _stages(cell: dict[str, Any]) -> Any:
    return tuple(tuple(tuple(each) for each in stage) for stage in cell["stages"])


def _silent(step: int) -> None:
    """No progress is shown."""
