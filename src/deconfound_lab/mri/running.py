"""The paper's MRI experiment on the simulated cohort: every arm, batch size and fold, in parts that can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deconfound.data.files import write_json
from deconfound.errors import DeconfoundError
from deconfound.training.origin import provenance
from deconfound.training.splits import Fold, kfold, person_codes, stratum_codes
from deconfound_lab.cohort.cohort import Cohort, simulate_cohort
from deconfound_lab.mri.fold import Trainer, Volumes, load
from deconfound_lab.mri.maps import FILE as MAPS
from deconfound_lab.mri.maps import save_maps, train_maps, write_files
from deconfound_lab.mri.page import RESULTS, remake
from deconfound_lab.mri.plan import ARMS, FULL, QUICK, Plan
from deconfound_lab.mri.results import OURS, Results
from deconfound_lab.mri.store import (
    Cell,
    claim,
    held,
    name_of,
    place_of,
    read_failures,
    read_kept,
    write_failure,
    write_training,
)
from deconfound_lab.mri.summary import SHOWN_BATCH, summarise

Progress = Callable[[str, int, int], None]


def run_mri(
    quick: bool = False,
    out: str | Path = "runs/mri",
    device: str | None = None,
    progress: Progress | None = None,
    *,
    plan: Plan | None = None,
    minutes: float | None = None,
    cache: str | Path | None = None,
) -> Results | None:
    """Train what is not yet trained, and summarise what is.

    A training that fails is kept as such and tried again by the next call. The folder may be copied: a call on another
    machine goes on there. Several processes may work on one folder: each takes trainings that no other is at. When all
    trainings are there, the maps of `run_maps` are made too.

    Args:
        quick: 32³, a smaller network, one batch size, one fold: minutes on two cores, instead of all of it on a GPU.
        out: Everything is written below it; a second call with the same plan goes on where the first stopped.
        device: "cuda" where there is one, by default.
        progress: Called with (what, done, total) before each training.
        plan: Used instead of the full or the quick one.
        minutes: No training is started after so many, none at all with 0; the next call goes on.
        cache: Where the simulated volumes are kept.

    Returns:
        The results as far as they are there, also written below `out` with tables, figures and a page; None where no
        training is finished.
    """
    until = None if minutes is None else time.monotonic() + 60 * minutes
    plan = plan or (QUICK if quick else FULL)
    place = _device(device)
    out = Path(out)
    cohort, independent = simulate(plan, place)
    claim(out, plan, cohort)
    done = read_kept(out, plan)
    todo = [cell for cell in plan.cells() if cell not in done]
    wants_maps = OURS in plan.arms and not (out / MAPS).exists()
    if (todo or wants_maps) and _time_left(until):
        volumes, free = (_loaded(each, place, cache, progress) for each in (cohort, independent))
        _train(plan, out, volumes, free, divide(plan, cohort), todo, cohort.fingerprint, until, progress)
        done = read_kept(out, plan)
        if progress is not None:
            progress("trainings", len(done), len(plan.cells()))
        if wants_maps and len(done) == len(plan.cells()) and _time_left(until):
            with held(out, "maps") as mine:
                if mine and not (out / MAPS).exists():
                    _make_maps(plan, out, volumes, cohort, progress)
    if not done:
        return None
    results = summarise(plan, cohort, independent, done, read_failures(out, plan))
    write_json(out / RESULTS, results.to_dict())
    return remake(out)  # from the file, so that what is made again later is the same


def run_maps(
    quick: bool = False,
    out: str | Path = "runs/mri",
    device: str | None = None,
    progress: Progress | None = None,
    *,
    plan: Plan | None = None,
    cache: str | Path | None = None,
) -> list[Path]:
    """Train ours with a layer in the first convolutional block, and write its coefficients as maps.

    Args:
        quick: At 32³ instead of 64³.
        out: `maps.npz` and `maps.png` are written there, and `maps/*.nii.gz` where nibabel is installed.
        device: "cuda" where there is one, by default.
        progress: Called once, with (what, done, total).
        plan: Used instead of the full or the quick one.
        cache: Where the simulated volumes are kept.
    """
    plan, place = plan or (QUICK if quick else FULL), _device(device)
    cohort, _ = simulate(plan, place)
    _make_maps(plan, Path(out), _loaded(cohort, place, cache, progress), cohort, progress)
    return [Path(out) / MAPS, *write_files(Path(out))]


def simulate(plan: Plan, device: torch.device) -> tuple[Cohort, Cohort]:
    """The cohort, and people of another seed in whom labels and confounds are independent."""
    people = None if plan.people is None else 4 * -(-plan.people // 4)
    options: dict[str, Any] = {"anatomy": plan.anatomy, "device": device}
    return (
        simulate_cohort(plan.size, plan.seed, people=plan.people, **options),
        simulate_cohort(plan.size, plan.seed + 1, independent=True, people=people, **options),
    )


def divide(plan: Plan, cohort: Cohort) -> tuple[Fold, ...]:
    """Folds with the same share of every site and group."""
    strata = stratum_codes([cohort.table["site"], cohort.table["group"]])
    usable = np.ones(len(cohort), dtype=bool)
    people = person_codes(cohort.table, "person", len(strata))
    return kfold(strata, people, folds=plan.folds, seed=plan.seed, rows=np.flatnonzero(usable))


def _train(
    plan: Plan,
    out: Path,
    volumes: Volumes,
    free: Volumes,
    divided: Sequence[Fold],
    todo: Sequence[Cell],
    fingerprint: str,
    until: float | None,
    progress: Progress | None,
) -> None:
    source, total = provenance(plan.seed, fingerprint), len(plan.cells())
    for number, cell in enumerate(todo):
        if not _time_left(until):
            return
        with held(out, name_of(cell)) as mine:
            if not mine or place_of(out, cell).exists():
                continue
            if progress is not None:
                progress(name_of(cell), total - len(todo) + number, total)
            batch, fold, arm = cell
            trainer = Trainer(plan, volumes, free, divided[fold], seed=1000 * plan.seed + fold)
            try:
                outcome = trainer.run(ARMS[arm], batch)
            except (DeconfoundError, RuntimeError) as error:  # one training must not take the others with it
                write_failure(out, cell, error)
            else:
                write_training(out, cell, outcome, source)


def _make_maps(plan: Plan, out: Path, volumes: Volumes, cohort: Cohort, progress: Progress | None) -> None:
    if progress is not None:
        progress("maps of the coefficients", 0, 1)
    batch = SHOWN_BATCH if SHOWN_BATCH in plan.batch_sizes else plan.batch_sizes[0]
    # Where the confounds are is learned well before the labels are.
    third = replace(plan, epochs=-(-plan.epochs // 3), least_steps=plan.least_steps // 3)
    trainer = Trainer(third, volumes, None, divide(plan, cohort)[0], seed=1000 * plan.seed)
    save_maps(train_maps(trainer, batch, cohort.fingerprint), out)
    if progress is not None:
        progress("maps of the coefficients", 1, 1)


def _loaded(cohort: Cohort, place: torch.device, cache: str | Path | None, progress: Progress | None) -> Volumes:
    return load(cohort.keep(cache, progress=progress is not None), place)


def _device(name: str | None) -> torch.device:
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def _time_left(until: float | None) -> bool:
    return until is None or time.monotonic() < until
