"""The paper's MRI experiment on the simulated cohort: every arm, batch size and fold, in parts that can be resumed."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deconfound.data.cohort import Cohort, simulate_cohort
from deconfound.errors import RunError
from deconfound.experiments.mri.drawing import draw_tsne
from deconfound.experiments.mri.fold import Outcome, Trainer, Volumes, load
from deconfound.experiments.mri.plan import ARMS, FULL, QUICK, Plan
from deconfound.experiments.mri.results import Results, summarise
from deconfound.experiments.mri.tables import table_one_text, table_two_text
from deconfound.training.config import Splits
from deconfound.training.files import read_json, write_bytes, write_json, write_text
from deconfound.training.provenance import provenance
from deconfound.training.splits import Fold, folds, stratum_codes

ABOUT, RESULTS = "experiment.json", "results.json"
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
    """Train what is not yet trained, and summarise when all of it is.

    Args:
        quick: 32³, a smaller network, one batch size, one fold: minutes on two cores, instead of all of it on a GPU.
        out: Everything is written below it; a second call with the same plan goes on where the first stopped.
        device: "cuda" where there is one, by default.
        progress: Called with (what, done, total) before each training.
        plan: Used instead of the full or the quick one.
        minutes: No training is started after so many; the next call goes on.
        cache: Where the simulated volumes are kept.

    Returns:
        The results, also written below `out` with both tables and the t-SNE figure; None where trainings are left.
    """
    started = time.monotonic()
    plan = plan or (QUICK if quick else FULL)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    out = Path(out)
    cohort, independent = simulate(plan, place)
    _claim(out, plan, cohort)
    todo = [cell for cell in plan.cells() if not _path(out, cell).exists()]
    total = len(plan.cells())
    if todo:
        for each in (cohort, independent):
            each.keep(cache, progress=progress is not None)
        volumes, free = load(cohort, place), load(independent, place)
        divided = divide(plan, cohort)
        for number, cell in enumerate(todo):
            if minutes is not None and time.monotonic() - started > 60 * minutes:
                return None
            batch, fold, arm = cell
            if progress is not None:
                progress(f"{arm}, batch {batch}, fold {fold}", total - len(todo) + number, total)
            _train(plan, volumes, free, divided[fold], cell, _path(out, cell))
    outcomes = {cell: read_outcome(_path(out, cell)) for cell in plan.cells()}
    results = summarise(plan, cohort, independent, outcomes)
    write_json(out / RESULTS, {**read_json(out / ABOUT), "results": results.to_dict()})
    write_text(out / "table1.md", table_one_text(results))
    write_text(out / "table2.md", table_two_text(results))
    shown = 80 if 80 in plan.batch_sizes else plan.batch_sizes[0]
    arms = [name for name in ("mdn", "pmdn", "pmdn-before") if name in plan.arms]
    if arms:
        write_bytes(out / "tsne.png", draw_tsne(cohort, {arm: outcomes[shown, 0, arm] for arm in arms}, shown))
    return results


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
    return folds(Splits(folds=plan.folds), cohort.table, usable, strata, "person", plan.seed)


def read_outcome(path: Path) -> Outcome:
    """A finished training."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            about = json.loads(str(kept["about"]))
            arrays = {name: kept[name] for name in ("rows", "logits", "features", "independent")}
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path} must be a finished training; got {error}. Delete it to have it made again.") from error
    return Outcome(**arrays, **about)


def _train(plan: Plan, volumes: Volumes, free: Volumes, fold: Fold, cell: tuple[int, int, str], path: Path) -> None:
    batch, number, arm = cell
    outcome = Trainer(plan, volumes, free, fold, seed=1000 * plan.seed + number).run(ARMS[arm], batch)
    about = {"history": outcome.history, "best": outcome.best, "seconds": outcome.seconds}
    content = io.BytesIO()
    arrays = {name: getattr(outcome, name) for name in ("rows", "logits", "features", "independent")}
    np.savez_compressed(content, about=np.array(json.dumps(about)), **arrays)
    write_bytes(path, content.getvalue())


def _claim(out: Path, plan: Plan, cohort: Cohort) -> None:
    """Mark the folder as this plan's, or refuse one that is another's."""
    own = {"plan": plan.to_dict(), "data": cohort.fingerprint}
    if (out / ABOUT).exists():
        found = read_json(out / ABOUT)
        if any(found.get(key) != value for key, value in own.items()):
            raise RunError(
                f"{out} must hold this experiment; got one with another plan or cohort. Choose another folder."
            )
        return
    write_json(out / ABOUT, {**own, "provenance": provenance(plan.seed, cohort.fingerprint)})


def _path(out: Path, cell: tuple[int, int, str]) -> Path:
    batch, fold, arm = cell
    return out / "trainings" / f"{arm}-batch{batch}-fold{fold}.npz"
