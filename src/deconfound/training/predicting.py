"""Predictions of a finished run for people it has never seen."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.data.files import read_json
from deconfound.data.sources import Source
from deconfound.design import Assumed, Design
from deconfound.errors import DeconfoundError, OptionError, RunError, TableError
from deconfound.methods import method as method_named
from deconfound.methods.base import Method
from deconfound.networks import build_network
from deconfound.training.config import Config
from deconfound.training.fold import CHECKPOINT, RESULT, finished, fold_folder
from deconfound.training.problem import id_column
from deconfound.training.rehearsal import blank_setting
from deconfound.training.run import open_run
from deconfound.training.scaling import Scaler
from deconfound.training.sources import open_source, reads_scans
from deconfound.training.tasks import Task, answers_of, scores_of

AT_ONCE = 256


@dataclass(frozen=True)
class Predictions:
    """What a run says about new rows.

    Attributes:
        ids: A name for each row.
        task: What is predicted.
        scores: `(n, outputs)`: probabilities or quantities, the mean over the folds' models.
        spread: `(n, outputs)`: their standard deviation over these models; NaN for one model.
        id_column: What these names are called.
        seen: How many rows carry an id that the run was trained or tested on.
        assumed: One sentence for each value of a confound that folds did not know, and took as the mean of their
            training rows.
    """

    ids: tuple[str, ...]
    task: Task
    scores: Tensor
    spread: Tensor
    id_column: str
    seen: int
    assumed: tuple[str, ...] = ()

    def to_csv(self) -> str:
        """One line per row."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        kind = "prediction" if self.task.kind == "regression" else "score"
        names = self.task.output_names
        answers = answers_of(self.task, self.scores)
        predicted = [f"predicted_{label}" for label in self.task.labels] if answers else []
        writer.writerow(
            [self.id_column, *(f"{kind}_{n}" for n in names), *(f"{kind}_sd_{n}" for n in names), *predicted]
        )
        for row, name in enumerate(self.ids):
            spread = ["" if value != value else value for value in self.spread[row].tolist()]
            writer.writerow([name, *self.scores[row].tolist(), *spread, *(answers[row] if answers else [])])
        return text.getvalue()


def predict(
    run: str | Path,
    table: str | Path,
    images: str | Path | None = None,
    fold: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    skip_bad: bool = False,
) -> Predictions:
    """Predict new rows with the models of a run's folds.

    Args:
        run: The folder that `fit` wrote.
        table: The new rows, with the confounds that the method reads; labels are not needed.
        images: Where the samples are, if not in `table`: features, an array, or a folder of scans.
        fold: Use this fold's model alone; the mean over all folds if None.
        progress: Called with (folds done, folds).
        skip_bad: Leave out scans that cannot be read or have no row of the table, and warn.
    """
    run = Path(run)
    config, about = open_run(run)
    numbers = _folds(run, len(about["folds"]), fold)
    source = _new_rows(config, about, table, images, skip_bad)
    shape = tuple(about["shape"])
    if tuple(source.shape) != shape:
        raise TableError(f"samples must have the shape {shape} of the run's; got {tuple(source.shape)}.")
    task = Task.from_dict(about["task"])
    ids = _ids(config, source)
    scores = []
    unknown: dict[Assumed, list[int]] = {}
    for done, number in enumerate(numbers):
        folder = fold_folder(run, number)
        design = Design.from_dict(read_json(folder / "design.json"))
        scores.append(_fold_scores(config, folder, design, source, task))
        if method_named(config.method.name).reads_confounds:
            for each in design.assumed(source.table):
                unknown.setdefault(each, []).append(number)
        if progress is not None:
            progress(done + 1, len(numbers))
    stacked = torch.stack(scores)
    spread = stacked.std(0) if len(scores) > 1 else torch.full_like(stacked[0], float("nan"))
    key = id_column(config, source)
    known = {
        line.get(key or "id", line.get("id"))
        for number in range(len(about["folds"]))
        for line in _lines(fold_folder(run, number))
    }
    seen = 0 if key is None else sum(name in known for name in ids)  # row numbers are no ids
    told = tuple(_told(each, folds, numbers) for each, folds in unknown.items())
    return Predictions(ids, task, stacked.mean(0), spread, key or "id", seen, told)


def _told(value: Assumed, folds: list[int], asked: list[int]) -> str:
    where = "" if folds == asked else f" of fold{'s' * (len(folds) > 1)} {', '.join(map(str, folds))}"
    return f"{value}{where}: the mean of the training rows is used"


def _folds(run: Path, count: int, fold: int | None) -> list[int]:
    if fold is not None and not 0 <= fold < count:
        raise OptionError(f"--fold must be between 0 and {count - 1}; got {fold}.")
    wanted = list(range(count)) if fold is None else [fold]
    missing = [number for number in wanted if not (fold_folder(run, number) / RESULT).exists()]
    if missing:
        raise RunError(
            f"{run} must have its folds finished; got none of {', '.join(map(str, missing))}. Give the command that "
            "started the run again, or choose a finished fold with --fold."
        )
    return wanted


def _new_rows(
    config: Config, about: dict[str, Any], table: str | Path, images: str | Path | None, skip_bad: bool
) -> Source:
    names = tuple(about["inputs"]) or None
    data = replace(
        config.data,
        source=str(table if images is None else images),
        table=None if images is None else str(table),
        features=names,
        id=config.data.id,
    )
    if skip_bad and reads_scans(data):
        data = replace(data, options={**data.options, "skip_bad": True})
    source = open_source(data, [])
    values = getattr(source, "values", None)
    if names and values is not None and config.data.missing_features == "error" and np.isnan(values).any():
        row, column = np.argwhere(np.isnan(values))[0]
        raise TableError(
            f"features must be filled in every row; got an empty {names[column]!r} in row {row}. "
            "Fill it or leave the row out; a run with data.missing_features: mean takes empty ones as the mean."
        )
    if names and values is not None and np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise TableError(f"features must be finite; got an infinite {names[column]!r} in row {row}. Leave the row out.")
    return source


def _ids(config: Config, source: Source) -> tuple[str, ...]:
    key = id_column(config, source)
    return tuple(str(value) for value in (source.table[key] if key else range(len(source))))


def _fold_scores(config: Config, folder: Path, design: Design, source: Source, task: Task) -> Tensor:
    scaling = read_json(folder / "scaling.json")
    scaler = Scaler.from_dict(scaling["inputs"])
    method = restored(config, folder, design, tuple(source.shape), task).eval()
    metadata = _encoded(design, source) if type(method).reads_confounds else None
    logits = []
    with torch.inference_mode():
        for start in range(0, len(source), AT_ONCE):
            rows: NDArray[Any] = np.arange(start, min(start + AT_ONCE, len(source)))
            x = torch.from_numpy(scaler(source.read(rows)))
            said = method(x, None if metadata is None else metadata[rows])
            logits.append(said.reshape(len(rows), -1).double())
    whole = torch.cat(logits)
    if task.kind == "regression":
        whole = whole * torch.tensor(scaling["target_scale"]) + torch.tensor(scaling["target_mean"])
    return scores_of(task, whole)


def _encoded(design: Design, source: Source) -> Tensor:
    try:
        return torch.from_numpy(design.encode(source.table))
    except TableError as error:
        told = str(error)
        for key in ("missing", "unseen"):
            told = told.replace(f"or pass {key}='mean'", f"or train with design.{key}: mean")
        raise TableError(told) from error


def restored(config: Config, folder: Path, design: Design, shape: tuple[int, ...], task: Task) -> Method:
    """The trained method of a finished fold, after its file has been checked against the digest of the result."""
    path = folder / CHECKPOINT
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} must be readable; got {error.strerror}. Check the folder of the run.") from error
    if hashlib.sha256(content).hexdigest() != finished(folder)["checkpoint_sha256"]:
        raise RunError(
            f"{path} must be as the run wrote it; got content that does not match its digest. Delete {folder} and give "
            "the command that started the run again."
        )
    network = build_network(config.network.name, shape, task.outputs, config.network.options)
    setting = blank_setting(config, design, shape, task)
    options = config.method.options.get(config.method.name, {})
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    try:
        return method_named(config.method.name).restore(network, setting, state, **options)
    except RuntimeError as error:
        if isinstance(error, DeconfoundError):
            raise
        raise RunError(f"{path} must fit the network of its config; got {error}") from error


def _lines(folder: Path) -> list[dict[str, str]]:
    path = folder / "predictions.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
