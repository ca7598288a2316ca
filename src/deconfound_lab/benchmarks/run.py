"""One run of the benchmarks: jobs in order, kept as they go, until all are done or the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import torch

from deconfound.errors import OptionError
from deconfound_lab.benchmarks import growth, kernel_checks, layer_passes, loading, measures, rehearsal, steps, store
from deconfound_lab.benchmarks.job import Job, Row
from deconfound_lab.benchmarks.timing import Clock, keep_freed_memory

# In the order in which they run: what the claims need comes first.
SECTIONS: Mapping[str, Callable[[str, bool], list[Job]]] = {
    "checks": kernel_checks.jobs,
    "passes": layer_passes.jobs,
    "steps": steps.jobs,
    "growth": growth.jobs,
    "metrics": measures.jobs,
    "loading": loading.jobs,
    "tiles": kernel_checks.tile_jobs,
}


class Watcher:
    """Is told how a run goes on; does nothing."""

    def start(self, done: int, total: int, replaces: bool) -> None:
        """So many jobs are done; the file that is there is of other code or another machine, and is replaced."""

    def rehearse(self, pieces: int, processes: int) -> None:
        """So many pieces are being compiled by so many processes."""

    def begin(self, job: Job, done: int, total: int) -> None:
        """A job begins."""

    def row(self, job: Job, row: Row) -> None:
        """A row was measured, and is on disk."""

    def end(self, job: Job, taken: float) -> None:
        """A job has ended after so many seconds."""


def plan(
    device: str, sections: Sequence[str] | None = None, modes: Sequence[str] | None = None, quick: bool = False
) -> list[Job]:
    """The jobs of some sections, in the order given, those that are late after the others.

    Args:
        device: "cpu" or "cuda".
        sections: Which of `SECTIONS`; None for all of them.
        modes: How whole steps run: "eager", "compiled", and on a GPU "graph"; None for "eager" on a CPU, all on a GPU.
        quick: Small sizes, to see that everything runs; the figures mean nothing.
    """
    _check(device, sections, modes)
    makers = dict(SECTIONS) | {"steps": partial(steps.jobs, modes=modes)}
    jobs = [job for section in (SECTIONS if sections is None else sections) for job in makers[section](device, quick)]
    return sorted(jobs, key=lambda job: job.late)


def run(
    device: str,
    sections: Sequence[str] | None = None,
    modes: Sequence[str] | None = None,
    *,
    quick: bool = False,
    folder: Path | None = None,
    again: bool = False,
    minutes: float | None = None,
    watcher: Watcher | None = None,
) -> store.Result:
    """Measure, and return everything as plain data.

    Args:
        device: See `plan`.
        sections: See `plan`.
        modes: See `plan`.
        quick: See `plan`.
        folder: Where `<device>.json` is written after every row. A run of the same code on the same machine goes on
            from what is there; None keeps nothing.
        again: Measure anew what is there.
        minutes: Begin nothing after so many; what is left out is named under "left_out".
        watcher: Is told how it goes.
    """
    jobs, watcher = plan(device, sections, modes, quick), watcher or Watcher()
    if minutes is not None and minutes <= 0:
        raise OptionError(f"minutes must be positive; got {minutes:g}.")
    end = None if minutes is None else time.monotonic() + 60 * minutes
    result = store.new(device, quick, keeps_memory=device == "cpu" and not quick and keep_freed_memory())
    replaces = False
    if folder is not None:
        found = store.load(folder, result)
        replaces = found is None and store.path_of(folder, result).exists()
        result = found or result
    keep: Callable[[], object] = (lambda: None) if folder is None else partial(store.save, result, folder)
    todo = [job for job in jobs if again or not store.whole(result, job)]
    watcher.start(len(jobs) - len(todo), len(jobs), replaces)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    if device == "cuda":
        rehearsal.rehearse(plan_of=(device, sections, modes, quick), jobs=todo, watcher=watcher, minutes=minutes)
    for number, job in enumerate(todo):
        if end is not None and time.monotonic() > end:
            break
        watcher.begin(job, len(jobs) - len(todo) + number, len(jobs))
        _one(result, job, Clock(device), end, keep, watcher)
    result["left_out"] = [job.key for job in jobs if not store.whole(result, job)]
    keep()
    return result


def _one(
    result: store.Result, job: Job, clock: Clock, end: float | None, keep: Callable[[], object], watcher: Watcher
) -> None:
    """Measure one job; its rows are kept one by one, also where a later one fails or the time is up."""
    start = time.monotonic()
    place = store.begin(result, job)
    try:
        for row in job.rows(clock):
            place["rows"].append(row)
            keep()
            watcher.row(job, row)
            if end is not None and time.monotonic() > end:
                return
        place["whole"] = True
    except Exception as fault:  # a job that one machine does not bear must not end the run
        if result["quick"]:
            raise
        place["fault"] = f"{type(fault).__name__}: {fault}"[:300]
        place["whole"] = True
    finally:
        place["seconds"] = time.monotonic() - start
        keep()
        if clock.device == "cuda":
            torch.cuda.empty_cache()
        watcher.end(job, place["seconds"])


def _check(device: str, sections: Sequence[str] | None, modes: Sequence[str] | None) -> None:
    """Refuse what cannot be run, all of it at once."""
    faults = []
    seen = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    if device not in seen:
        faults.append(f"device must be one that torch sees here, {' or '.join(seen)}; got {device!r}.")
    for what, names, known in (
        ("sections", sections, tuple(SECTIONS)),
        ("modes", modes, steps.MODES.get(device, steps.MODES["cuda"])),
    ):
        unknown = [name for name in names or () if name not in known]
        near = [match for name in unknown for match in get_close_matches(name, known, 1)]
        if unknown or (names is not None and not names):
            hint = f" Did you mean {', '.join(near)}?" if near else ""
            faults.append(f"{what} must be among {', '.join(known)}; got {', '.join(unknown) or 'none'}.{hint}")
    if faults:
        raise OptionError(" ".join(faults))
