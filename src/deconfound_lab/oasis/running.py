"""OASIS-1: every arm, fold and member, in parts that can be resumed and shared between processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deconfound.data.files import read_json, write_json
from deconfound.errors import OptionError, RunError
from deconfound.training.origin import provenance
from deconfound_lab.mri.fold import Trainer
from deconfound_lab.oasis.member import read_outcome, train_member, trainer_of, write_outcome
from deconfound_lab.oasis.people import Scanned, on_device, read_people
from deconfound_lab.oasis.plan import FULL, QUICK, Plan
from deconfound_lab.oasis.pretraining import pretrain
from deconfound_lab.oasis.summary import summarise

ABOUT, RESULTS = "experiment.json", "results.json"
Progress = Callable[[str, int, int], None]
Cell = tuple[int, str, int]


def run_oasis(
    data: str | Path | Scanned,
    quick: bool = False,
    out: str | Path = "runs/oasis",
    device: str | None = None,
    progress: Progress | None = None,
    *,
    plan: Plan | None = None,
    minutes: float | None = None,
    jobs: int = 1,
) -> dict[str, Any] | None:
    """Train what is not yet trained, and measure when all of it is.

    Args:
        data: The BIDS folder of OASIS-1, or a file that `write_people` made from it.
        quick: Smaller volumes and networks, two arms, for two cores; instead of all of it on a GPU.
        out: Everything is written below it; a second call with the same plan goes on where the first stopped.
        device: "cuda" where there is one, by default.
        progress: Called with (what, done, total) before each training.
        plan: Used instead of the full or the quick one.
        minutes: No training is started after so many; the next call goes on.
        jobs: Processes that train side by side on the device.

    Returns:
        The content of `results.json`, which is also written below `out`; None where trainings are left.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    plan = plan or (QUICK if quick else FULL)
    if jobs < 1:
        raise OptionError(f"jobs must be at least 1; got {jobs}.")
    place, out = device or ("cuda" if torch.cuda.is_available() else "cpu"), Path(out)
    people = data if isinstance(data, Scanned) else read_people(data, progress is not None)
    claim(out, plan, people)
    cells = plan.cells()
    todo = [cell for cell in cells if not path_of(out, cell).exists()]
    if todo and jobs == 1:
        train_cells(plan, people, out, place, todo, end, progress, len(cells))
    elif todo:
        _side_by_side(plan, people, out, place, todo, None if end is None else end - time.monotonic(), jobs)
    if any(not path_of(out, cell).exists() for cell in cells):
        return None
    outcomes = {cell: read_outcome(path_of(out, cell)) for cell in cells}
    results = {**read_json(out / ABOUT), **summarise(plan, people, outcomes)}
    write_json(out / RESULTS, results)
    return results


def train_cells(
    plan: Plan, people: Scanned, out: Path, device: str, cells: Sequence[Cell], end: float | None = None,
    progress: Progress | None = None, total: int | None = None,
) -> None:  # fmt: skip
    """Train some cells, one after the other, until `end` on the monotonic clock."""
    volumes = on_device(people, plan.size, torch.device(device), plan.task)
    total = total or len(cells)
    starts: dict[tuple[int, int], tuple[Trainer, dict[str, Tensor] | None]] = {}
    for number, cell in enumerate(cells):
        if end is not None and time.monotonic() > end:
            return
        member, arm, fold = cell
        if progress is not None:
            progress(f"{arm}, fold {fold}, member {member}", total - len(cells) + number, total)
        if (fold, member) not in starts:
            trainer = trainer_of(plan, volumes, fold, member)
            starts[fold, member] = trainer, pretrain(plan, trainer) if plan.pretrain else None
        trainer, start = starts[fold, member]
        write_outcome(train_member(plan, trainer, arm, start), path_of(out, cell))


def _side_by_side(
    plan: Plan, people: Scanned, out: Path, device: str, cells: Sequence[Cell], seconds: float | None, jobs: int
) -> None:
    """Several processes, each with some folds and members, whose arms share a start; one leaves most of a GPU idle."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    shares: list[list[Cell]] = [[] for _ in range(jobs)]
    for member, arm, fold in cells:
        shares[(member * plan.folds + fold) % jobs].append((member, arm, fold))
    made = [context.Process(target=_work, args=(plan, people, out, device, part, seconds)) for part in shares if part]
    for process in made:
        process.start()
    for process in made:
        process.join()
    failed = [process.exitcode for process in made if process.exitcode]
    if failed:
        raise RunError(
            f"every process must end well; got exit code {failed[0]} from {len(failed)} of {len(made)}. What they "
            "printed says why; what is finished stays."
        )


def _work(plan: Plan, people: Scanned, out: Path, device: str, cells: Sequence[Cell], seconds: float | None) -> None:
    torch.set_num_threads(1)
    train_cells(plan, people, out, device, cells, None if seconds is None else time.monotonic() + seconds)


def claim(out: Path, plan: Plan, people: Scanned) -> None:
    """Mark the folder as this plan's, or refuse one that is another's."""
    own = {"plan": plan.to_dict(), "data": people.fingerprint}
    if (out / ABOUT).exists():
        found = read_json(out / ABOUT)
        if any(found.get(key) != value for key, value in own.items()):
            raise RunError(
                f"{out} must hold this experiment; got one with another plan or data. Choose another folder."
            )
        return
    write_json(out / ABOUT, {**own, "provenance": provenance(plan.seed, people.fingerprint)})


def path_of(out: Path, cell: Cell) -> Path:
    """Where a training is kept."""
    member, arm, fold = cell
    return out / "trainings" / f"{arm}-fold{fold}-member{member}.npz"
