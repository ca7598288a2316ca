"""Run the cells of an experiment: skip what is finished, stop in time, go on later, in one process or several."""

from __future__ import annotations

import multiprocessing
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from deconfound.data import read_json, write_json
from deconfound.errors import DeconfoundError, OptionError, RunError
from deconfound_lab.harness.page import Page, write_page
from deconfound_lab.harness.provenance import origin
from deconfound_lab.harness.store import Cell, Finished, Store

RESULTS = "results.json"
Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""


class OutOfTime(Exception):
    """The computation of a cell ends early; what it has kept so far stays, and it is computed anew next time."""


class Signals:
    """What the computation of a cell may say on its way.

    `keep` stores a part of a result; `end` is when no time is left, on the monotonic clock, None for never.
    """

    def __init__(
        self,
        progress: Progress | None = None,
        key: str = "",
        keep: Callable[[Mapping[str, Any]], None] | None = None,
        end: float | None = None,
    ) -> None:
        self._progress, self._key, self._keep, self._end = progress, key, keep, end

    def tick(self, done: int, total: int) -> None:
        """So much of the cell is done."""
        if self._progress is not None:
            self._progress(self._key, done, total)

    def keep(self, part: Mapping[str, Any]) -> None:
        """Store what is there so far; raises `OutOfTime` when no time is left."""
        if self._keep is not None:
            self._keep(part)
        if not time_left(self._end):
            raise OutOfTime


class Cells(ABC):
    """What is computed piece by piece. Its objects travel to other processes, so data are loaded late.

    Attributes:
        modules: Parts of the lab that its results depend on, beside the library; see `code_digest`.
        seed: Of everything random.
        data: Fingerprint of the data.
    """

    modules: ClassVar[tuple[str, ...]]
    seed: int = 0
    data: str = ""

    @property
    @abstractmethod
    def definition(self) -> Mapping[str, Any]:
        """What all cells depend on, in plain values."""

    @abstractmethod
    def cells(self) -> Sequence[Cell]:
        """Every cell, in the order in which they are computed."""

    @abstractmethod
    def compute(self, cell: Cell, signals: Signals) -> Mapping[str, Any]:
        """The result of a cell: plain values and arrays by name."""

    def __getstate__(self) -> dict[str, Any]:
        """Without what is loaded on demand: another process loads it by itself."""
        kind = type(self)
        return {k: v for k, v in self.__dict__.items() if not isinstance(getattr(kind, k, None), cached_property)}


class Experiment(Cells):
    """Cells that end in `results.json` and a page."""

    @abstractmethod
    def summarise(self, finished: Mapping[str, Finished], failures: Mapping[str, str]) -> dict[str, Any] | None:
        """The content of `results.json` from the cells that are finished; None where they are too few."""

    @classmethod
    @abstractmethod
    def page(cls, results: Mapping[str, Any], folder: Path) -> Page:
        """What the results show; `folder` holds them and whatever stands beside them."""

    def afterwards(self, folder: Path, progress: Progress | None) -> None:
        """What is made once when all cells are finished and there is time left; nothing, for most."""


@dataclass(frozen=True)
class Run:
    """How far an experiment is: the content of `results.json`, or None where too little is finished, and its cells."""

    results: dict[str, Any] | None
    finished: int
    cells: int


def run_experiment(
    experiment: Experiment,
    folder: str | Path,
    *,
    minutes: float | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Run:
    """Compute what is not finished, and write results, tables, figures and page of what is.

    A cell that fails is noted and tried again by the next call. The folder may be copied: a call on another machine
    goes on there. Several calls may work on one folder: each takes cells that no other is at.

    Args:
        experiment: What is run.
        folder: Everything is written below it; a second call goes on where the first stopped.
        minutes: No cell is started after so many, none at all with 0.
        jobs: Processes that compute side by side on the device.
        progress: Called with (what, done, total).
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    if jobs < 1:
        raise OptionError(f"jobs must be at least 1; got {jobs}.")
    folder, cells = Path(folder), experiment.cells()
    store = Store(folder, experiment.definition)
    if len(store.read(cells)) < len(cells):
        if jobs == 1:
            run_cells(experiment, store, end=end, progress=progress)
        else:
            _side_by_side(experiment, folder, end, jobs)
    finished = store.read(cells)
    if len(finished) == len(cells) and time_left(end):
        with store.hold("afterwards") as mine:
            if mine:
                experiment.afterwards(folder, progress)
    results = experiment.summarise(finished, store.failures(cells))
    if results is not None:
        write_json(folder / RESULTS, results)
        results = remake(type(experiment), folder)
    return Run(results, len(finished), len(cells))


def run_cells(experiment: Cells, store: Store, *, end: float | None = None, progress: Progress | None = None) -> None:
    """Compute cells one after the other, those that no other process is at, until `end` on the monotonic clock."""
    cells = experiment.cells()
    done = set(store.read(cells))
    todo = [cell for cell in cells if cell.key not in done]
    source = origin(experiment.seed, experiment.data, experiment.modules)
    for number, cell in enumerate(todo):
        if not time_left(end):
            return
        with store.hold(cell.key) as mine:
            if not mine or cell.key in store.read([cell]):
                continue
            report = partial(_report, progress, len(cells) - len(todo) + number, len(cells))
            report(cell.key)
            _compute(experiment, store, cell, source, end, report)
    if progress is not None:
        progress("all cells", len(store.read(cells)), len(cells))


def remake(kind: type[Experiment], folder: Path) -> dict[str, Any]:
    """Make tables, figures and page again from `results.json` alone, and return what it holds."""
    results: dict[str, Any] = read_json(folder / RESULTS)
    write_page(kind.page(results, folder), folder)
    return results


def time_left(end: float | None) -> bool:
    """Whether `end` on the monotonic clock is still to come."""
    return end is None or time.monotonic() < end


def _report(progress: Progress | None, done: int, total: int, what: str, *steps: int) -> None:
    """Cells are what the bar counts; steps within one are said in words."""
    if progress is not None:
        progress(f"{what}, step {steps[0]:,} of {steps[1]:,}" if steps else what, done, total)


def _compute(
    experiment: Cells, store: Store, cell: Cell, source: dict[str, Any], end: float | None, report: Progress
) -> None:
    began = time.monotonic()

    def keep(result: Mapping[str, Any], whole: bool = False) -> None:
        store.write(cell, Finished(dict(result), source, round(time.monotonic() - began, 1), whole))

    try:
        result = experiment.compute(cell, Signals(report, cell.key, keep, end))
    except OutOfTime:
        return
    except (DeconfoundError, RuntimeError) as error:  # one cell must not take the others with it
        store.fail(cell, error)
    else:
        keep(result, whole=True)


def _side_by_side(experiment: Cells, folder: Path, end: float | None, jobs: int) -> None:
    """Several processes, each at cells that no other is at; one small network leaves most of a GPU idle."""
    seconds = None if end is None else end - time.monotonic()
    context = multiprocessing.get_context("spawn")
    made = [context.Process(target=_work, args=(experiment, folder, seconds)) for _ in range(jobs)]
    for process in made:
        process.start()
    for process in made:
        process.join()
    failed = [process.exitcode for process in made if process.exitcode]
    if failed:
        raise RunError(
            f"{len(failed)} of {len(made)} processes stopped with exit code {failed[0]}. What they printed says why; "
            "finished cells stay. Give the same command again."
        )


def _work(experiment: Cells, folder: Path, seconds: float | None) -> None:
    torch.set_num_threads(1)
    store = Store(folder, experiment.definition)
    run_cells(experiment, store, end=None if seconds is None else time.monotonic() + seconds)
