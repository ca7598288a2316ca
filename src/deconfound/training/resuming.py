"""Start a run in its folder, or go on with the one that lies there, if it has the same config, data and network."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from deconfound.data.files import only_one, sweep, write_json, write_text
from deconfound.errors import RunError
from deconfound.networks.packages import imported, module_folder, source_digest
from deconfound.networks.pretrained import weights_digest
from deconfound.training.fold import follower
from deconfound.training.origin import provenance
from deconfound.training.problem import Problem, id_column, ids_in, names_in
from deconfound.training.run_folder import (
    ABOUT,
    CONFIG,
    FORMAT,
    NEVER_TESTED,
    ROW,
    ROW_OF_TABLE,
    VERSION,
    RunFolder,
    config_text,
    open_run,
    signed,
)
from deconfound.training.step import seed_for

_imported_from: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def start_run(problem: Problem) -> RunFolder:
    """Make the run's folder, or check that the one there belongs to this config and these data.

    The user may change the file of a network of their own as long as nothing has been trained with it.
    """
    config, folder = problem.config, Path(problem.config.run.folder)
    sweep(folder)
    identity, source = config.identity(), source_digest(config.network.name)
    weights = weights_digest(config.network.name, config.network.weights)
    run = open_run(folder) if (folder / ABOUT).exists() else None
    if run is not None:
        _check_same(folder, run.about["identity"], identity, "config")
        _check_same(folder, run.about["network_weights"], weights, "file of the network's weights")
        run.check_data(problem.source.fingerprint)
        _check_source(run, source)
        _check_folds(run, problem)
    elif folder.exists() and any(item.name != ".lock" for item in folder.iterdir()):
        raise RunError(
            f"{folder} must be empty or hold a run; got a folder with other files. Set run.folder to another one."
        )
    _check_imported(config.network.name, source)
    if run is None:
        about = {
            "format": FORMAT,
            "version": VERSION,
            "identity": identity,
            "config": config.to_dict(),
            "network_source": source,
            "network_weights": weights,
            "network_folder": module_folder(config.network.name),
            "task": problem.task.to_dict(),
            "shape": list(problem.source.shape),
            "inputs": list(getattr(problem.source, "names", ())),
            "folds": [fold.name for fold in problem.folds],
            NEVER_TESTED: _never_tested(problem),
            ROW: ROW_OF_TABLE,
            "provenance": provenance(config.run.seed, problem.source.fingerprint),
        }
        write_json(folder / ABOUT, signed(about))
        run = RunFolder(folder, about, config)
    elif run.about["network_source"] != source:
        run = _with_source(run, source)
    if not (folder / CONFIG).exists():
        write_text(folder / CONFIG, config_text(run.about["config"]))
    return run


def _never_tested(problem: Problem) -> dict[str, list[str]]:
    """Ids and people of the rows that no fold is tested on, for `predict` to know them again."""
    tested = np.concatenate([fold.test for fold in problem.folds])
    rows = np.setdiff1d(np.flatnonzero(~np.isnan(problem.codes).any(axis=1)), tested)
    columns = [name for name in (id_column(problem.config, problem.source), problem.config.data.person) if name]
    cells = {name: names_in(ids_in(problem.source, name)[rows]) for name in columns}
    return {name: [each for each in dict.fromkeys(names) if each] for name, names in cells.items()}


def _check_source(run: RunFolder, source: str | None) -> None:
    """Refuse another file of the user's own network where there is training with the old one."""
    begun = [fold.path.name for fold in run.folds if fold.begun()]
    if begun and run.about["network_source"] != source:
        raise RunError(
            f"the source code of the network of {run.path} must be the one it was started with; got a file that has "
            f"changed since, and training with the old one in {', '.join(begun)}. Bring the old file back to go on, or "
            "set run.folder to another folder to train every fold with the new one."
        )


def _check_folds(run: RunFolder, problem: Problem) -> None:
    """Refuse to go on where the rows are divided otherwise: rows that a fold was tested on would train another one."""
    for fold in run.folds:
        if fold.finished() and fold.result()["test_rows"] != seed_for(problem.folds[fold.number].test.tolist()):
            raise RunError(
                f"the folds of {run.path} must be divided as when it was started; got other test rows in "
                f"{fold.path.name}: another version of deconfound or numpy divided them. Set run.folder to another "
                "folder to train every fold anew, or go on with the version that run.json names."
            )


def _with_source(run: RunFolder, source: str | None) -> RunFolder:
    """The run with the file of its network as it is now."""
    kept = {key: value for key, value in run.about.items() if key != "sha256"}
    about = {**kept, "network_source": source, "network_folder": module_folder(run.config.network.name)}
    if not follower():
        with ExitStack() as held:
            for fold in run.folds:  # a job that an earlier command sent may still be training with the old file
                held.enter_context(only_one(fold.path))
            write_json(run.path / ABOUT, signed(about))
    return RunFolder(run.path, about, run.config)


def _check_imported(name: str, source: str | None) -> None:
    """Refuse a file that has changed since this process imported it: the old code would be trained."""
    if source is not None and _imported_from.setdefault(imported(name), source) != source:
        raise RunError(
            f"network.name must be code that its file holds; got {name!r}, whose file has changed since this process "
            "imported it. Start Python again."
        )


def _check_same(folder: Path, old: Any, new: Any, what: str) -> None:
    differences = _differences(old, new, "")
    if differences:
        listed = "; ".join(f"{key}: {a!r} then, {b!r} now".lstrip(": ") for key, a, b in differences)
        raise RunError(
            f"the {what} of {folder} must be the one it was started with; got {listed}. Set run.folder to another "
            "folder, or delete this one."
        )


def _differences(old: Any, new: Any, where: str) -> list[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [item for key in keys for item in _differences(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))]
    return [] if old == new else [(where, old, new)]
