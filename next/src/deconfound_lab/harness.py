"""Experiments as cells: each is computed once, stored in its own file, and joined to one JSON.

A cell is a dict of settings. Its hash names the file of its result, so that a stopped experiment
goes on with the cells that are missing, and a changed setting is another cell. Each result carries
the release and the commit that made it. Results of several releases can therefore stand in one
table, and say so.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joblib import Parallel, delayed

import deconfound
from deconfound.errors import OptionError, StateError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Cell = dict[str, Any]
# Called with the number of cells that are done, the number of cells, and a description.
OnProgress = Callable[[int, int, str], None]

# Options of glibc's mallopt.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGEST_INT = -1, -3, 2**31 - 1
PACKAGES = ("torch", "numpy", "pandas", "scikit-learn")


@dataclass(frozen=True)
class Page:
    """What an experiment shows, made from its results alone.

    Attributes:
        title: The title.
        text: Paragraphs by name.
        tables: Tables by name. The first column names the rows.
        figures: Figures by name.
    """

    title: str
    text: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """The results of an experiment, as its JSON holds them.

    Attributes:
        provenance: Where results were made: release, commit, whether the code had uncommitted
            changes (`dirty`), command, versions, platform and device.
        cells: One dict for each cell: `config`; `result`, or `error` if it failed; `seconds`;
            `release`; `commit`; and `provenance`, the place of its maker in that list.
    """

    provenance: list[dict[str, Any]]
    cells: list[dict[str, Any]]

    @classmethod
    def join(cls, stored: Iterable[Mapping[str, Any]]) -> Results:
        """Join stored cells, each of which holds the whole of its provenance."""
        makers: list[dict[str, Any]] = []
        cells = []
        for cell in stored:
            maker = cell["provenance"]
            if maker not in makers:
                makers.append(maker)
            origin = {"release": maker["release"], "commit": maker["commit"]}
            cells.append({**cell, **origin, "provenance": makers.index(maker)})
        return cls(makers, cells)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Results:
        """Read the JSON that `save` wrote."""
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON, whole or not at all, with one line for each cell."""
        lines = ",\n".join(json.dumps(cell, allow_nan=False) for cell in self.cells)
        makers = json.dumps(self.provenance, indent=1)
        _write_whole(Path(path), f'{{"provenance": {makers},\n"cells": [\n{lines}\n]}}\n')

    def stored_cells(self) -> list[dict[str, Any]]:
        """Return the cells with the whole of their provenance, as `join` takes them."""
        return [{**cell, "provenance": self.provenance[cell["provenance"]]} for cell in self.cells]

    def add(self, others: Results) -> Results:
        """Return these results, and those of others for cells that have none here."""
        cells = {cell_hash(cell["config"]): cell for cell in others.stored_cells()}
        for cell in self.stored_cells():
            if "result" in cell or cell_hash(cell["config"]) not in cells:
                cells[cell_hash(cell["config"])] = cell
        return Results.join(cells.values())

    def find(self, **settings: Any) -> list[dict[str, Any]]:
        """Return the finished cells whose config has these settings, in their order.

        Example:
            >>> made = {"release": "1.0.0", "commit": "abc"}
            >>> cell = {"config": {"arm": "pmdn", "seed": 0}, "result": {}, "provenance": made}
            >>> results = Results.join([cell])
            >>> len(results.find(arm="pmdn")), len(results.find(arm="mdn"))
            (1, 0)
        """
        finished = [cell for cell in self.cells if "result" in cell]
        return [cell for cell in finished if settings.items() <= cell["config"].items()]


@dataclass(frozen=True)
class Experiment:
    """Cells, what computes one of them, and what the results are shown as.

    Attributes:
        name: The name, as in `docs/results/<name>.json`.
        cells: The settings of each cell, plain JSON. The first are computed first.
        compute: Takes a cell and returns its result, plain JSON. A measure that does not exist is
            None, never NaN. It must be a function of a module, because processes import it.
        page: Makes the page from results, in which cells may be missing.
    """

    name: str
    cells: Sequence[Cell]
    compute: Callable[[Cell], dict[str, Any]]
    page: Callable[[Results], Page]


def run_experiment(
    experiment: Experiment,
    folder: str | os.PathLike[str],
    *,
    jobs: int = 1,
    minutes: float | None = None,
    on_progress: OnProgress | None = None,
) -> Results:
    """Compute the cells that the folder lacks, and return all that it has.

    Args:
        experiment: The experiment.
        folder: Holds one file for each cell, in `cells/`. A finished cell is not computed again;
            one that failed is stored with its error, and tried again by the next call.
        jobs: The number of processes.
        minutes: No cell is started after this time. Those that run then are finished.
        on_progress: Called after each cell with the number of finished cells, the number of cells
            and a description.

    Returns:
        The cells that are stored, in the order of the experiment.
    """
    files = {cell_hash(cell): cell_file(folder, cell) for cell in experiment.cells}
    if len(files) < len(experiment.cells):
        raise OptionError(f"The cells of {experiment.name!r} must differ; got equal ones.")
    missing = [cell for cell in experiment.cells if not _is_finished(files[cell_hash(cell)])]
    done = len(files) - len(missing)
    maker = describe_provenance()
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes

    def tasks() -> Iterator[Any]:
        for cell in missing:
            if time.monotonic() >= deadline:
                return
            yield delayed(_compute)(experiment.compute, cell, maker)

    # A cell takes minutes: each process gets the next one when it has finished one, so that the
    # deadline is read as late as possible.
    pool = Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch="n_jobs")
    for entry in pool(tasks()):
        _write_whole(files[cell_hash(entry["config"])], json.dumps(entry, allow_nan=False) + "\n")
        done += "result" in entry
        if on_progress is not None:
            on_progress(done, len(files), describe_cell(entry))
    return load_cells(experiment, folder)


def load_cells(experiment: Experiment, folder: str | os.PathLike[str]) -> Results:
    """Return the stored cells of an experiment, in its order."""
    paths = [cell_file(folder, cell) for cell in experiment.cells]
    return Results.join(_read(path) for path in paths if path.exists())


def use_one_thread() -> None:
    """Compute on one thread, and let the C library keep freed memory.

    On Linux, glibc otherwise returns the features of each step to the system. Getting them back
    costs a CPU up to half of an evaluation and a fifth of a training step.
    """
    import torch

    torch.set_num_threads(1)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, LARGEST_INT)
        mallopt(M_MMAP_THRESHOLD, LARGEST_INT)


def cell_hash(config: Mapping[str, Any]) -> str:
    """Return the hash of a cell's settings, which does not depend on their order.

    Example:
        >>> cell_hash({"arm": "pmdn", "batch": 20}) == cell_hash({"batch": 20, "arm": "pmdn"})
        True
    """
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def cell_file(folder: str | os.PathLike[str], config: Mapping[str, Any]) -> Path:
    """Return the file of a cell."""
    return Path(folder) / "cells" / f"{cell_hash(config)}.json"


def describe_cell(entry: Mapping[str, Any]) -> str:
    """Return the settings of a cell, the time that it took, and its error if it failed."""
    settings = " ".join(f"{name}={value}" for name, value in entry["config"].items())
    end = f": {entry['error']}" if "error" in entry else ""
    return f"{settings} ({entry['seconds']:.0f} s){end}"


def describe_provenance() -> dict[str, Any]:
    """Return what one must know to make a result again.

    `dirty` is True if the code of the library or of the lab has changes that no commit has.
    """
    source = Path(__file__).parents[1]
    return {
        "release": deconfound.__version__,
        "commit": _run_git("rev-parse", "HEAD", folder=source) or "unknown",
        "dirty": bool(_run_git("status", "--porcelain", "--", ".", folder=source)),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "device": _device_name(),
    }


def _compute(
    compute: Callable[[Cell], dict[str, Any]], cell: Cell, maker: dict[str, Any]
) -> dict[str, Any]:
    """Return a cell with its result or its error, ready to be stored."""
    start = time.monotonic()
    entry: dict[str, Any] = {"config": cell}
    try:
        entry["result"] = compute(dict(cell))
        json.dumps(entry["result"], allow_nan=False)
    # One cell that fails must not end the others, whatever the reason.
    except Exception as error:
        entry = {"config": cell, "error": f"{type(error).__name__}: {error}"}
    return {**entry, "seconds": round(time.monotonic() - start, 1), "provenance": maker}


def _is_finished(path: Path) -> bool:
    return path.exists() and "result" in _read(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StateError(f"{path} is no JSON: {error}. Delete it to compute its cell.") from error
    return entry


def _write_whole(path: Path, text: str) -> None:
    """Write a file beside, then give it its name: no half-written file is ever read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def _run_git(*arguments: str, folder: Path) -> str:
    """Return what git prints; nothing where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _device_name() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
