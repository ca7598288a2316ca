"""A run: one method on all folds, in one folder that is complete or can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deconfound.data.files import read_json, sweep, write_json, write_text
from deconfound.errors import OptionError, RunError
from deconfound.training.config import Config
from deconfound.training.fold import RESULT, finished, fold_folder, follower, run_fold
from deconfound.training.loading import config_from
from deconfound.training.needs import need
from deconfound.training.problem import Problem, open_problem
from deconfound.training.provenance import provenance

FORMAT, VERSION = "deconfound-run", 1
ABOUT, RESULTS = "run.json", "results.json"
Tick = Callable[[int, int, int, float], None]


def start(problem: Problem) -> Path:
    """Make the run's folder, or check that the one there belongs to this config and these data."""
    config, folder = problem.config, Path(problem.config.run.folder)
    if (folder / ABOUT).exists():
        about = read_json(folder / ABOUT)
        _same(folder, about["identity"], config.identity(), "")
        if about["provenance"]["data"] != problem.source.fingerprint:
            raise RunError(
                f"the data of {folder} must be those it was started with; got files with other content. Set run.folder "
                "to another folder, or bring the old files back."
            )
        sweep(folder)
        return folder
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} must be a folder; got a file. Set run.folder to another place.")
    if folder.exists() and any(item for item in folder.iterdir() if item.name not in (".lock", "config.yaml")):
        raise RunError(
            f"{folder} must be empty or hold a run; got a folder with other files. Set run.folder to another one."
        )
    yaml = need("yaml", "train")
    write_text(folder / "config.yaml", yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True))
    about = {
        "format": FORMAT,
        "version": VERSION,
        "identity": config.identity(),
        "task": problem.task.to_dict(),
        "shape": list(problem.source.shape),
        "inputs": list(getattr(problem.source, "names", ())),
        "folds": [fold.name for fold in problem.folds],
        "provenance": provenance(config.run.seed, problem.source.fingerprint),
    }
    write_json(folder / ABOUT, about)
    return folder


def fit(config: Config, tick: Tick | None = None) -> dict[str, Any]:
    """Run every fold that is not finished, and write `results.json`.

    Args:
        config: The run.
        tick: Called with (fold, epoch, epochs, best validation loss) after each epoch.

    Returns:
        The content of `results.json`, in every process where several train together.
    """
    problem = open_problem(config)
    folder = start(problem)
    for number in range(len(problem.folds)):
        inner = None if tick is None else lambda *state, number=number: tick(number, *state)
        run_fold(problem, number, fold_folder(folder, number), inner)
    return _gathered_once(folder)


def _gathered_once(folder: Path) -> dict[str, Any]:
    """`gather`, in the first of several processes that train together; the others wait and read what it wrote."""
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    if together and follower():
        torch.distributed.barrier()
        content: dict[str, Any] = read_json(folder / RESULTS)
        return content
    content = gather(folder)
    if together:
        torch.distributed.barrier()
    return content


def gather(folder: Path) -> dict[str, Any]:
    """Write `results.json` from the finished folds of a run; all of them must be."""
    about = read_json(folder / ABOUT)
    folds = [fold_folder(folder, number) for number in range(len(about["folds"]))]
    missing = [fold.name for fold in folds if not (fold / RESULT).exists()]
    if missing:
        raise RunError(f"{folder} must have every fold finished; got none of {', '.join(missing)}. Run it again.")
    results = [finished(fold) for fold in folds]
    seconds = {str(result["fold"]): result.pop("seconds") for result in results}
    content = {**about, "folds": results, "metrics": summary(results), "seconds": seconds}
    write_json(folder / RESULTS, content)
    return content


def summary(results: list[Mapping[str, Any]] | list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation over folds of each measure, folds where it does not exist left out."""
    out = {}
    for name in results[0]["metrics"]:
        values = [result["metrics"][name] for result in results if result["metrics"][name] is not None]
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        out[name] = {"mean": float(np.mean(values)) if values else None, "sd": spread, "folds": len(values)}
    return out


def open_run(folder: str | Path) -> tuple[Config, dict[str, Any]]:
    """The config and the description of a run that lies in a folder."""
    folder = Path(folder)
    if not (folder / ABOUT).exists():
        runs = sorted(item.parent for item in folder.glob(f"*/{ABOUT}"))
        hint = f"those of {len(runs)} runs. Give one of them, such as {runs[0]}" if runs else f"no {ABOUT} there"
        close = "." if runs else ". Give the folder that `fit` wrote."
        raise RunError(f"{folder} must be the folder of a run; got {hint}{close}")
    yaml = need("yaml", "train")
    about = read_json(folder / ABOUT)
    kept = about if isinstance(about, dict) else {}
    if kept.get("format") != FORMAT or kept.get("version") != VERSION:
        found = f"{kept.get('format')} {kept.get('version')}"
        raise RunError(f"{folder / ABOUT} must have format {FORMAT} {VERSION}; got {found}.")
    written = folder / "config.yaml"
    try:
        return config_from(yaml.safe_load(written.read_text(encoding="utf-8"))), kept
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OptionError) as error:
        raise RunError(f"{written} must be as the run wrote it; got {error} Bring the old file back.") from error


def _same(folder: Path, old: Any, new: Any, where: str) -> None:
    differences = _differences(old, new, where)
    if differences:
        told = "; ".join(f"{key}: {a!r} then, {b!r} now" for key, a, b in differences)
        raise RunError(
            f"the config of {folder} must be the one it was started with; got {told}. Set run.folder to another "
            "folder, or delete this one."
        )


def _differences(old: Any, new: Any, where: str) -> list[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [item for key in keys for item in _differences(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))]
    return [] if old == new else [(where, old, new)]
