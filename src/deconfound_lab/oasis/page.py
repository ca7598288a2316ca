"""The page of the OASIS-1 experiment, from `results.json` alone: figure, scores, W-scores and the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deconfound_lab.footing import Judged
from deconfound_lab.harness import Figure, Page, Section
from deconfound_lab.harness.page import filled, png, settings, tidy
from deconfound_lab.harness.provenance import made_by
from deconfound_lab.oasis.measures import OLD, Line
from deconfound_lab.oasis.tables import (
    audit_table,
    difference_table,
    lines_of,
    score_table,
    sentence,
    title,
    to_beat,
)

FIGURE = (
    f"Above: what each score is worth among people of {OLD} and older (dashed: ridge regression on voxels; dotted: "
    "chance) and its correlation with age within controls, with 95 % intervals. Below: mean ± sd of the score of "
    "controls in bands of age; a score free of age is flat."
)
TRAINED = "Each score with the coefficients that training left. In brackets 95 % intervals over people and trainings."
REFITTED = "The same networks with coefficients refitted on the people that each network was not trained on."
W_SCORES = (
    "The networks as trained, each score standardised by the location and scale of controls of the same age and sex. "
    "Both are fitted to training controls, each scored by a network that had not seen this person."
)
DIFFERENCES = (
    "What standardising scores does is told apart from what a method does: each score against the plain network's own, "
    "and against its W-score. 95 % intervals by bootstrap over people and trainings, paired."
)
AUDIT = "What is left of age and sex within diagnoses, by `dc.audit`."
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS: dict[Judged, str] = {"as trained": "#0072B2", "refitted": "#009E73", "W-score": "#D55E00"}


def make_page(results: Mapping[str, Any], modules: Sequence[str]) -> Page:
    """What the results hold."""
    figure = Figure("figure.png", draw(results), "AUC and correlation with age of every score")
    shown = [
        Section("Scores and age", FIGURE, figure),
        Section("As trained", TRAINED, score_table(lines_of(results, "as trained"))),
        Section("Refitted", REFITTED, score_table(lines_of(results, "refitted"))),
        Section("W-scores", W_SCORES, score_table(lines_of(results, "W-score"))),
        Section("Differences", DIFFERENCES, difference_table(results)),
        Section("Audit", AUDIT, audit_table(results)),
    ]
    sources = results["provenance"]
    counts = ", ".join(f"{count} {name}" for name, count in results["counts"].items())
    made = [f"OASIS-1: {counts}.", *made_by(sources, ["Trainings"] * len(sources), modules), settings(results["plan"])]
    return Page("Real scans", "Dementia without age", sentence(results), filled(shown), made)


def draw(results: Mapping[str, Any]) -> bytes:
    """AUC in older people and correlation with age, with intervals; below, the score of controls against age."""
    from matplotlib.figure import Figure as Drawing

    lines = [line for line in lines_of(results) if line.arm != "age"]
    arms = list(dict.fromkeys(line.arm for line in lines))
    columns = min(4, len(arms))
    rows = -(-len(arms) // columns)
    drawing = Drawing(figsize=(12, 0.38 * len(arms) + 2.1 * rows + 1.6), layout="constrained")
    parts: Any = drawing.subfigures(2, 1, height_ratios=[0.38 * len(arms) + 1.2, 2.1 * rows])
    upper, lower = parts
    left, right = upper.subplots(1, 2, sharey=True)
    _forest(left, lines, arms, "auc_old", f"AUC, people of {OLD} and older", (to_beat(lines), 0.5))
    _forest(right, lines, arms, "r_age", "correlation with age within controls", (0.0,))
    left.set_yticks(range(len(arms)), [title(arm) for arm in arms])
    left.set_ylim(len(arms) - 0.5, -0.5)
    handles, labels = right.get_legend_handles_labels()
    upper.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    panels: Any = lower.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for number, panel in enumerate(panels.flat):
        panel.set_visible(number < len(arms))
        if number < len(arms):
            _curves(panel, [line for line in lines if line.arm == arms[number]], title(arms[number]))
    lower.supxlabel("age", fontsize=10)
    lower.supylabel("score of controls, in sd", fontsize=10)
    return png(drawing)


def _forest(axis: Any, lines: list[Line], arms: list[str], measure: str, name: str, marks: tuple[float, ...]) -> None:
    for number, (judged, colour) in enumerate(COLOURS.items()):
        mine = [line for line in lines if line.judged == judged]
        values = [getattr(line, measure) for line in mine]
        heights = [arms.index(line.arm) + 0.22 * (number - 1) for line in mine]
        ends = [[v.mean - v.low for v in values], [v.high - v.mean for v in values]]
        label = f"{judged}: standardised by controls of the same age and sex" if judged == "W-score" else judged
        axis.errorbar([v.mean for v in values], heights, xerr=ends, fmt="o", ms=4, lw=1.2, color=colour, label=label)
    for number, mark in enumerate(marks):
        axis.axvline(mark, color="#444444", linewidth=1, linestyle=":" if number else "--")
    axis.set_title(name, fontsize=11)
    tidy(axis, "x")


def _curves(axis: Any, lines: list[Line], name: str) -> None:
    for line in lines:
        colour = COLOURS[line.judged]
        ages, means, sds = ([band[key] for band in line.curve] for key in ("age", "mean", "sd"))
        axis.plot(ages, means, "o-", ms=3, lw=1.4, color=colour)
        low, high = ([m + sign * s for m, s in zip(means, sds, strict=True)] for sign in (-1, 1))
        axis.fill_between(ages, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.set_title(name, fontsize=9)
    tidy(axis)
