"""`fit`: from a config to folds on disk, their predictions, and an audit."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import pandas as pd

from deconfound.auditing import Audit
from deconfound.auditing import audit as audit_outputs
from deconfound.data import OnProgress, Samples
from deconfound.design import source_columns
from deconfound.errors import DeconfoundError, StateError
from deconfound.runs import folder as files
from deconfound.runs.config import Config
from deconfound.runs.folder import FoldFolder, RunFolder, read_json, write_json, write_whole
from deconfound.runs.jobs import check_jobs, make_tasks, run_folds
from deconfound.runs.page import render_run
from deconfound.runs.problem import Problem, prepare
from deconfound.runs.run import Run
from deconfound.table import read_table


def fit(
    config: str | os.PathLike[str] | Mapping[str, Any] | Config,
    *overrides: str,
    data: Samples | None = None,
    jobs: int = 1,
    scheduler: str | None = None,
    part: tuple[int, int] | None = None,
    force: bool = False,
    audit: bool = True,
    on_progress: OnProgress | None = None,
) -> Run:
    """Train the folds of a config, and audit their predictions for people they have not seen.

    All results go to `run.folder`. A run that was stopped, killed or hit by a full disk goes on
    with the same call, and reaches the numbers of an undisturbed run. Finished folds are not
    repeated; folds that failed are tried again.

    Args:
        config: A YAML file, a mapping of sections, or a `Config`.
        *overrides: Changes such as "training.epochs=5" or "method=none".
        data: The samples, if they do not come from `data.source`.
        jobs: The number of processes that train folds, each with one thread if there are several.
        scheduler: The address of a Dask scheduler, "tcp://…", whose workers train the folds.
        part: `(3, 20)` trains the third of twenty parts of the folds, so that the array job of a
            cluster shares them. The last part to end writes the results.
        force: Whether an earlier run in the folder is deleted first.
        audit: Whether to measure what is left of the confounds.
        on_progress: Called with the number of finished epochs, that of all, and a text.

    Raises:
        OptionError: Lists all faults of the config, with the nearest keys, columns and names.
        TableError: Lists all faults of the table.
        StateError: The folder holds another run, no fold could be trained, or the disk is full.

    Example:
        >>> import tempfile, deconfound as dc
        >>> from deconfound.data import open_samples
        >>> from deconfound.runs import fit
        >>> x, ill, people = dc.example("heart")
        >>> config = {
        ...     "data": {"labels": ["ill"]},
        ...     "design": {"confounds": ["age", "sex", "hospital"]},
        ...     "training": {"epochs": 2},
        ...     "splits": {"folds": 2},
        ...     "run": {"folder": tempfile.mkdtemp()},
        ... }
        >>> run = fit(config, data=open_samples(x, people), audit=False)
        >>> len(run.predictions), run.is_finished
        (920, True)
    """
    check_jobs(jobs, part)
    settings = Config.load(config, *overrides, data=data)
    problem = prepare(settings, data, on_progress)
    folder = RunFolder(str(settings.run.folder))
    with folder.lock(part):
        folder.claim(describe_run(problem), force)
        run_folds(make_tasks(problem, folder.path), problem, jobs, scheduler, part, on_progress)
        run = Run.load(folder.path)
        if len(run.failures) == len(run.folds):
            reasons = "\n".join(dict.fromkeys(run.failures.values()))
            raise StateError(f"All {len(run.folds)} folds failed: {reasons}")
        is_open = len(run.finished) + len(run.failures) < len(run.folds)
        is_reported = (folder.path / files.REPORT).exists() and bool(run.metrics)
        if is_open or (is_reported and (run.audit is not None or not audit)):
            return run
        return _write_results(run, audit, on_progress)


def describe_run(problem: Problem) -> dict[str, Any]:
    """Return what `run.json` holds; "identity" decides whether a run is the same one."""
    samples = problem.samples
    parts = ("train", "validation", "test")
    return {
        "command": "fit",
        "identity": {"config": problem.config.identity(), "fingerprints": problem.fingerprints},
        "fingerprint": problem.config.fingerprint(),
        "config": problem.config.to_dict(),
        "task": problem.task.to_dict(),
        "samples": {
            "kind": samples.kind,
            "shape": list(samples.shape),
            "features": None if samples.features is None else samples.features.to_dict(),
        },
        "folds": [
            {"name": fold.name}
            | {part: samples.ids[getattr(fold, part)].tolist() for part in parts}
            for fold in problem.folds
        ],
        "notes": list(problem.notes),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("deconfound", "torch", "numpy", "pandas")},
        },
        "commit": _read_commit(),
    }


def audit_models(
    run: Run, models: Mapping[str, pd.DataFrame], features: Any = None, **options: Any
) -> tuple[Audit, list[str]]:
    """Return one audit of several models, and notes on rows that it leaves out.

    Args:
        run: The run of one of the models, which has the labels and confounds of the rows.
        models: From names to predictions, all with the rows of `run.predictions`.
        features: Features of these rows.
        **options: Further options of `deconfound.audit`.
    """
    task, frame, notes = run.task, run.predictions, []
    confounds = read_confounds(frame, run.config)
    is_complete = confounds.notna().all(axis=1).to_numpy()
    if not is_complete.all():
        count = int((~is_complete).sum())
        notes.append(f"{count} rows with an empty confound take no part in the audit.")
    rows = frame[is_complete].reset_index(drop=True)
    outputs = {
        name: one.loc[is_complete, task.column_names()].reset_index(drop=True)
        for name, one in models.items()
    }
    names = {*confounds, *task.labels}
    is_positive_known = task.kind == "binary" and len(task.labels) == 1
    result = audit_outputs(
        outputs,
        rows,
        confounds=list(map(str, confounds)),
        labels=list(task.labels),
        features=None if features is None else {"features": features[is_complete]},
        person=run.config.data.person,
        fold="fold" if rows["fold"].nunique() > 1 else None,
        types={name: kind for name, kind in run.config.data.types.items() if name in names},
        positive=task.levels[0][1] if is_positive_known else None,
        **options,
    )
    return result, notes


def read_confounds(table: pd.DataFrame, config: Config) -> pd.DataFrame:
    """Return the columns of the confounds with their kinds; a missing cell is NaN."""
    names = list(source_columns(config.terms("confounds")))
    return read_table(table, names, types=config.data.types)


def _write_results(run: Run, audit: bool, on_progress: OnProgress | None) -> Run:
    """Write predictions, results and report, and return the run with its results."""
    paths = [FoldFolder(run.folder, name).path / "result.json" for name in run.finished]
    notes = [note for path in paths for note in read_json(path)["notes"]]
    options: dict[str, Any] = {"leaks": False}
    if audit:
        options = {"features": run.features(), "on_progress": on_progress}
    result, metrics = None, {}
    try:
        result, more = audit_models(run, {"model": run.predictions}, **options)
        notes += more
        metrics = {row.label: asdict(row.honest) for row in result.performance}
    except DeconfoundError as error:
        notes.append(f"There is no audit: {error}")
    write_whole(run.folder / files.PREDICTIONS, run.predictions.to_csv(index=False))
    content = {
        "folds": run.finished,
        "failures": run.failures,
        "metrics": metrics,
        "audit": result.to_dict() if result is not None and audit else None,
        "notes": list(dict.fromkeys(notes)),
    }
    write_json(run.folder / files.RESULTS, content)
    run = Run.load(run.folder)
    write_whole(run.folder / files.REPORT, render_run(run))
    return run


def _read_commit() -> str | None:
    """Return the commit of the folder in which the command runs, or None."""
    call = ["git", "rev-parse", "HEAD"]
    try:
        result = subprocess.run(call, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
