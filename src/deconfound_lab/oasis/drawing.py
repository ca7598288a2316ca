"""The figure of the OASIS-1 experiment: what each score is worth, and how it goes with age in controls."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from deconfound_lab.oasis.results import OLD, Line
from deconfound_lab.oasis.tables import TO_BEAT, lines_of, title

# Okabe and Ito's colours, which colour-blind readers can tell apart.
TRAINED, AFTERWARDS = "#0072B2", "#D55E00"


def draw(results: Mapping[str, Any]) -> bytes:
    """AUC in older people and correlation with age, with intervals; below, the score of controls against age.

    Args:
        results: The content of `results.json`.
    """
    from matplotlib.figure import Figure

    lines = [line for line in lines_of(results) if line.arm != "age"]
    arms = list(dict.fromkeys(line.arm for line in lines))
    columns = min(4, len(arms))
    rows = -(-len(arms) // columns)
    figure = Figure(figsize=(12, 0.38 * len(arms) + 2.1 * rows + 1.6), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[0.38 * len(arms) + 1.2, 2.1 * rows])
    upper, lower = parts
    left, right = upper.subplots(1, 2, sharey=True)
    _forest(left, lines, arms, "auc_old", f"AUC, people of {OLD} and older", (TO_BEAT, 0.5))
    _forest(right, lines, arms, "r_age", "correlation with age within controls", (0.0,))
    left.set_yticks(range(len(arms)), [title(arm) for arm in arms])
    left.set_ylim(len(arms) - 0.5, -0.5)
    handles, labels = right.get_legend_handles_labels()
    upper.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    panels: Any = lower.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for number, panel in enumerate(panels.flat):
        panel.set_visible(number < len(arms))
        if number < len(arms):
            _curves(panel, [line for line in lines if line.arm == arms[number]], title(arms[number]))
    lower.supxlabel("age", fontsize=10)
    lower.supylabel("score of controls, in sd", fontsize=10)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110, metadata={"Software": None})
    return content.getvalue()


def _forest(axis: Any, lines: list[Line], arms: list[str], measure: str, name: str, marks: tuple[float, ...]) -> None:
    for afterwards, colour, label in (
        (False, TRAINED, "as trained"),
        (True, AFTERWARDS, "beside controls of the same age and sex"),
    ):
        mine = [line for line in lines if line.afterwards == afterwards]
        values = [getattr(line, measure) for line in mine]
        heights = [arms.index(line.arm) + (0.14 if afterwards else -0.14) for line in mine]
        ends = [[v.mean - v.low for v in values], [v.high - v.mean for v in values]]
        axis.errorbar([v.mean for v in values], heights, xerr=ends, fmt="o", ms=4, lw=1.2, color=colour, label=label)
    for number, mark in enumerate(marks):
        axis.axvline(mark, color="#444444", linewidth=1, linestyle=":" if number else "--")
    axis.set_title(name, fontsize=11)
    _plain(axis, "x")


def _curves(axis: Any, lines: list[Line], name: str) -> None:
    for line in lines:
        colour = AFTERWARDS if line.afterwards else TRAINED
        ages, means, sds = ([band[key] for band in line.curve] for key in ("age", "mean", "sd"))
        axis.plot(ages, means, "o-", ms=3, lw=1.4, color=colour)
        low, high = ([m + sign * s for m, s in zip(means, sds, strict=True)] for sign in (-1, 1))
        axis.fill_between(ages, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.set_title(name, fontsize=9)
    _plain(axis, "y")


def _plain(axis: Any, along: str) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis=along, color="#e5e5e5", linewidth=0.7)
    axis.set_axisbelow(True)
