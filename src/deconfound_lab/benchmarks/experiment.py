"""The benchmarks as an experiment: a cell is a job, the smallest part that is measured and stored as a whole."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

import torch

import deconfound
from deconfound.data import write_json
from deconfound.errors import OptionError, RunError
from deconfound.training import commit
from deconfound_lab.benchmarks import host_time, layers, others, precompile, steps
from deconfound_lab.benchmarks.jobs import Job
from deconfound_lab.benchmarks.tables import headline
from deconfound_lab.benchmarks.timing import Clock, keep_freed_memory
from deconfound_lab.harness import Cell, Cells, Finished, Progress, Signals, Store
from deconfound_lab.harness.experiment import run_cells
from deconfound_lab.harness.provenance import code_digest

Result = dict[str, Any]
Say = Callable[[str], None]
# In the order in which they run: what the claims need comes first.
SECTIONS: Mapping[str, Callable[[str, bool], list[Job]]] = {
    "checks": layers.check_jobs,
    "passes": layers.pass_jobs,
    "steps": steps.jobs,
    "host": host_time.jobs,
    "growth": layers.growth_jobs,
    "metrics": others.metric_jobs,
    "loading": others.loading_jobs,
}


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
    makers = dict(SECTIONS) | ({"steps": partial(steps.jobs, modes=modes)} if "steps" in SECTIONS else {})
    jobs = [job for section in (SECTIONS if sections is None else sections) for job in makers[section](device, quick)]
    return sorted(jobs, key=lambda job: job.late)


class Bench(Cells):
    """The jobs of one device; `say` is told each row in a few words."""

    modules: ClassVar[tuple[str, ...]] = ("benchmarks",)

    def __init__(self, device: str, jobs: Sequence[Job], quick: bool, say: Say) -> None:
        self.device, self.quick, self.say = device, quick, say
        self.jobs = {job.key: job for job in jobs}
        self.origin = origin(device, device == "cpu" and not quick and keep_freed_memory())

    @property
    def definition(self) -> Mapping[str, Any]:
        """Code and machine: figures of others are not mixed; the digest says more about the code than the commit."""
        same = {name: value for name, value in self.origin.items() if name != "commit"}
        return {"device": self.device, "quick": self.quick, "origin": same}

    def cells(self) -> list[Cell]:
        """One for each job."""
        return [Cell(job.key, {"section": job.section, "name": job.name}) for job in self.jobs.values()]

    def compute(self, cell: Cell, signals: Signals) -> dict[str, Any]:
        """Measure a job; its rows are stored one by one, also where a later one fails or the time is up."""
        job, clock, began = self.jobs[cell.key], Clock(self.device), time.monotonic()
        result: dict[str, Any] = {"section": job.section, "name": job.name, "rows": []}
        try:
            for row in job.rows(clock):
                result["rows"].append(row)
                signals.keep(result)
                self.say(f"{job.key}: {headline(job.name, row)}")
        except (RuntimeError, ValueError, OSError) as fault:  # a job that one machine does not bear ends no run
            if self.quick:
                raise
            result["fault"] = f"{type(fault).__name__}: {fault}"[:300]
        finally:
            if self.device == "cuda":
                torch.cuda.empty_cache()
        return {**result, "seconds": time.monotonic() - began}

    def summarise(self, finished: Mapping[str, Finished]) -> Result:
        """The content of `<device>.json`."""
        jobs = {key: {**stored.result, "whole": stored.whole} for key, stored in finished.items()}
        left_out = [key for key in self.jobs if not jobs.get(key, {}).get("whole")]
        return {
            "device": self.device, "quick": self.quick, "origin": self.origin, "jobs": jobs, "left_out": left_out,
        }  # fmt: skip


def run(
    device: str,
    sections: Sequence[str] | None = None,
    modes: Sequence[str] | None = None,
    *,
    quick: bool = False,
    folder: Path | None = None,
    again: bool = False,
    minutes: float | None = None,
    progress: Progress | None = None,
    say: Say = lambda text: None,
) -> Result:
    """Measure, and return everything as plain data; the first arguments, and `quick`, are those of `plan`.

    Every row is stored in `folder` as it is measured, and `<device>.json` is written there at the end, however the run
    ends; a run of the same code on the same machine goes on from what is there, unless `again` asks for all of it anew.
    Nothing is begun after so many `minutes`: what is left out is named under "left_out". `progress` is called with
    (job, done, total), `say` with a line of text for each row.
    """
    jobs = plan(device, sections, modes, quick)
    if minutes is not None and minutes <= 0:
        raise OptionError(f"minutes must be positive; got {minutes:g}.")
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return run(device, sections, modes, quick=quick, folder=Path(temporary), minutes=minutes, say=say)
    end = None if minutes is None else time.monotonic() + 60 * minutes
    bench = Bench(device, jobs, quick, say)
    store = Store(folder / device, bench.definition, anew=True)
    if again:
        store.forget(bench.cells())
    done = store.read(bench.cells())
    if store.replaced:
        say("what is in the folder was measured by other code or elsewhere: anew")
    elif done:
        say(f"going on: {len(done)} of {len(jobs)} are measured already")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    if device == "cuda":
        todo = [job for job in jobs if job.key not in done]
        precompile.precompile((device, sections, modes, quick), todo, say, minutes)
    try:
        run_cells(bench, store, end=end, progress=progress)
    finally:
        result = bench.summarise(store.everything())
        write_json(folder / f"{device}.json", result)
    failures = store.failures(bench.cells())
    if failures:
        raise RunError("; ".join(f"{key}: {text}" for key, text in failures.items()))
    return result


def origin(device: str, keeps_memory: bool) -> dict[str, Any]:
    """Where the figures come from; whether the process kept the memory that it freed is a part of it."""
    packages = {"deconfound": deconfound.__version__}
    for name in ("torch", "triton", "numpy", "dcor", "statsmodels"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "machine": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "keeps_memory": keeps_memory,
        "python": platform.python_version(),
        "packages": packages,
        "commit": commit(),
        "code": code_digest(Bench.modules),
    }


def _check(device: str, sections: Iterable[str] | None, modes: Iterable[str] | None) -> None:
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
