"""The growth of a layer's cost as one figure: time against each size on logarithmic axes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from deconfound.errors import need
from deconfound_lab.benchmarks.jobs import Result, rows

AXES = {"n": "samples n", "d": "features d", "p": "metadata columns p", "layers": "layers of 256 features"}
COLOURS = {"cpu": "#b35900", "cuda": "#1f5fa8"}


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
