"""The growth of a layer's cost as one figure: time against each size on logarithmic axes."""

from __future__ import annotations

import io
from collections.abc import Sequence

from deconfound.benchmarks.store import Result, rows
from deconfound.training.needs import need

AXES = {"n": "samples n", "d": "features d", "p": "metadata columns p", "layers": "layers of 256 features"}
COLOURS = {"cpu": "#b35900", "cuda": "#1f5fa8"}


def growth(results: Sequence[Result]) -> str:
    """SVG of forward and backward in training against each size, a line per device; dots show proportional growth."""
    need("matplotlib", "train")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "deconfound", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10, 2.9), layout="constrained")
        for axis, (name, title) in zip(figure.subplots(1, len(AXES)), AXES.items(), strict=True):
            lowest = []
            for result in results:
                along = [row for row in rows(result, "growth") if row["axis"] == name]
                if not along:
                    continue
                sizes, times = [row[name] for row in along], [1000 * row["seconds"] for row in along]
                label = "GPU" if result["device"] == "cuda" else "CPU"
                axis.loglog(sizes, times, "o-", color=COLOURS[result["device"]], markersize=3.5, label=label)
                lowest.append(min(times))
                slope = [times[-1] * size / sizes[-1] for size in sizes]
                axis.loglog(sizes, slope, ":", color=COLOURS[result["device"]], linewidth=1)
            if lowest:
                axis.set_ylim(bottom=min(lowest) / 2)
            axis.set_xlabel(title)
            axis.grid(True, which="major", color="#e4e4e4")
            axis.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("forward and backward, ms")
        figure.axes[0].legend(frameon=False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
