"""Figure 2 of the paper, drawn anew from `results.json`."""

from __future__ import annotations

import io
import math
from typing import Any

from deconfound_lab.synthetic.images import CEILING
from deconfound_lab.synthetic.tables import NAMES, Results, of

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = {
    "none": "#000000",
    "batchnorm": "#999999",
    "adversarial": "#E69F00",
    "mdn": "#56B4E9",
    "rmdn": "#009E73",
    "pmdn-alternating": "#CC79A7",
    "pmdn": "#D55E00",
}
PANELS = (
    ("dcor2", "dcor² with the confound, within groups", None),
    ("accuracy", "accuracy, confound tied to the group", CEILING),
    ("accuracy_independent", "accuracy, confound independent", CEILING),
)


def figure_2(results: Results, form: str = "png") -> bytes:
    """dcor² and accuracy against batch size, with 95 % intervals and the ceiling.

    Args:
        results: The results.
        form: "png" or "svg".
    """
    from matplotlib.figure import Figure

    batches = results.batches()
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    axes: Any = figure.subplots(1, len(PANELS))
    methods = [name for name in results.methods() if any(results.find(name, batch=batch) for batch in batches)]
    for axis, (measure, title, line) in zip(axes, PANELS, strict=True):
        for place, method in enumerate(methods):
            # Slightly apart, so that intervals do not hide each other.
            shift = (place - (len(methods) - 1) / 2) * 0.06
            _line(axis, results, method, measure, batches, shift)
        if line is not None:
            axis.axhline(line, color="#444444", linewidth=1, linestyle="--")
            axis.annotate(f"{line:.1%}", (-0.47, line), ha="left", va="bottom", fontsize=9)
        axis.set_xticks(range(len(batches)), [str(batch) for batch in batches])
        axis.set_xlim(-0.5, len(batches) - 0.5)
        axis.set_xlabel("batch size")
        axis.set_title(title, fontsize=11)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e5e5e5", linewidth=0.7)
        axis.set_axisbelow(True)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(methods), frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format=form, dpi=150, metadata={"Software": None} if form == "png" else {"Date": None})
    return content.getvalue()


def _line(axis: Any, results: Results, method: str, measure: str, batches: list[int], shift: float) -> None:
    places, means, errors = [], [], []
    for place, batch in enumerate(batches):
        cell = results.find(method, batch=batch)
        if cell is not None:
            found = of(cell, measure)
            places.append(place + shift)
            means.append(found.mean)
            errors.append(0.0 if math.isnan(found.low) else found.mean - found.low)
    ours = method == "pmdn"
    axis.errorbar(
        places,
        means,
        yerr=errors,
        color=COLOURS[method],
        marker="o" if ours else "s",
        markersize=6 if ours else 4,
        linewidth=2.2 if ours else 1.2,
        capsize=2,
        label=NAMES[method],
        zorder=3 if ours else 2,
    )
