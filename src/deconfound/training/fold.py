"""One fold of a run: prepare, train or go on training, predict the test rows, and leave complete files."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.auditing import training_problems
from deconfound.data import csv_text, only_one, sweep
from deconfound.design.table import is_missing
from deconfound.methods import StratumCriterion, WScores
from deconfound.methods import method as method_named
from deconfound.methods.base import Method, Setting
from deconfound.methods.choosing import HeldOutLoss, climb, held_out_loss
from deconfound.networks import build_network
from deconfound.training.balancing import independent_performance
from deconfound.training.batches import held_out, loader
from deconfound.training.config import Config
from deconfound.training.fold_data import FoldData, Part, fold_data
from deconfound.training.losses import chance_loss, criterion
from deconfound.training.problem import Problem, id_column, row_numbers
from deconfound.training.run_folder import (
    CHECKPOINT,
    FEATURES,
    LAST,
    PREDICTIONS,
    ROW,
    ROW_OF_TABLE,
    FoldFolder,
    RunFolder,
)
from deconfound.training.samples import Predictions, outputs_of
from deconfound.training.scaling import in_units
from deconfound.training.sources import current_fingerprint
from deconfound.training.step import finish, number_of_batches, seed_for, threads
from deconfound.training.tasks import has_score, performance, prediction_table
from deconfound.training.w_scores import fit_w_scores, standardised


def run_fold(problem: Problem, run: RunFolder, number: int, on_epoch: Any = None) -> dict[str, Any]:
    """Train and test one fold, or return its result where that is already there.

    The content of the data is compared with the run's digest before anything is read, and again before the result is
    written: no fold mixes rows of two versions of a file. `on_epoch` is called with (epoch, epochs, best validation
    loss) after each epoch.
    """
    folder = run.folds[number]
    if folder.finished():
        return folder.checked()
    if follower():
        _fitted(problem, number, folder.path, None)  # it trains along with the process that started it
        return {}
    with only_one(folder.path):
        if folder.finished():
            return folder.checked()
        sweep(folder.path)
        run.check_data(current_fingerprint(problem))
        return _run(problem, run, folder, on_epoch)


def prepare(data: FoldData, chosen: Mapping[str, Any] | None = None) -> Method:
    """The method around a fresh network; the same weights for every method of a seed and fold."""
    from deconfound.training.engine import seed_all

    config, problem = data.problem.config, data.problem
    seed_all(seed_for(config.run.seed, data.fold.name, "network"))
    shape, outputs, network = problem.source.shape, problem.task.outputs, config.network
    built = build_network(network.name, shape, outputs, network.options, network.weights, network.freeze)
    setting = Setting(data.design, config.method.at, data.training, config.training.lr, config.design.site)
    return method_named(config.method.name).prepare(built, setting, **{**config.method.own_options, **(chosen or {})})


def _run(problem: Problem, run: RunFolder, folder: FoldFolder, on_epoch: Any) -> dict[str, Any]:
    start = time.monotonic()
    config = problem.config
    with threads(config.training.threads):
        trained = _fitted(problem, folder.number, folder.path, on_epoch)
        data, kept, history = trained.data, trained.kept, trained.kept["history"]
        said = _outputs(trained.method, data, data.test)
        held = _outputs(trained.method, data, data.validation).logits if config.training.w_scores else None
    logits, norm, assumed = in_units(said.logits, data.units), None, None
    if held is not None:
        norm = fit_w_scores(problem, data.validation.rows, in_units(held, data.units).numpy())
        tested = problem.table_at(data.test.rows, labels=False)
        logits, assumed = standardised(norm, logits, tested), [str(value) for value in norm.design.assumed(tested)]
    run.check_data(current_fingerprint(problem))
    measured = performance(problem.task, logits, problem.codes[data.test.rows])
    measured |= independent_performance(problem, data.test.rows, logits)
    without_pair = [epoch["train_without_pair"] for epoch in history if "train_without_pair" in epoch]
    result = {
        "name": data.fold.name,
        "seed": config.run.seed,
        "rows": {"train": len(data.train.rows), "validation": len(data.validation.rows), "test": len(data.test.rows)},
        "note": data.fold.note,
        "balance": None if (weights := problem.balance(folder.number)) is None else weights.train.to_dict(),
        "unknown_to_w_scores": assumed,
        "batches_without_pair": float(np.mean(without_pair)) if without_pair else None,
        "rows_without_score": int((~has_score(logits)).sum()),
        "test_rows": seed_for(data.test.rows.tolist()),
        "epochs": len(history),
        "best_epoch": kept["best"]["epoch"],
        "validation_loss": kept["best"]["loss"],
        "chosen": trained.chosen,
        "problems": _problems(trained, folder.number, logits),
        "metrics": {key: None if value != value else value for key, value in measured.items()},
        "seconds": round(time.monotonic() - start, 3),
    }
    by_table = run.about.get(ROW) == ROW_OF_TABLE
    numbers = (row_numbers(problem.source) if by_table else np.arange(len(problem.source)))[data.test.rows]
    written = folder.write(_files(trained, numbers, logits, said.features, norm), result)
    for last in folder.path.glob(f"*{LAST}"):
        last.unlink()
    return written


def _files(
    trained: Trained, numbers: NDArray[Any], logits: Tensor, features: Tensor | None, norm: WScores | None
) -> dict[str, bytes]:
    """The content of every file of a finished fold but its result; `numbers` are what its test rows are called."""
    data, history = trained.data, trained.kept["history"]
    scaling = {
        "inputs": data.scaler.to_dict(),
        **data.units,
        "w_scores": None if norm is None else norm.to_dict(),
    }
    saved = io.BytesIO()
    torch.save(trained.method.cpu().state_dict(), saved)
    files = {
        "design.json": json.dumps(data.design.to_dict(), indent=1, ensure_ascii=False).encode(),
        "scaling.json": json.dumps(scaling, indent=1).encode(),
        "history.csv": csv_text({key: [row[key] for row in history] for key in history[0]}).encode(),
        PREDICTIONS: _predictions(data.problem, data.test, numbers, logits).encode(),
        CHECKPOINT: saved.getvalue(),
    }
    if data.problem.config.run.features and features is not None:
        arrays = io.BytesIO()
        np.savez_compressed(arrays, features=features.numpy(), row=numbers)
        files[FEATURES] = arrays.getvalue()
    return files


@dataclass(frozen=True)
class Trained:
    """A method with its best weights, the history of its training, and how its weight was chosen.

    `nothing_removed` says why the weight is 0, where the rule on validation rows chose that.
    """

    data: FoldData
    method: Method
    kept: dict[str, Any]
    chosen: dict[str, Any] | None = None
    nothing_removed: str | None = None


def _fitted(problem: Problem, number: int, folder: Path, on_epoch: Any) -> Trained:
    """The method with its best weights; every process of a distributed run comes here: their layers confer."""
    data, training, asked = fold_data(problem, number), problem.config.training, problem.config.method
    batches = training.epochs * number_of_batches(len(data.train.rows), training.batch_size)
    rungs = method_named(asked.name).rungs(asked.own_options, batches)
    if not rungs:
        return _trained(data, {}, folder / LAST, on_epoch)[0]
    climbed = climb(rungs, lambda options: _trained(data, options, folder / _last_of(options), on_epoch))
    tried = [{**each.options, **asdict(each.loss), "passed": each.passed} for each in climbed.tried]
    chosen = {**climbed.chosen, "told": climbed.sentence, "tried": tried}
    return replace(climbed.result, chosen=chosen, nothing_removed=climbed.warning)


def _trained(data: FoldData, options: Mapping[str, Any], last: Path, on_epoch: Any) -> tuple[Trained, HeldOutLoss]:
    """A training under these options of the method, and its loss on the validation rows."""
    from deconfound.training.trainers import train_with_lightning

    problem, training = data.problem, data.problem.config.training
    method = prepare(data, options)
    loss = criterion(training.loss, problem.task.kind, training.focal_gamma, prevalence(data))
    kept = train_with_lightning(method, data, loss, last, on_epoch)
    device = _device(problem.config)
    rows = loader(data, data.validation)
    finish(method.to(device), lambda: held_out(rows, device), kept["best"]["weights"])
    return Trained(data, method, kept), held_out_loss(method, held_out(rows, device), loss)


def _last_of(options: Mapping[str, Any]) -> str:
    """The file of one of several trainings."""
    return "-".join(f"{name}-{value:g}" for name, value in options.items()) + f"-{LAST}"


def prevalence(data: FoldData) -> list[float]:
    """The share of each label, or class, in the training rows."""
    target = data.train.target
    classes = torch.nn.functional.one_hot(target) if target.dtype == torch.int64 else target
    return [float(share) for share in classes.double().reshape(len(target), -1).mean(0)]


def follower() -> bool:
    """Whether this process is not the first of several that train together."""
    return any(int(os.environ.get(name, "0")) > 0 for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def _device(config: Config) -> torch.device:
    training = config.training
    if training.accelerator not in ("auto", "gpu", "cuda") or not torch.cuda.is_available():
        return torch.device("cpu")
    mine = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", training.devices[mine] if isinstance(training.devices, tuple) else mine)


def _outputs(method: Method, data: FoldData, part: Part) -> Predictions:
    """Logits `(n, outputs)` and hidden features of rows."""
    config = data.problem.config
    device = _device(config)
    pairs = ((batch.x, batch.metadata) for batch in held_out(loader(data, part), device))
    said = outputs_of(method.to(device), pairs, config.network.features or "")
    return replace(said, logits=said.logits.reshape(len(part.rows), -1).double())


def _predictions(problem: Problem, part: Part, numbers: NDArray[Any], logits: Tensor) -> str:
    """The test rows with their labels, confounds and outputs: a table that `deconfound audit` reads by itself."""
    task, person = problem.task, problem.config.data.person
    key = id_column(problem.config, problem.source)
    names = dict.fromkeys([*task.labels, *problem.confounds, *([person] if person else [])])
    known = {"row": numbers.tolist(), key or "id": problem.id_of(part.rows)}
    known |= {name: _cells(problem.source.table[name], part.rows) for name in names if name not in known}
    return csv_text({**known, **prediction_table(task, logits)})


def _cells(column: Any, rows: NDArray[Any]) -> list[Any]:
    return [None if is_missing(value) else value for value in np.asarray(column)[rows].tolist()]


def _problems(trained: Trained, fold: int, outputs: Tensor) -> list[dict[str, Any]]:
    """A record for each sign that a training failed, such as a loss at chance or constant outputs of the test rows."""
    data, history = trained.data, trained.kept["history"]
    config, task = data.problem.config, data.problem.task
    training = config.training
    loss = criterion(training.loss, task.kind, training.focal_gamma)
    chance = None
    if not isinstance(loss, StratumCriterion):
        weights = data.train.weight, data.validation.weight
        chance = chance_loss(loss, task.kind, data.train.target, data.validation.target, weights)
    found = training_problems(
        fold=fold,
        seed=config.run.seed,
        validation_losses=[epoch["val_loss"] for epoch in history],
        best_epoch=trained.kept["best"]["epoch"],
        chance_loss=chance,
        outputs=outputs.numpy(),
        skipped_steps=int(history[-1].get("skipped_batches", 0)),
        steps=len(history) * number_of_batches(len(data.train.rows), training.batch_size),
        stopped_early=len(history) < training.epochs,
        nothing_removed=trained.nothing_removed,
    )
    return [asdict(problem) for problem in found]
