"""`fit`: one method on all folds of a config, in one folder that is complete or can be resumed, and its audit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deconfound.auditing import Audit
from deconfound.data import read_json
from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError
from deconfound.training.config import Config
from deconfound.training.config_file import read_config
from deconfound.training.fold import follower
from deconfound.training.jobs import OnProgress, Progress, open_runs, raise_if_failed, train_runs, working_on
from deconfound.training.outputs import audit_runs
from deconfound.training.run_folder import RESULTS, RunFolder, gather, open_run
from deconfound.training.sources import GIVEN, skipping_bad_scans
from deconfound.training.workers import Cluster

AUDIT_PAGE = "audit.html"


@dataclass(frozen=True)
class FitResult:
    """A finished run.

    Attributes:
        folder: Where everything lies.
        metrics: For each measure its mean, its standard deviation and the number of folds.
        audit: What is left of each confound in the out-of-fold outputs; None where it was left out, and in all but the
            first of several processes that train together.
        results: The content of `results.json`.
        files: The files that were written for reading: `results.json`, and `audit.html` where there is an audit.
    """

    folder: Path
    metrics: Mapping[str, Mapping[str, Any]]
    audit: Audit | None
    results: Mapping[str, Any]
    files: tuple[Path, ...]


def fit(
    config: str | Path | Mapping[str, Any] | Config,
    *overrides: str,
    source: Any = None,
    jobs: int = 1,
    cluster: Cluster | None = None,
    audit: bool | None = None,
    skip_bad: bool = False,
    progress: OnProgress | None = None,
) -> FitResult:
    """Cross-validate one method, audit its out-of-fold outputs, and leave everything in `run.folder`.

    Killed at any moment and called again, it goes on from there and ends with the same numbers.

    Args:
        config: A YAML file, a mapping, or a `Config`.
        overrides: Changes of it, such as `"training.lr=0.01"`.
        source: The data instead of what `data.source` names: a DataFrame with the columns of such a file, what
            `deconfound.data.open_dataset` or another reader opened, or a torch or Hugging Face dataset of dicts, whose
            entries of the config's names are the table.
        jobs: Folds that run at a time on this machine; -1 is one per core.
        cluster: Send the folds there instead, as an array of submitit.
        audit: Whether to audit the outputs; the config's `run.audit` if None.
        skip_bad: Leave out scans that cannot be read or have no row of the table, and warn.
        progress: Called with a `Progress` as folds and epochs end.

    Raises:
        OptionError: The config is wrong, with one line for each fault.
        RunError: A fold failed (the others are finished then), or the folder holds something else.

    Example:
        >>> import csv, os, random, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> draw = random.Random(0)
        >>> rows = [(draw.gauss(i % 2, 1), draw.gauss(60, 9), i % 2) for i in range(60)]
        >>> with open(f"{folder}/table.csv", "w") as file:
        ...     csv.writer(file).writerows([("thickness", "age", "dx"), *rows])
        >>> found = fit(
        ...     {
        ...         "data": {"source": f"{folder}/table.csv", "label": "dx"},
        ...         "design": {"confounds": ["age"]},
        ...         "training": {"epochs": 2, "accelerator": "cpu"},
        ...         "splits": {"folds": 2},
        ...         "run": {"folder": f"{folder}/run"},
        ...     },
        ...     "compare.permutations=39",
        ...     "compare.bootstraps=40",
        ... )
        >>> list(found.metrics), [item.confound for item in found.audit.verdicts]
        (['auc', 'balanced_accuracy', 'accuracy', 'independent_auc', 'independent_rows'], ['age'])
        >>> sorted(path.name for path in found.files)
        ['audit.html', 'results.json']
    """
    chosen = chosen_config(config, overrides, source, skip_bad)
    problems = open_runs([chosen], progress, source)
    with working_on([chosen.run.folder]):
        raise_if_failed(train_runs(problems, jobs, cluster, progress), chosen.run.folder)
        with first_of_several() as is_first:
            run = open_run(chosen.run.folder)
            audited = None
            if is_first:
                audited = _audited(chosen, run, progress) if (chosen.run.audit if audit is None else audit) else None
                gather(run, {"audit": None if audited is None else audited.to_dict()})
        results = read_json(run.path / RESULTS)
    files = (run.path / RESULTS, *([run.path / AUDIT_PAGE] if audited is not None else []))
    return FitResult(run.path, results["metrics"], audited, results, files)


def chosen_config(
    config: str | Path | Mapping[str, Any] | Config, overrides: Sequence[str], source: Any, skip_bad: bool
) -> Config:
    """What `fit` and `compare` are asked to train."""
    chosen = read_config(config, overrides if source is None else [*overrides, f"data.source={GIVEN}"])
    if not skip_bad:
        return chosen
    data = skipping_bad_scans(chosen.data)
    if data is chosen.data:
        raise OptionError(
            f"--skip-bad must be given with scans; got data.source {data.source!r}, which holds none. Leave it out."
        )
    return chosen.model_copy(update={"data": data})


def _audited(config: Config, run: RunFolder, progress: OnProgress | None) -> Audit | None:
    """The audit of a run, and its page; None, with a warning, where its rows do not allow one."""
    try:
        found = asked_audit(config, {config.method.name: run}, progress)
    except DeconfoundError as fault:
        warnings.warn(f"the run is finished, but cannot be audited: {fault}", DeconfoundWarning, stacklevel=3)
        return None
    found.save(run.path / AUDIT_PAGE)
    return found


def asked_audit(config: Config, runs: Mapping[str, RunFolder], progress: OnProgress | None) -> Audit:
    """One audit of finished runs, as their config asks for it."""

    def on_audit(text: str, done: int, total: int) -> None:
        if progress is not None:
            progress(Progress("auditing", done, total, text))

    asked = config.compare
    return audit_runs(
        runs, permutations=asked.permutations, bootstraps=asked.bootstraps, seed=config.run.seed, progress=on_audit
    )


@contextmanager
def first_of_several() -> Iterator[bool]:
    """Whether this process is the first of those that train together; the others wait until it has done its part."""
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    first = not follower()
    if together and not first:
        torch.distributed.barrier()
    try:
        yield first
    finally:
        if together and first:
            torch.distributed.barrier()
