"""Where folds are trained: in this process, in several of one machine, or as an array on a cluster."""

from __future__ import annotations

import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deconfound.data import Source
from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError, need
from deconfound.networks.packages import search_modules_in
from deconfound.training.config import Config
from deconfound.training.fold import run_fold
from deconfound.training.problem import Problem, open_problem
from deconfound.training.run_folder import open_run


@dataclass(frozen=True)
class Job:
    """One fold of one run; folders of its own network, and its data where the config does not name them."""

    config: Config
    fold: int
    modules: tuple[str, ...] = ()
    source: Source | None = None

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{Path(self.config.run.folder).name} fold {self.fold}"


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        job: Which one.
        error: What went wrong, in one message; None if the fold is finished.
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


def execute(
    jobs: Sequence[Job],
    processes: int = 1,
    cluster: Cluster | None = None,
    on_epoch: Callable[[Job, int, int, float], None] | None = None,
) -> Iterator[JobResult]:
    """Run jobs, in this process, in several, or on a cluster; how each ended, as it ends."""
    if cluster is not None:
        return _submitted(jobs, cluster)
    if processes in (0, 1) or len(jobs) <= 1:
        return (run_job(job, on_epoch) for job in jobs)
    return _parallel(jobs, processes)


def run_job(job: Job, on_epoch: Callable[[Job, int, int, float], None] | None = None) -> JobResult:
    """Run a job in this process."""
    inner = None if on_epoch is None else lambda *state: on_epoch(job, *state)
    try:
        for folder in job.modules:
            search_modules_in(folder)
        run_fold(_opened(job.config, job.source), open_run(job.config.run.folder), job.fold, inner)
    except DeconfoundError as error:
        return JobResult(job, str(error), traceback.format_exc())
    except Exception as error:
        return JobResult(job, f"{type(error).__name__}: {error}", traceback.format_exc())
    return JobResult(job)


def _parallel(jobs: Sequence[Job], processes: int) -> Iterator[JobResult]:
    """Processes of joblib. Where one is killed (memory), the jobs that were lost run again, each on its own."""
    joblib = need("joblib", "train")
    ended: set[int] = set()
    parent = os.getpid()
    try:
        pool = joblib.Parallel(n_jobs=processes, return_as="generator_unordered", pre_dispatch="2*n_jobs")
        for number, result in pool(joblib.delayed(_in_worker)(job, number, parent) for number, job in enumerate(jobs)):
            ended.add(number)
            yield result
    except joblib.externals.loky.process_executor.TerminatedWorkerError:
        yield from _one_by_one(joblib, [job for number, job in enumerate(jobs) if number not in ended])


def _in_worker(job: Job, number: int, parent: int) -> tuple[int, JobResult]:
    end_with_parent(parent)
    with warnings.catch_warnings(action="ignore", category=DeconfoundWarning):  # shown when the data were opened first
        return number, run_job(job)


def _one_by_one(joblib: Any, jobs: Sequence[Job]) -> Iterator[JobResult]:
    """Jobs in a process beside this one, a new one after each that dies."""
    loky = joblib.externals.loky
    executor = loky.ProcessPoolExecutor(1)
    for job in jobs:
        try:
            yield executor.submit(_in_worker, job, 0, os.getpid()).result()[1]
        except loky.process_executor.TerminatedWorkerError as error:
            text = "its process was killed, twice; often memory is short. Use fewer --jobs or a smaller batch."
            yield JobResult(job, text, str(error))
            executor = loky.ProcessPoolExecutor(1)
    executor.shutdown()


_watched: set[int] = set()


def end_with_parent(parent: int, seconds: float = 0.5) -> None:
    """End this process when the one that started it has ended, however it did: nobody would read its results."""
    if parent in _watched:
        return
    _watched.add(parent)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end with parent").start()


def _submitted(jobs: Sequence[Job], cluster: Cluster) -> Iterator[JobResult]:
    """An array of submitit; its logs lie beside the first run."""
    if not jobs:
        return
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
            yield _received(jobs[number], sent.pop(number))
        if sent:
            time.sleep(cluster.poll_seconds)


def _received(job: Job, sent: Any) -> JobResult:
    error = sent.exception()
    if error is None:
        result: JobResult = sent.result()
        return result
    return JobResult(job, f"job {sent.job_id} ended without a result; its log is {sent.paths.stderr}", str(error))


_problems: dict[str, Problem] = {}


def keep_open(problems: Sequence[Problem]) -> None:
    """Let jobs in this process use these problems, and no others that were open before."""
    _problems.clear()
    _problems.update({problem.config.model_dump_json(): problem for problem in problems})


def _opened(config: Config, source: Source | None = None) -> Problem:
    """The problem of a run; one that is open is used again, for a process trains many folds of the same data.

    Its files may have changed since: each fold compares the digest.
    """
    key = config.model_dump_json()
    if key not in _problems:
        keep_open([*list(_problems.values())[-3:], open_problem(config, source, check=False)])
    return _problems[key]
