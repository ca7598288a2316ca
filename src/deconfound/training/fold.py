"""One fold of a run: prepare, train or go on training, predict the test rows, and leave complete files."""

from __future__ import annotations

import csv
import io
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.data.files import file_digest, only_one, read_json, sweep, write_bytes, write_json, write_text
from deconfound.methods import method as method_named
from deconfound.methods.base import Method, Setting
from deconfound.networks import build_network, hidden_features
from deconfound.training.batches import held_out, loader, training_batch
from deconfound.training.config import Config
from deconfound.training.losses import criterion
from deconfound.training.problem import FoldData, Part, Problem, fold_data
from deconfound.training.step import finish, seed_for
from deconfound.training.tasks import Task, answers_of, performance, scores_of

RESULT, CHECKPOINT, LAST = "result.json", "checkpoint.pt", "last.ckpt"


@dataclass(frozen=True)
class Outputs:
    """What a method says about rows: logits `(n, outputs)` and hidden features `(n, d)` where there are any."""

    logits: Tensor
    features: Tensor | None


def fold_folder(run: Path, number: int) -> Path:
    """Where a fold lies."""
    return run / f"fold-{number}"


def run_fold(problem: Problem, number: int, folder: Path, tick: Any = None) -> dict[str, Any]:
    """Train and test one fold, or return its result where that is already there.

    Args:
        problem: The run's problem.
        number: Which fold.
        folder: The fold's folder.
        tick: Called with (epoch, epochs, best validation loss) after each epoch.
    """
    if (folder / RESULT).exists():
        return finished(folder)
    if follower():
        return _train_only(problem, number, folder)
    with only_one(folder):
        if (folder / RESULT).exists():
            return finished(folder)
        sweep(folder)
        return _run(problem, number, folder, tick)


def finished(folder: Path) -> dict[str, Any]:
    """The result of a finished fold."""
    found: dict[str, Any] = read_json(folder / RESULT)
    return found


def prepare(data: FoldData) -> Method:
    """The method around a fresh network; the same weights for every method of a seed and fold."""
    from deconfound.training.engine import seed_all

    config, problem = data.problem.config, data.problem
    seed_all(seed_for(config.run.seed, data.fold.name, "network"))
    network = build_network(config.network.name, problem.source.shape, problem.task.outputs, config.network.options)
    return around(network, data, config)


def around(network: torch.nn.Module, data: Any, config: Config) -> Method:
    """A network under the config's method; `data` gives the design and the training rows."""
    setting = Setting(data.design, config.method.at, data.training, config.training.lr, config.design.site)
    options = config.method.options.get(config.method.name, {})
    return method_named(config.method.name).prepare(network, setting, **options)


def _run(problem: Problem, number: int, folder: Path, tick: Any) -> dict[str, Any]:
    from deconfound.training.trainers import threads

    start = time.monotonic()
    config = problem.config
    with threads(config.training.threads):
        data, method, kept = _fitted(problem, number, folder, tick)
        said = outputs_of(method, data, data.test, config)
    logits = said.logits
    if problem.task.kind == "regression":
        logits = logits * torch.from_numpy(data.target_scale) + torch.from_numpy(data.target_mean)
    codes = problem.codes[data.test.rows]
    write_json(folder / "design.json", data.design.to_dict())
    scaling = {
        "inputs": data.scaler.to_dict(),
        "target_mean": data.target_mean.tolist(),
        "target_scale": data.target_scale.tolist(),
    }
    write_json(folder / "scaling.json", scaling)
    write_text(folder / "history.csv", _history(kept["history"]))
    write_text(folder / "predictions.csv", _predictions(problem, data.test, logits))
    if config.run.features and said.features is not None:
        write_bytes(folder / "features.npz", _npz(features=said.features.numpy(), row=data.test.rows))
    saved = io.BytesIO()
    torch.save(method.cpu().state_dict(), saved)
    write_bytes(folder / CHECKPOINT, saved.getvalue())
    result = {
        "fold": number,
        "name": data.fold.name,
        "rows": {"train": len(data.train.rows), "validation": len(data.validation.rows), "test": len(data.test.rows)},
        "test_rows": seed_for(data.test.rows.tolist()),
        "epochs": len(kept["history"]),
        "best_epoch": kept["best"]["epoch"],
        "validation_loss": kept["best"]["loss"],
        "metrics": {key: _or_none(value) for key, value in performance(problem.task, logits, codes).items()},
        "checkpoint_sha256": file_digest(folder / CHECKPOINT),
        "seconds": round(time.monotonic() - start, 3),
    }
    write_json(folder / RESULT, result)  # the last file: a fold is finished when it is there
    (folder / LAST).unlink(missing_ok=True)
    return result


def _fitted(problem: Problem, number: int, folder: Path, tick: Any) -> tuple[FoldData, Method, dict[str, Any]]:
    """The method with its best weights; every process of a distributed run comes here: their layers confer."""
    from deconfound.training.engine import train_with_lightning

    data = fold_data(problem, number)
    method = prepare(data)
    training = problem.config.training
    loss = criterion(training.loss, problem.task.kind, training.focal_gamma)
    kept = train_with_lightning(method, data, loss, folder / LAST, tick)
    device = _device(problem.config)
    rows = loader(data, data.validation, max(training.batch_size, 256), None, training.workers)
    finish(method.to(device), lambda: held_out(rows, device), kept["best"]["weights"])
    return data, method, kept


def _train_only(problem: Problem, number: int, folder: Path) -> dict[str, Any]:
    """The part of a process that another one started beside itself: it trains along and writes nothing."""
    _fitted(problem, number, folder, None)
    return {}


def follower() -> bool:
    """Whether this process is not the first of several that train together."""
    return any(int(os.environ.get(name, "0")) > 0 for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def _device(config: Config) -> torch.device:
    training = config.training
    if training.accelerator not in ("auto", "gpu", "cuda") or not torch.cuda.is_available():
        return torch.device("cpu")
    mine = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", training.devices[mine] if isinstance(training.devices, tuple) else mine)


def outputs_of(method: Method, data: Any, part: Part, config: Config) -> Outputs:
    """Logits and hidden features of rows, in eval."""
    device = _device(config)
    method = method.to(device).eval()
    logits = []
    with torch.inference_mode(), hidden_features(method.network, config.network.features or "") as collected:
        for batch in loader(data, part, max(config.training.batch_size, 256), None, config.training.workers):
            given = training_batch(batch)
            said = method(given.x.to(device), given.metadata.to(device))
            logits.append(said.reshape(len(given.x), -1).float().cpu())
    return Outputs(torch.cat(logits).double(), None if collected is None else collected.features().float())


def _predictions(problem: Problem, part: Part, logits: Tensor) -> str:
    task = problem.task
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    name = problem.id_column
    writer.writerow(["row", name if name and name != "row" else "id", *task.labels, *prediction_columns(task)])
    labels = [np.asarray(problem.source.table[name])[part.rows].tolist() for name in task.labels]
    rows = zip(part.rows.tolist(), problem.id_of(part.rows), *labels, strict=True)
    for known, said in zip(rows, prediction_cells(task, logits), strict=True):
        writer.writerow([*known, *said])
    return text.getvalue()


def prediction_columns(task: Task) -> list[str]:
    """The columns of a table of predictions after those that say which row it is."""
    if task.kind == "regression":
        return [f"prediction_{name}" for name in task.output_names]
    predicted = [f"predicted_{name}" for name in task.labels]
    return [*(f"logit_{n}" for n in task.output_names), *(f"score_{n}" for n in task.output_names), *predicted]


def prediction_cells(task: Task, logits: Tensor) -> list[list[Any]]:
    """Those columns' cells, row by row; floats are written so that they read back exactly."""
    scores = scores_of(task, logits)
    answers = answers_of(task, scores)
    if answers is None:
        return [list(row) for row in logits.tolist()]
    return [[*a, *b, *c] for a, b, c in zip(logits.tolist(), scores.tolist(), answers, strict=True)]


def _history(rows: list[dict[str, float]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(
        text, fieldnames=list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _npz(**arrays: NDArray[Any]) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def _or_none(value: float) -> float | None:
    return value if value == value else None
