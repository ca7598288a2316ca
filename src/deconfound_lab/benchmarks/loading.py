"""What happens before a network runs: imports, the command's help, and encoding a table."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from deconfound.design import Design
from deconfound_lab.benchmarks.job import Job, Row
from deconfound_lab.benchmarks.timing import Clock

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


def jobs(device: str, quick: bool = False) -> list[Job]:
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
    table = people(rows)
    design = Design(confounds=[f"x{k}" for k in range(7)] + ["site", "scanner"], keep=["label"]).fit(table)
    for size in (rows, 128):
        part = {name: values[:size] for name, values in table.items()}
        taken = clock.seconds(partial(design.encode, part), 3.0 if size == rows else 0.3)
        yield {"what": "encode", "rows": size, "columns": 10, "seconds": taken}


def people(rows: int) -> dict[str, Any]:
    """Ten columns, two of them categorical with 100 levels."""
    rng = np.random.default_rng(0)
    table: dict[str, Any] = {f"x{k}": rng.normal(size=rows) for k in range(7)}
    levels = np.array([f"level {k}" for k in range(100)])
    table |= {name: levels[rng.integers(0, 100, rows)] for name in ("site", "scanner")}
    return table | {"label": rng.integers(0, 2, rows).astype(float)}


def _process(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], capture_output=True)
