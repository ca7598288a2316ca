"""Runs together: opened and checked, held against other commands, and trained fold by fold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deconfound.data import Source, only_one
from deconfound.errors import RunError
from deconfound.networks.packages import is_own, searched_folders
from deconfound.training.checks import named_columns, open_data, roles
from deconfound.training.config import Config
from deconfound.training.dry_run import dry_run
from deconfound.training.fold import follower
from deconfound.training.problem import Problem, open_problem
from deconfound.training.resuming import start_run
from deconfound.training.run_folder import LAST, RESULT
from deconfound.training.sources import GIVEN, given_source, with_categories
from deconfound.training.workers import Cluster, Job, JobResult, end_with_parent, execute, keep_open


@dataclass(frozen=True)
class Progress:
    """How far a call of `fit`, `compare` or `predict` has come.

    Attributes:
        stage: "reading", "training", "auditing" or "predicting".
        done: Folds or steps that are done; a fraction inside a fold.
        total: How many there are; 0 where that is not known.
        text: What is being done.
        failed: The job that has just failed, or None.
    """

    stage: str
    done: float
    total: int
    text: str = ""
    failed: JobResult | None = None


OnProgress = Callable[[Progress], None]


def open_runs(configs: Sequence[Config], progress: OnProgress | None = None, given: Any = None) -> list[Problem]:
    """Open the data of every run and check all that can be checked before training; nothing is written.

    Of a single run the method is made once beforehand. Where there are several, one that cannot be made is reported by
    its folds and does not stop the others. `given` is a source or a dataset instead of what `data.source` names.
    """
    if progress is not None:
        progress(Progress("reading", 0, 0, "reading the data"))
    sources: dict[str, Source] = {}
    named = [name for each in configs for name in named_columns(each)]
    whole = None if given is None else given_source(given, named, configs[0].data)
    problems = []
    for config in (with_categories(each, given) for each in configs):
        key = config.data.model_dump_json() + repr(roles(config))
        source = sources[key] = whole or sources.get(key) or open_data(config)
        problem = open_problem(config, source)
        dry_run(problem, method=len(configs) == 1)
        problems.append(problem)
    keep_open(problems)
    return problems


@contextmanager
def working_on(folders: Sequence[str | Path]) -> Iterator[None]:
    """Hold the folders of runs against a second `fit` or `compare`; jobs hold the folders of their folds."""
    if follower():
        end_with_parent(os.getppid())
    with ExitStack() as held:
        for folder in () if follower() else map(Path, folders):
            if folder.exists() and not folder.is_dir():
                raise RunError(f"{folder} must be a folder; got a file. Set run.folder to another place.")
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunError(
                    f"{folder} must be written; got {error.strerror}. Set run.folder to another one."
                ) from error
            held.enter_context(only_one(folder))
        yield


def plan(problems: Sequence[Problem]) -> tuple[list[Job], int]:
    """Make the folders of runs, or check those that are there; the folds to train, and how many are finished."""
    folds = [(problem, fold) for problem in problems for fold in start_run(problem).folds]
    jobs = []
    for problem, fold in folds:
        if not fold.finished():
            to_send = problem.source if problem.config.data.source == GIVEN else None  # no config can open it
            jobs.append(Job(problem.config, fold.number, searched_folders(), to_send))
    return jobs, len(folds) - len(jobs)


def train_runs(
    problems: Sequence[Problem],
    processes: int = 1,
    cluster: Cluster | None = None,
    progress: OnProgress | None = None,
) -> list[JobResult]:
    """Train every fold that is not finished, and return the jobs that failed; none of them stops the others.

    `progress` is called when a fold ends, and after each epoch where one process does all.
    """
    report = progress or (lambda _: None)
    jobs, ended = plan(problems)
    total = ended + len(jobs)
    report(Progress("training", ended, total, f"{ended} of {total} folds are finished"))
    failed: list[JobResult] = []

    def on_epoch(job: Job, epoch: int, epochs: int, loss: float) -> None:
        text = f"{job.name} · epoch {epoch} · validation loss {loss:.4f}"
        report(Progress("training", ended + epoch / epochs, total, text))

    for result in execute(jobs, processes, cluster, on_epoch):
        ended += 1
        failed += [] if result.error is None else [result]
        text = f"{ended} of {total} folds"
        report(Progress("training", ended, total, text, None if result.error is None else result))
    return failed


def raise_if_failed(failed: Sequence[JobResult], folder: str | Path) -> None:
    """Raise an error that counts the failed folds, after all others are finished."""
    if failed:
        first = failed[0]
        assert first.error is not None
        raise RunError(
            f"every fold of {folder} must be finished; got {len(failed)} that failed, first {first.job.name}: "
            f"{first.error.rstrip('.')}. {_advice(first.job.config.network.name, Path(folder))}"
        ) from RuntimeError(first.details)  # --debug shows it


def _advice(network: str, folder: Path) -> str:
    """What to do after a fold failed; a run does not mix folds of two versions of the user's network."""
    if is_own(network) and any(file for name in (RESULT, f"*{LAST}") for file in folder.rglob(name)):
        return (
            f"The others are kept. If you fix this in the file of {network!r}, with which they were trained, set "
            "run.folder to another folder; otherwise fix it and give the same command again."
        )
    return "The others are kept: fix this and give the same command again."
