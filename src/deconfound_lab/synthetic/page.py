"""The page of the synthetic experiment: Figure 2 of the paper drawn anew, and the tables, from `results.json` alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deconfound_lab.harness import Figure, Page, Section
from deconfound_lab.harness.page import filled, png, tidy
from deconfound_lab.harness.provenance import made_by
from deconfound_lab.synthetic.images import CEILING
from deconfound_lab.synthetic.tables import (
    NAMES,
    Results,
    closer_table,
    drift_table,
    footing_table,
    gap_table,
    gaps,
    long_table,
    main_table,
    network_table,
    of,
    option_table,
    problem_table,
    rate_table,
    short_table,
)

CELL = (
    "Each cell: accuracy in % with the half width of its 95 % interval / accuracy where the confound is independent of "
    "the group / dcor² of the first fully connected layer with the confound."
)
BEST = "The best validation loss decides; coefficients are refitted where a method keeps any."
FIGURE = (
    "Mean over seeds with 95 % intervals. Accuracy above the dashed ceiling is the confound's doing; below it, "
    "something of the main effect is lost."
)
SHORT = (
    "Accuracy in % with the half width of its 95 % interval / accuracy where the confound is independent of the group."
)
FOOTING = (
    "Each training is judged twice: with the coefficients that it left, and refitted on the validation images. Overlap "
    "weights make group and confound independent among the training images."
)
CLOSER = (
    "By how many points PMDN in one pass is nearer the ceiling than each other method, paired over seeds, with 95 % "
    "intervals; above zero it is nearer."
)
GAP = (
    "Root mean square difference between the logits of one batch in training mode and in eval mode, in standard "
    "deviations of the logit."
)
DRIFT = (
    "Five stages in which the main effect fades (ceilings 75, 68.75, 62.5, 56.25 and 50 %). Mean distance of the "
    "accuracy from the ceiling of a stage, in points, with 95 % intervals."
)
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = {
    "none": "#000000",
    "batchnorm": "#999999",
    "adversarial": "#E69F00",
    "mdn": "#56B4E9",
    "rmdn": "#009E73",
    "pmdn-alternating": "#CC79A7",
    "pmdn-authors": "#F0E442",
    "pmdn": "#D55E00",
    "erase": "#0072B2",
    "dependence": "#882255",
}
PANELS = (
    ("dcor2", "dcor² with the confound, within groups", None),
    ("accuracy", "accuracy, confound tied to the group", CEILING),
    ("accuracy_independent", "accuracy, confound independent", CEILING),
)


def make_page(results: Results, modules: Sequence[str]) -> Page:
    """What the results hold, in the order of the paper's argument."""
    figure = Figure("figure2.png", figure_2(results), "dcor² and accuracy of each method against batch size")
    shown = [
        Section("Figure 2", FIGURE, figure),
        Section("Every method at every batch size", f"{CELL} {BEST}", main_table(results), gaps(results)),
        Section("In short", SHORT, short_table(results)),
        Section("On one footing", f"{FOOTING} {CELL}", footing_table(results)),
        Section("Nearer the ceiling", CLOSER, closer_table(results)),
        Section("Learning rates", f"PMDN in one pass. {CELL}", rate_table(results)),
        Section("Training mode and eval mode", GAP, gap_table(results)),
        Section("Long training", CELL, long_table(results)),
        Section("Other confounds", f"Batch 200. {CELL}", problem_table(results)),
        Section("What the options do", CELL, option_table(results)),
        Section("Drifting data", DRIFT, drift_table(results)),
    ]
    summary = sentence(results)
    if (networks := network_table(results)).rows:
        shown, summary = [Section("Other networks", CELL, networks)], "The paper's images, read by other networks."
    sources = results.content["provenance"]
    counts = [sum(cell["provenance"] == index for cell in results.cells) for index in range(len(sources))]
    made = made_by(sources, [f"{count} cells" for count in counts], modules)
    made += [f"Failed: {key}: {text}" for key, text in results.content["failures"].items()]
    return Page("Synthetic experiment", "A ceiling that only the confound can break", summary, filled(shown), made)


def sentence(results: Results) -> str:
    """The finding in one sentence, from the numbers alone."""
    cells = [cell for cell in results.along("pmdn") if cell]
    if not cells:
        return "PMDN in one pass is not among the results yet."
    accuracies = [100 * of(cell, "accuracy").mean for cell in cells]
    left = max(of(cell, "dcor2").mean for cell in cells)
    plain = [100 * of(cell, "accuracy").mean for cell in results.along("none") if cell]
    before = f", where {NAMES['none']} has {min(plain):.1f} to {max(plain):.1f} %" if plain else ""
    return (
        f"Over batch sizes {', '.join(map(str, results.batches()))}, PMDN in one pass has an accuracy of "
        f"{min(accuracies):.1f} to {max(accuracies):.1f} %{before}; the ceiling without the confound is "
        f"{100 * CEILING:.1f} %. Its dcor² with the confound is {left:.4f} at most."
    )


def figure_2(results: Results) -> bytes:
    """dcor² and accuracy against batch size, with 95 % intervals and the ceiling, as PNG."""
    from matplotlib.figure import Figure as Drawing

    batches = results.batches()
    drawing = Drawing(figsize=(13, 4.2), layout="constrained")
    axes: Any = drawing.subplots(1, len(PANELS))
    methods = [name for name in results.methods() if any(results.along(name))]
    for axis, (measure, title, line) in zip(axes, PANELS, strict=True):
        for place, method in enumerate(methods):
            # Slightly apart, so that intervals do not hide each other.
            _line(axis, results, method, measure, (place - (len(methods) - 1) / 2) * 0.06)
        if line is not None:
            axis.axhline(line, color="#444444", linewidth=1, linestyle="--")
            axis.annotate(f" {line:.1%}", (len(batches) - 0.5, line), ha="left", va="center", fontsize=9)
        axis.set_xticks(range(len(batches)), [str(batch) for batch in batches])
        axis.set_xlim(-0.5, len(batches) - 0.5)
        axis.set_xlabel("batch size")
        axis.set_title(title, fontsize=11)
        tidy(axis)
    handles, labels = axes[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=len(methods), frameon=False)
    return png(drawing, 150)


def _line(axis: Any, results: Results, method: str, measure: str, shift: float) -> None:
    found = [(place + shift, of(cell, measure)) for place, cell in enumerate(results.along(method)) if cell]
    ours = method == "pmdn"
    axis.errorbar(
        [place for place, _ in found],
        [value.mean for _, value in found],
        yerr=[[v.mean - v.low for _, v in found], [min(v.high, 1.0) - v.mean for _, v in found]],
        color=COLOURS[method],
        marker="o" if ours else "s",
        markersize=6 if ours else 4,
        linewidth=2.2 if ours else 1.2,
        capsize=2,
        label=NAMES[method],
        zorder=3 if ours else 2,
    )
