"""Many folds of many runs: one after the other, in processes of one machine, or as an array on a cluster."""

from __future__ import annotations

import json
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError
from deconfound.training.config import Config
from deconfound.training.fold import RESULT, fold_folder, run_fold
from deconfound.training.needs import need
from deconfound.training.problem import Problem, open_problem
from deconfound.training.rehearsal import rehearse
from deconfound.training.run import start


@dataclass(frozen=True)
class Job:
    """One fold of one run."""

    config: Config
    fold: int

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{Path(self.config.run.folder).name} fold {self.fold}"


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        job: Which one.
        error: What went wrong, in one message; None if it is finished.
        details: The traceback of an error.
    """

    job: Job
    error: str | None = None
    details: str = ""


@dataclass(frozen=True)
class Cluster:
    """Where submitit sends jobs: "slurm", or "local" and "debug" on this machine; further keys are its parameters."""

    name: str = "slurm"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    poll_seconds: float = 5.0


Watch = Callable[[Outcome, int, int], None]
Tick = Callable[[Job, int, int, float], None]


def plan(configs: Sequence[Config]) -> tuple[list[Job], int]:
    """Open every run and make its folder; the folds that are not finished, and how many are.

    Of a single run the method is made once beforehand. Where there are several, one that cannot be made is told by
    its folds and does not stop the others.
    """
    jobs, done = [], 0
    for config in configs:
        problem = _opened(config)
        if len(configs) == 1:
            rehearse(problem)
        folder = start(problem)
        for number in range(len(problem.folds)):
            if (fold_folder(folder, number) / RESULT).exists():
                done += 1
            else:
                jobs.append(Job(config, number))
    return jobs, done


def execute(
    jobs: Sequence[Job],
    processes: int = 1,
    cluster: Cluster | None = None,
    watch: Watch | None = None,
    tick: Tick | None = None,
) -> list[Outcome]:
    """Run jobs; one that fails is told in its outcome and does not stop the others.

    Args:
        jobs: From `plan`.
        processes: How many at a time on this machine; -1 is one per core.
        cluster: Where to send them instead.
        watch: Called with (outcome, how many have ended, how many there are).
        tick: Called after each epoch, where one process does all.
    """
    if cluster is not None:
        ended = _submitted(jobs, cluster)
    elif processes in (0, 1) or len(jobs) <= 1:
        ended = (run_job(job, tick) for job in jobs)
    else:
        ended = _parallel(jobs, processes)
    outcomes = []
    for outcome in ended:
        outcomes.append(outcome)
        if watch is not None:
            watch(outcome, len(outcomes), len(jobs))
    return outcomes


def run_job(job: Job, tick: Tick | None = None) -> Outcome:
    """Run one job; whatever goes wrong is in the outcome."""
    try:
        problem = _opened(job.config)
        folder = fold_folder(Path(job.config.run.folder), job.fold)
        run_fold(problem, job.fold, folder, None if tick is None else lambda *state: tick(job, *state))
    except DeconfoundError as error:
        return Outcome(job, str(error), traceback.format_exc())
    except Exception as error:
        return Outcome(job, f"{type(error).__name__}: {error}", traceback.format_exc())
    return Outcome(job)


def _parallel(jobs: Sequence[Job], processes: int) -> Iterator[Outcome]:
    """Processes of joblib. Where one is killed (memory), the jobs that were lost run again, each on its own."""
    joblib = need("joblib", "train")
    ended: set[int] = set()
    try:
        made = joblib.Parallel(n_jobs=processes, return_as="generator_unordered", pre_dispatch="2*n_jobs")
        for number, outcome in made(joblib.delayed(_numbered)(number, job) for number, job in enumerate(jobs)):
            ended.add(number)
            yield outcome
    except joblib.externals.loky.process_executor.TerminatedWorkerError:
        yield from _one_by_one(joblib, [job for number, job in enumerate(jobs) if number not in ended])


def _numbered(number: int, job: Job) -> tuple[int, Outcome]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # `plan` has opened the same data and told them
        return number, run_job(job)


def _one_by_one(joblib: Any, jobs: Sequence[Job]) -> Iterator[Outcome]:
    """Jobs in a process beside this one, a new one after each that dies."""
    loky = joblib.externals.loky
    executor = loky.ProcessPoolExecutor(1)
    for job in jobs:
        try:
            yield executor.submit(run_job, job).result()
        except loky.process_executor.TerminatedWorkerError as error:
            text = "its process was killed, twice; often memory is short. Use fewer --jobs or a smaller batch."
            yield Outcome(job, text, str(error))
            executor = loky.ProcessPoolExecutor(1)
    executor.shutdown()


def _submitted(jobs: Sequence[Job], cluster: Cluster) -> Iterator[Outcome]:
    """An array of submitit; its logs lie beside the first run."""
    submitit = need("submitit", "cluster")
    folder = Path(jobs[0].config.run.folder).parent / "cluster"
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster.name)
        executor.update_parameters(**{"name": "deconfound", **cluster.parameters})
        sent = dict(enumerate(executor.map_array(run_job, list(jobs))))
    except (RuntimeError, ValueError, TypeError, NameError, OSError) as error:
        raise OptionError(f"--slurm must reach a cluster that takes the jobs; got {error}.") from error
    while sent:
        for number in [number for number, job in sent.items() if job.done()]:
            yield _outcome(jobs[number], sent.pop(number))
        if sent:
            time.sleep(cluster.poll_seconds)


def _outcome(job: Job, sent: Any) -> Outcome:
    error = sent.exception()
    if error is None:
        outcome: Outcome = sent.result()
        return outcome
    return Outcome(job, f"job {sent.job_id} ended without a result; its log is {sent.paths.stderr}", str(error))


_problems: dict[str, Problem] = {}


def _opened(config: Config) -> Problem:
    """The problem of a config; the last few stay open, for a process runs many folds of the same data."""
    paths = [Path(path) for path in (config.data.source, config.data.table) if path and Path(path).is_file()]
    key = json.dumps([config.to_dict(), [[os.fspath(path), path.stat().st_mtime_ns] for path in paths]], default=str)
    if key not in _problems:
        if len(_problems) >= 4:
            _problems.pop(next(iter(_problems)))
        _problems[key] = open_problem(config)
    return _problems[key]
