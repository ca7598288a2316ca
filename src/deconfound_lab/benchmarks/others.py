"""What is beside the layers: distance correlation, imports, the command's help, and encoding a table."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from deconfound.design import Design
from deconfound.metrics import distance_correlation_sqr, u_distance_correlation_sqr
from deconfound_lab.benchmarks.jobs import Job, Row
from deconfound_lab.benchmarks.timing import Clock

SIZES = {"cuda": (2000, 10_000, 50_000, 100_000), "cpu": (500, 2000, 5000, 20_000)}
FEATURES, CONFOUNDS = 64, 3
# The packages hold n × n matrices in float64.
LARGEST_FOR_PACKAGES = 2000
# What a fresh process runs, and which other one it is compared with.
STARTS = {
    "python": ("pass", None),
    "import torch": ("import torch", None),
    "import deconfound": ("import deconfound", "python"),
    "import all layers": (
        "import deconfound as dc; dc.PMDN, dc.MDN, dc.RMDN, dc.AlternatingPMDN, dc.JointPMDN, dc.normalize",
        "import torch",
    ),
    "deconfound --help": (
        "import sys; sys.argv = ['deconfound', '--help']; from deconfound.cli import main; main()",
        "python",
    ),
}


def metric_jobs(device: str, quick: bool = False) -> list[Job]:
    """Distance correlation at each number of samples, beside `dcor` and statsmodels where they are installed."""
    sizes = SIZES[device][:1] if quick else SIZES[device]
    return [Job("metrics", f"{n:,} samples", partial(_metrics, n)) for n in sizes]


def _metrics(n: int, clock: Clock) -> Iterator[Row]:
    """Seconds for `n × 64` against `n × 3`; beside the packages in their float64, with the gap between the values."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, FEATURES, generator=rng), torch.randn(n, CONFOUNDS, generator=rng)
    y = y + 0.3 * x[:, :CONFOUNDS]
    here, there = x.to(clock.device), y.to(clock.device)
    call = partial(u_distance_correlation_sqr, here, there)
    found: Row = {"seconds": clock.seconds(call, 1.0)}
    if clock.device == "cuda":
        found["peak_bytes"] = clock.peak_memory(call)
    yield {"n": n, "by": "deconfound", "type": "float32", **found}
    if n > LARGEST_FOR_PACKAGES or clock.device == "cuda":
        return
    x, y = x.double(), y.double()
    taken = clock.seconds(lambda: u_distance_correlation_sqr(x, y), 1.0)
    yield {"n": n, "by": "deconfound", "type": "float64", "seconds": taken}
    for name, (theirs, ours) in _packages(x.numpy(), y.numpy()).items():
        gap = abs(theirs() - float(ours(x, y)))
        yield {"n": n, "by": name, "type": "float64", "seconds": clock.seconds(theirs, 1.0, 3), "gap": gap}


def _packages(x: Any, y: Any) -> dict[str, tuple[Callable[[], float], Callable[..., torch.Tensor]]]:
    """Each package's call, and our function for the same estimator."""
    threads = torch.get_num_threads()
    found: dict[str, tuple[Callable[[], float], Callable[..., torch.Tensor]]] = {}
    try:
        dcor = import_module("dcor")
        found["dcor"] = (lambda: float(dcor.u_distance_correlation_sqr(x, y)), u_distance_correlation_sqr)
    except ImportError:
        pass
    try:
        statsmodels = import_module("statsmodels.stats.dist_dependence_measures")
        biased = lambda: float(statsmodels.distance_statistics(x, y).distance_correlation ** 2)  # noqa: E731
        found["statsmodels"] = (biased, distance_correlation_sqr)
    except ImportError:
        pass
    torch.set_num_threads(threads)  # numba, which dcor imports, sets them anew for the whole process
    return found


def loading_jobs(device: str, quick: bool = False) -> list[Job]:
    """Starts and encoding; on a GPU there is nothing more to say."""
    if device != "cpu":
        return []
    rows = 10_000 if quick else 1_000_000
    return [
        Job("loading", "starts", partial(_starts, quick)),
        Job("loading", f"encoding {rows:,} rows", partial(_encoding, rows)),
    ]


def _starts(quick: bool, clock: Clock) -> Iterator[Row]:
    """Seconds of fresh processes, beside one another; a quick look leaves out those that load torch."""
    starts = {what: start for what, start in STARTS.items() if not quick or start[1] != "import torch"}
    if quick:
        del starts["import torch"]
    calls = {what: partial(_process, code) for what, (code, _) in starts.items()}
    times = clock.together(calls, 0.0 if quick else 25.0, 1 if quick else 7)
    medians = {what: statistics.median(found) for what, found in times.items()}
    for what, (_, plain) in starts.items():
        yield {"what": what, "seconds": medians[what], **({"over": medians[plain]} if plain else {})}


def _encoding(rows: int, clock: Clock) -> Iterator[Row]:
    table = wide_table(rows)
    design = Design(confounds=[f"x{k}" for k in range(7)] + ["site", "scanner"], keep=["label"]).fit(table)
    for size in (rows, 128):
        part = {name: values[:size] for name, values in table.items()}
        taken = clock.seconds(partial(design.encode, part), 3.0 if size == rows else 0.3)
        yield {"what": "encode", "rows": size, "columns": 10, "seconds": taken}


def wide_table(rows: int) -> dict[str, Any]:
    """Ten columns, two of them categorical with 100 levels."""
    rng = np.random.default_rng(0)
    table: dict[str, Any] = {f"x{k}": rng.normal(size=rows) for k in range(7)}
    levels = np.array([f"level {k}" for k in range(100)])
    table |= {name: levels[rng.integers(0, 100, rows)] for name in ("site", "scanner")}
    return table | {"label": rng.integers(0, 2, rows).astype(float)}


def _process(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], capture_output=True)
