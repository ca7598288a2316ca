"""Folds as jobs: in this process, in several, on a Dask cluster, or on several GPUs."""

from __future__ import annotations

import io
import json
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import joblib  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
import torch
from joblib.externals.loky.process_executor import (  # type: ignore[import-untyped]
    TerminatedWorkerError,
)

from deconfound.data import OnProgress, Samples
from deconfound.design import source_columns
from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError, import_extra
from deconfound.runs.config import Config
from deconfound.runs.folder import (
    FoldFolder,
    StorageError,
    storage_errors,
    write_json,
    write_whole,
)
from deconfound.runs.problem import Problem, open_config
from deconfound.training import FittedFold, Fold, Progress, Task, fabric, fit_fold

# Seconds between two looks at what folds have written about their progress.
POLL_SECONDS = 0.5
# What torch writes if it cannot write a checkpoint.
TORCH_CANNOT_WRITE = "PytorchStreamWriter"

# All samples; or, for a worker that opens them itself, their config as JSON and their fingerprint.
SampleSource = Samples | tuple[str, str]


@dataclass(frozen=True, eq=False)
class FoldTask:
    """One fold to be trained.

    Attributes:
        folder: The folder of the run.
        config: The config of the run.
        fold: The rows of its parts.
        seed: The seed of the training.
        title: What messages call it, such as "fold 2 of 5".
    """

    folder: Path
    config: Config
    fold: Fold
    seed: int
    title: str

    @property
    def files(self) -> FoldFolder:
        """The files of the fold."""
        return FoldFolder(self.folder, self.fold.name)


def make_tasks(problem: Problem, folder: Path, title: str = "") -> list[FoldTask]:
    """Return the folds of a problem as jobs.

    Args:
        problem: The problem.
        folder: The folder of the run.
        title: What stands before "fold 2 of 5" in messages, such as the name of a variant.
    """
    config, count = problem.config, len(problem.folds)
    return [
        FoldTask(folder, config, fold, config.run.seed, f"{title}fold {number} of {count}")
        for number, fold in enumerate(problem.folds, 1)
    ]


def run_folds(
    tasks: Sequence[FoldTask],
    problem: Problem,
    jobs: int = 1,
    scheduler: str | None = None,
    part: tuple[int, int] | None = None,
    on_progress: OnProgress | None = None,
) -> None:
    """Train all folds that are not finished. A fold that fails stores its reason.

    Args:
        tasks: The folds, perhaps of several configs with the same samples and labels.
        problem: The samples and the labels.
        jobs: The number of processes. With more than one, each has one thread.
        scheduler: The address of a Dask scheduler, whose workers see the same folders.
        part: `(3, 20)` trains the third of twenty parts of the folds.
        on_progress: Called with the number of finished epochs, that of all, and a text.

    Raises:
        StateError: A file cannot be written, or a process was killed.
    """
    if part is not None:
        check_part(part)
        tasks = tasks[part[0] - 1 :: part[1]]
    tasks = [task for task in tasks if not task.files.is_finished]
    with _watch(tasks, on_progress) as finish:
        if jobs == 1 and scheduler is None:
            for task in tasks:
                run_fold(task, problem.task, problem.samples)
                finish(task.files.path)
        else:
            _run_in_pool(tasks, problem, jobs, scheduler, finish)


def check_part(part: tuple[int, int]) -> None:
    """Refuse a part that there is not."""
    if not (len(part) == 2 and 1 <= part[0] <= part[1]):
        raise OptionError(f"part must be a number and the number of parts; got {part!r}.")


def run_fold(task: FoldTask, labels: Task, source: SampleSource, threads: int = 0) -> Path:
    """Train one fold, store its result or the reason why there is none, and return its folder.

    Args:
        task: The fold.
        labels: What is predicted.
        source: All samples, or where they are read from.
        threads: The number of threads; 0 leaves it as it is.
    """
    if threads:
        torch.set_num_threads(threads)
    if task.config.launcher is None:
        _train(None, task, labels, source)
        return task.files.path
    options: dict[str, Any] = {"devices": 1, **task.config.to_dict()["launcher"]}
    if options["devices"] != 1:
        # Other strategies would start the whole command again in each process.
        options.setdefault("strategy", "ddp_spawn")
    # Fabric looks through the arguments of a function, and refuses frozen dataclasses there.
    call = partial(_train, task=task, labels=labels, source=source)
    fabric(**options).launch(call)
    return task.files.path


def _run_in_pool(
    tasks: Sequence[FoldTask],
    problem: Problem,
    jobs: int,
    scheduler: str | None,
    finish: Callable[[Path], None],
) -> None:
    source: SampleSource = problem.samples
    if problem.is_from_files:
        # Workers map files, in place of receiving their contents.
        source = problem.config.model_dump_json(), problem.samples.fingerprint
    calls = [joblib.delayed(run_fold)(task, problem.task, source, threads=1) for task in tasks]
    options = {"batch_size": 1, "return_as": "generator_unordered"}
    with _choose_backend(scheduler):
        pool = joblib.Parallel(n_jobs=-1 if scheduler else jobs, **options)
        try:
            for path in pool(calls):
                finish(path)
        except TerminatedWorkerError:
            raise StorageError(
                "A process of the run was killed, most likely because memory ran out. Run the same "
                "command again with fewer jobs: it goes on."
            ) from None


@contextmanager
def _choose_backend(scheduler: str | None) -> Iterator[None]:
    if scheduler is None:
        yield
        return
    distributed = import_extra("distributed", "dask")
    with distributed.Client(scheduler), joblib.parallel_config(backend="dask"):
        yield


@lru_cache(maxsize=1)
def _open_again(config: str, fingerprint: str) -> Samples:
    """Return the samples of this fingerprint; a process opens them once."""
    samples = open_config(Config.model_validate_json(config))
    if samples.fingerprint != fingerprint:
        raise StorageError("The data have changed while the run is going on. Restore them.")
    return samples


def _train(launcher: Any, task: FoldTask, labels: Task, source: SampleSource) -> None:
    """Train in one of perhaps several processes, of which the first one writes."""
    is_writer = launcher is None or launcher.global_rank == 0
    files, config = task.files, task.config

    def note_progress(progress: Progress) -> None:
        if is_writer:
            _write_progress(files.path / "progress.json", progress, config.training.epochs)

    try:
        with storage_errors(files.path), warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always", DeconfoundWarning)
            files.path.mkdir(parents=True, exist_ok=True)
            samples = source if isinstance(source, Samples) else _open_again(*source)
            fitted = fit_fold(
                samples,
                labels,
                task.fold,
                config.recipe(samples.kind),
                seed=task.seed,
                launcher=launcher,
                checkpoint=files.path / "last.pt",
                with_features=config.run.features,
                on_validation=note_progress,
            )
    except StorageError:
        raise
    except Exception as error:
        if TORCH_CANNOT_WRITE in str(error):
            raise StorageError(
                f"A checkpoint cannot be written to {str(files.path)!r}. Free space on the disk, "
                "and run the same command again: it goes on."
            ) from error
        if is_writer:
            write_json(files.path / "failure.json", _describe_failure(error))
        return
    if is_writer:
        predictions = _make_predictions(config, labels, samples, task.fold, fitted)
        _write_result(files, fitted, predictions, [str(one.message) for one in messages])


def _write_result(
    files: FoldFolder, fitted: FittedFold, predictions: pd.DataFrame, notes: list[str]
) -> None:
    """Write all files of a finished fold, the result last."""
    write_whole(files.path / "predictions.csv", predictions.to_csv(index=False))
    write_whole(files.path / "history.csv", pd.DataFrame(fitted.history).to_csv(index=False))
    model, features = io.BytesIO(), io.BytesIO()
    torch.save(fitted.model.to_state(), model)
    write_whole(files.path / "model.pt", model.getvalue())
    if fitted.features is not None:
        np.save(features, fitted.features)
        write_whole(files.path / "features.npy", features.getvalue())
    result = {"fold": fitted.name, "rows": len(predictions), "best": fitted.best, "notes": notes}
    write_json(files.path / "result.json", result)
    files.remove("last.pt", "failure.json")


def _make_predictions(
    config: Config, labels: Task, samples: Samples, fold: Fold, fitted: FittedFold
) -> pd.DataFrame:
    """Return predictions beside all that an audit needs: people, labels and confounds."""
    table = samples.table.iloc[fold.test].reset_index(drop=True)
    confounds = source_columns(config.terms("confounds"))
    names = dict.fromkeys([config.data.person, *labels.labels, *confounds])
    columns = [name for name in names if name not in (None, "id", "fold")]
    ids = pd.DataFrame({"id": samples.ids[fold.test], "fold": fold.name})
    values = labels.probabilities(torch.as_tensor(fitted.outputs)).numpy()
    outputs = pd.DataFrame(values, columns=labels.column_names())
    return pd.concat([ids, table[columns], outputs], axis=1)


def _describe_failure(error: Exception) -> dict[str, str]:
    """Return the reason of a failure; of an error of own code also where it was raised."""
    if isinstance(error, DeconfoundError):
        return {"reason": str(error)}
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        reason = f"{reason} Lower training.batch_size, or run fewer jobs."
    return {"reason": reason, "traceback": traceback.format_exc()}


def _write_progress(path: Path, progress: Progress, epochs: int) -> None:
    """Write where a training is. Nothing is lost if this file is."""
    entry = progress.history[-1]
    text = f"epoch {entry['epoch']:g} of {epochs}"
    if "validation_loss" in entry:
        text += f", validation loss {entry['validation_loss']:.3f}"
    beside = path.with_name(f".{path.name}.new")
    with suppress(OSError):
        beside.write_text(json.dumps({"epoch": entry["epoch"], "text": text}))
        os.replace(beside, path)


@contextmanager
def _watch(
    tasks: Sequence[FoldTask], on_progress: OnProgress | None
) -> Iterator[Callable[[Path], None]]:
    """Report what folds write about their progress, wherever they run.

    Yields:
        A function to be called with the folder of each fold that has ended.
    """
    task_of = {task.files.path: task for task in tasks}
    epochs = dict.fromkeys(task_of, 0.0)
    texts: dict[Path, str] = {}
    is_over = Event()

    def report(path: Path, text: str) -> None:
        if on_progress is not None and texts.get(path) != text:
            texts[path] = text
            total = sum(task.config.training.epochs for task in tasks)
            on_progress(round(sum(epochs.values())), total, f"{task_of[path].title}: {text}")

    def look(path: Path) -> None:
        with suppress(OSError, ValueError):
            content = json.loads((path / "progress.json").read_text())
            epochs[path] = max(epochs[path], content["epoch"])
            report(path, content["text"])

    def finish(path: Path) -> None:
        look(path)
        epochs[path] = task_of[path].config.training.epochs
        if task_of[path].files.failure is not None:
            report(path, f"failed: {task_of[path].files.failure}")
        task_of[path].files.remove("progress.json")

    def poll() -> None:
        while not is_over.wait(POLL_SECONDS):
            for path in task_of:
                look(path)

    for task in tasks:
        task.files.remove("progress.json")
    thread = Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield finish
    finally:
        is_over.set()
        thread.join()
