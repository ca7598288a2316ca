"""Many folds of many runs: one after the other, in processes of one machine, or as an array on a cluster."""

from __future__ import annotations

import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deconfound.data import Source, only_one
from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError, RunError
from deconfound.networks.user_modules import search_modules_in, searched_folders
from deconfound.training.checks import open_data, roles
from deconfound.training.dry_run import dry_run
from deconfound.training.fold import follower, run_fold
from deconfound.training.needs import need
from deconfound.training.problem import Problem, open_problem
from deconfound.training.run_folder import open_run, start_run

if TYPE_CHECKING:
    from deconfound.training.config import Config


@dataclass(frozen=True)
class Job:
    """One fold of one run.

    Attributes:
        config: The run.
        fold: Which fold.
        modules: Folders where the run's own network is found.
    """

    config: Config
    fold: int
    modules: tuple[str, ...] = ()

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


def open_runs(configs: Sequence[Config], progress: OnProgress | None = None) -> list[Problem]:
    """Open the data of every run and check all that can be checked before training; nothing is written.

    Of a single run the method is made once beforehand. Where there are several, one that cannot be made is reported by
    its folds and does not stop the others.
    """
    if progress is not None:
        progress(Progress("reading", 0, 0, "reading the data"))
    _problems.clear()
    sources: dict[str, Source] = {}
    for config in configs:
        key = config.data.model_dump_json() + repr(roles(config))
        source = sources[key] = sources.get(key) or open_data(config)
        problem = open_problem(config, source)
        dry_run(problem, method=len(configs) == 1)
        _problems[problem.config.model_dump_json()] = problem
    return list(_problems.values())


@contextmanager
def working_on(folders: Sequence[str | Path]) -> Iterator[None]:
    """Hold the folders of runs against a second `fit` or `compare`; jobs hold the folders of their folds."""
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
    folds = [(problem.config, fold) for problem in problems for fold in start_run(problem).folds]
    jobs = [Job(config, fold.number, searched_folders()) for config, fold in folds if not fold.finished()]
    return jobs, len(folds) - len(jobs)


def train_runs(
    problems: Sequence[Problem],
    processes: int = 1,
    cluster: Cluster | None = None,
    progress: OnProgress | None = None,
) -> list[JobResult]:
    """Train every fold that is not finished; one that fails does not stop the others.

    Args:
        problems: The runs, from `open_runs`.
        processes: How many folds at a time on this machine; -1 is one per core.
        cluster: Where to send the folds instead.
        progress: Called when a fold ends, and after each epoch where one process does all.

    Returns:
        The jobs that failed.
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
            f"{first.error.rstrip('.')}. The others are kept: fix this and give the same command again."
        ) from RuntimeError(first.details)  # --debug shows it


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
        run_fold(_opened(job.config), open_run(job.config.run.folder), job.fold, inner)
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # `plan` has opened the same data and shown them
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


def _opened(config: Config) -> Problem:
    """The problem of a run; those that are open are used again, for a process trains many folds of the same data.

    Their files may have changed since: each fold compares the digest.
    """
    key = config.model_dump_json()
    if key not in _problems:
        if len(_problems) >= 4:
            _problems.pop(next(iter(_problems)))
        _problems[key] = open_problem(config, check=False)
    return _problems[key]
