"""`docs/results/performance.md` and its figure from the JSON of benchmark runs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from deconfound.data import write_text
from deconfound.errors import need
from deconfound_lab.benchmarks import tables
from deconfound_lab.benchmarks.jobs import Result, rows

FIGURE = "performance/growth.svg"
AXES = {"n": "samples n", "d": "features d", "p": "metadata columns p", "layers": "layers of 256 features"}
COLOURS = {"cpu": "#b35900", "cuda": "#1f5fa8"}

OPENING = """# Performance

Made by `python -m deconfound_lab` from `docs/results/performance/*.json`; do not edit.

Every figure is measured beside something plain in the same run, in rounds that take turns, and what counts is the
ratio: a layer's pass over its features beside a plain copy of them on the same device, a training step beside the same
step of the plain network. To run it again:

```
# on the CPU, about five minutes on an idle machine
make bench
# on a GPU; --minutes 8 stops there, with what matters most done first
deconfound bench --device cuda
# this page, from the JSON put into docs/results/performance
python -m deconfound_lab
```

Every row is stored as it is measured, so that a run that is stopped keeps what it has and the same command goes on from
there. `<device>.json` is written at the end of each run. `--sections steps,growth` runs a part, `--check` ends with an
error where a claim does not hold. Where nothing is installed, `PYTHONPATH=src python -m deconfound.cli bench` does the
same.

## How a pass is done

A layer's work on `n × d` features is a few operations on each number, so its floor is to read the features once and to
write the residual once: a copy. On a GPU one kernel does this (`layers/pmdn/kernels`). Each of its programs goes
through some features of all samples, projects them on the q regressors, moves their coefficients, and goes through the
same features again to subtract, finding them in a cache. The coefficients add a share of `q / n` to what is moved.
Backward does the same with gradients. How far coefficients move is known before, or depends on each feature alone, so
no program waits for another. With several processes their sums come between the two halves of the pass, and with more
than 16 regressors the halves are two kernels, so features are read twice from memory. With more than 32 regressors, in
float64 and on a CPU, torch's own operations do the work; on a CPU by parts of rows or features. What was tried is in
decisions [0006](../decisions/0006-kernels-that-come-back-to-their-features.md) for a GPU and
[0022](../decisions/0022-thin-products-on-a-cpu.md) for a CPU.
"""

KEPT = """The C library was asked to keep freed memory. By default it gives the memory of one step back to the system
and faults it in again in the next, or not, as the heap happens to lie: on a CPU this can cost more than any layer here.
A training run gets the same with `MALLOC_TRIM_THRESHOLD_=2147483647 MALLOC_MMAP_THRESHOLD_=2147483647` in its
environment, or with jemalloc.
"""

GROWTH = f"""## Growth

Forward and backward in training against one size, the others fixed (the tables below say at what). The dots go through
the largest size in proportion to it: a line above them grows more slowly than its size. On a GPU there are two steps
along the metadata columns, where a pass becomes two kernels and where torch's own operations take over.

![Cost of a PMDN layer against samples, features, metadata columns and layers]({FIGURE})
"""


def page(results: Iterable[Result], figure: bool = True) -> str:
    """The whole page; the growth figure is linked where there is something to show in it."""
    parts, results = [OPENING], list(results)
    if all(result["device"] != "cuda" for result in results):
        parts.append("No figures of a GPU are here yet.\n")
    if figure and any(rows(result, "growth") for result in results):
        parts.append(GROWTH)
    for result in results:
        parts += [_origin(result), tables.claimed(result), *tables.sections(result)]
    return "\n".join(part for part in parts if part)


def _origin(result: Result) -> str:
    origin = result["origin"]
    versions = ", ".join(f"{name} {number}" for name, number in origin["packages"].items())
    title = "GPU" if result["device"] == "cuda" else "CPU"
    where = f"{origin['machine']}, {origin['cores']} cores, {origin['threads']} threads"
    source = f"commit `{origin['commit']}`" if origin["commit"] else f"source `{origin['code']}`"
    text = f"## {title}\n\n{where}; Python {origin['python']}, {versions}; {source}.\n"
    if result["quick"]:
        text += "\nA quick run of small sizes, to see that everything runs: its figures mean nothing.\n"
    if origin["keeps_memory"]:
        text += "\n" + KEPT
    if "note" in result:
        text += f"\n{result['note']}\n"
    if result.get("left_out"):
        text += f"\nNot measured: {'; '.join(result['left_out'])}.\n"
    return text


def write_performance(folder: Path) -> None:
    """Write the page and its figure from the committed results."""
    results = [json.loads(path.read_text()) for path in sorted((folder / "performance").glob("*.json"))]
    write_text(folder / "performance.md", page(results))
    if any(rows(result, "growth") for result in results):
        write_text(folder / FIGURE, growth(results))


def growth(results: Sequence[Result]) -> str:
    """SVG of forward and backward in training against each size, a line per device; dots show proportional growth."""
    need("matplotlib", "train")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "deconfound", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10, 2.9), layout="constrained")
        panels = figure.subplots(1, len(AXES), sharey=True)
        lowest = 1e3 * min(row["seconds"] for result in results for row in rows(result, "growth"))
        for panel, (axis, title) in zip(panels, AXES.items(), strict=True):
            for result in results:
                along = [row for row in rows(result, "growth") if row["axis"] == axis]
                if along:
                    sizes, times = [row[axis] for row in along], [1e3 * row["seconds"] for row in along]
                    _draw(panel, sizes, times, result["device"])
            panel.set_xlabel(title)
            panel.grid(True, which="major", color="#e4e4e4")
            panel.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylim(bottom=lowest / 2)
        panels[0].set_ylabel("forward and backward, ms")
        panels[0].legend(frameon=False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _draw(panel: Any, sizes: list[int], times: list[float], device: str) -> None:
    colour = COLOURS[device]
    panel.loglog(sizes, times, "o-", color=colour, markersize=3.5, label="GPU" if device == "cuda" else "CPU")
    panel.loglog(sizes, [times[-1] * size / sizes[-1] for size in sizes], ":", color=colour, linewidth=1)
