"""Folds as jobs: in this process, in several, on a Dask cluster, or on several GPUs."""

from __future__ import annotations

import io
import json
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import joblib
import numpy as np
import pandas as pd
import torch
from joblib.externals.loky.process_executor import TerminatedWorkerError

from deconfound.data import OnProgress, Samples
from deconfound.design import source_columns
from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError, import_extra
from deconfound.runs.config import Config
from deconfound.runs.folder import FoldFolder, StorageError, storage_errors, write_json, write_whole
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
        title: What messages call it, such as "fold 2 of 5".
    """

    folder: Path
    config: Config
    fold: Fold
    title: str

    @property
    def files(self) -> FoldFolder:
        """The files of the fold."""
        return FoldFolder(self.folder, self.fold.name)

    def note_progress(self, epoch: float, text: str) -> None:
        """Write where the training is. Nothing is lost if this file is."""
        with suppress(OSError):
            content = json.dumps({"epoch": epoch, "text": text})
            (self.files.path / "progress.json").write_text(content)


def make_tasks(problem: Problem, folder: Path, title: str = "") -> list[FoldTask]:
    """Return the folds of a problem as jobs.

    Args:
        problem: The problem.
        folder: The folder of the run.
        title: What stands before "fold 2 of 5" in messages, such as the name of a variant.
    """
    count = len(problem.folds)
    return [
        FoldTask(folder, problem.config, fold, f"{title}fold {number} of {count}")
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
        tasks = tasks[part[0] - 1 :: part[1]]
    tasks = [task for task in tasks if not task.files.is_finished]
    source: SampleSource = problem.samples
    if problem.is_from_files and (jobs != 1 or scheduler is not None):
        # Workers map files, in place of receiving their contents.
        source = problem.config.model_dump_json(), problem.samples.fingerprint
    calls = [joblib.delayed(run_fold)(task, problem.task, source) for task in tasks]
    with ExitStack() as stack:
        options: dict[str, Any] = {"n_jobs": jobs, "inner_max_num_threads": 1, "backend": "loky"}
        if scheduler is not None:
            distributed = import_extra("distributed", "dask")
            stack.enter_context(distributed.Client(scheduler))
            options = {"n_jobs": -1, "backend": "dask"}
        stack.enter_context(joblib.parallel_config(**options))
        stack.enter_context(_watch(tasks, on_progress))
        try:
            joblib.Parallel(batch_size=1)(calls)
        except TerminatedWorkerError:
            raise StorageError(
                "A process of the run was killed, most likely because memory ran out. Run the same "
                "command again with fewer jobs: it goes on."
            ) from None


def check_jobs(jobs: int, part: tuple[int, int] | None) -> None:
    """Refuse a number of processes, and a part, that there cannot be."""
    if not (jobs == -1 or jobs >= 1):
        raise OptionError(f"jobs must be 1 or more, or -1 for one per core; got {jobs!r}.")
    if part is not None and not (len(part) == 2 and 1 <= part[0] <= part[1]):
        raise OptionError(f"part must be a number and the number of parts; got {part!r}.")


def run_fold(task: FoldTask, labels: Task, source: SampleSource) -> None:
    """Train one fold, and store its result or the reason why there is none.

    Args:
        task: The fold.
        labels: What is predicted.
        source: All samples, or where they are read from.
    """
    if task.config.launcher is None:
        _train(None, task, labels, source)
        return
    options: dict[str, Any] = {"devices": 1, **task.config.to_dict()["launcher"]}
    if options["devices"] != 1:
        # Other strategies would start the whole command again in each process.
        options.setdefault("strategy", "ddp_spawn")
    # Fabric looks through the arguments of a function, and refuses frozen dataclasses there.
    try:
        launcher = fabric(**options)
    except (RuntimeError, TypeError, ValueError) as error:
        raise OptionError(
            f"launcher: Lightning Fabric cannot be made of {options}: {error} Write arguments of "
            "lightning.fabric.Fabric that this machine has, or launcher: null."
        ) from error
    launcher.launch(partial(_train, task=task, labels=labels, source=source))


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

    def on_validation(progress: Progress) -> None:
        if is_writer:
            text = _describe_training(progress.history, config.training.epochs)
            task.note_progress(progress.history[-1]["epoch"], text)

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
                seed=config.run.seed,
                launcher=launcher,
                checkpoint=files.path / "last.pt",
                with_features=config.run.features,
                on_validation=on_validation,
            )
    except StorageError:
        raise
    except Exception as error:
        if TORCH_CANNOT_WRITE in str(error):
            raise StorageError(
                f"There is no space left for a checkpoint in {str(files.path)!r}. Free some, and "
                "run the same command again: it goes on."
            ) from error
        if is_writer:
            is_own = isinstance(error, DeconfoundError)
            reason = str(error) if is_own else f"{type(error).__name__}: {error}"
            failure = {"reason": reason, "traceback": traceback.format_exc()}
            write_json(files.path / "failure.json", failure)
            task.note_progress(config.training.epochs, f"failed: {reason}")
        return
    if is_writer:
        predictions = _make_predictions(config, labels, samples, task.fold, fitted)
        _write_result(files, fitted, predictions, [str(one.message) for one in messages])
        text = _describe_training(fitted.history, config.training.epochs)
        task.note_progress(config.training.epochs, text)


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


def _describe_training(history: list[dict[str, float]], epochs: int) -> str:
    """Return how far a training is; an estimator of scikit-learn has no history."""
    if not history:
        return "finished"
    text = f"epoch {history[-1]['epoch']:g} of {epochs}"
    if "validation_loss" in history[-1]:
        text += f", validation loss {history[-1]['validation_loss']:.3f}"
    return text


@contextmanager
def _watch(tasks: Sequence[FoldTask], on_progress: OnProgress | None) -> Iterator[None]:
    """Report what folds write about their progress, wherever they run."""
    total = sum(task.config.training.epochs for task in tasks)
    notes: dict[FoldTask, Any] = {}
    is_over = Event()

    def report() -> None:
        old = dict(notes)
        for task in tasks:
            with suppress(OSError, ValueError):
                notes[task] = json.loads((task.files.path / "progress.json").read_text())
        done = round(sum(note["epoch"] for note in notes.values()))
        for task, note in notes.items():
            if on_progress is not None and note != old.get(task):
                on_progress(done, total, f"{task.title}: {note['text']}")

    def poll() -> None:
        while not is_over.wait(POLL_SECONDS):
            report()

    def forget() -> None:
        for task in tasks:
            task.files.remove("progress.json")

    forget()
    thread = Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        report()
        forget()
