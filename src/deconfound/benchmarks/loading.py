"""What happens before a network runs: imports, the command's help, and encoding a table."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from deconfound.benchmarks.timing import seconds
from deconfound.design import Design


def measure(device: str, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Seconds of fresh processes and of `encode`."""
    if device != "cpu":
        return
    nothing = _process("pass")
    torch = _process("import torch")
    yield {"what": "python", "seconds": nothing}
    yield {"what": "import torch", "seconds": torch}
    yield {"what": "import deconfound", "seconds": _process("import deconfound"), "over": nothing}
    layers = _process("import deconfound as dc; dc.PMDN, dc.MDN, dc.RMDN, dc.AlternatingPMDN, dc.normalize")
    yield {"what": "all layers", "seconds": layers, "over": torch}
    help_ = _process("import sys; sys.argv = ['deconfound', '--help']; from deconfound.cli import main; main()")
    yield {"what": "deconfound --help", "seconds": help_, "over": nothing}
    rows = 10_000 if quick else 1_000_000
    table = people(rows)
    design = Design(confounds=[f"x{k}" for k in range(7)] + ["site", "scanner"], keep=["label"]).fit(table)
    yield {
        "what": "encode",
        "rows": rows,
        "columns": 10,
        "seconds": seconds(lambda: design.encode(table), "cpu", 5.0, 3),
    }
    batch = {name: values[:128] for name, values in table.items()}
    yield {"what": "encode", "rows": 128, "columns": 10, "seconds": seconds(lambda: design.encode(batch), "cpu")}


def people(rows: int) -> dict[str, Any]:
    """Ten columns, two of them categorical with 100 levels."""
    rng = np.random.default_rng(0)
    table: dict[str, Any] = {f"x{k}": rng.normal(size=rows) for k in range(7)}
    levels = np.array([f"level {k}" for k in range(100)])
    table |= {name: levels[rng.integers(0, 100, rows)] for name in ("site", "scanner")}
    return table | {"label": rng.integers(0, 2, rows).astype(float)}


def _process(code: str, repeats: int = 5) -> float:
    """The median time of a fresh Python that runs the code."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], capture_output=True)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
