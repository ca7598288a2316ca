"""The experiment's figures, from the results: every arm against batch size, and the paper's t-SNE."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from deconfound_lab.mri.results import OURS, Line, Results, Value
from deconfound_lab.mri.tables import mean_chance

# Okabe and Ito's colours, which colour-blind readers can tell apart; the shapes say the same again.
_LEVELS = ("#0072B2", "#E69F00", "#009E73")
_OURS = "#D55E00"
_OTHERS = ("#000000", "#999999", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#0072B2")
_SHAPES = ("s", "v", "D", "^", "P", "X", "d")
CHANCE = 0.25
"""Accuracy of answers that know nothing: two labels, both right."""


def draw_comparison(results: Results) -> bytes:
    """Accuracy on independent people and what is left of the confounds within groups, as PNG."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(12.5, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _panel(left, results, lambda line: line.independent)
    _level(left, results.ceiling, f"best\npossible\n{results.ceiling:.0%}")
    _level(left, CHANCE, "chance\n25%")
    left.set_ylim(0.2, results.ceiling + 0.05)
    left.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    left.set_title("accuracy where labels are independent of age, sex and site (higher is better)", fontsize=10.5)
    _panel(right, results, lambda line: line.within_mean)
    _level(right, mean_chance(results), f"random\nscores\n{mean_chance(results):.3f}")
    right.set_ylim(bottom=min(0, *(line.within_mean.low for line in results.lines)))
    right.set_title("mean correlation with the three, within groups (lower is better)", fontsize=10.5)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 8), frameon=False, fontsize=9.5)
    return _png(figure, 130)


def _panel(axis: Any, results: Results, measure: Callable[[Line], Value]) -> None:
    others = [arm for arm in results.present if arm != OURS]
    arms = [*others, *([OURS] if OURS in results.present else [])]
    step = min(0.1, 0.8 / len(arms))
    for number, arm in enumerate(arms):
        ours = arm == OURS
        found = [(place, line) for place, batch in enumerate(results.batches) if (line := results.find(batch, arm))]
        values = [measure(line) for _, line in found]
        reach = [[value.mean - value.low for value in values], [value.high - value.mean for value in values]]
        axis.errorbar(
            [place + (number - (len(arms) - 1) / 2) * step for place, _ in found],
            [value.mean for value in values],
            yerr=reach,
            color=_OURS if ours else _OTHERS[number % len(_OTHERS)],
            marker="o" if ours else _SHAPES[number % len(_SHAPES)],
            markersize=8 if ours else 5.5,
            linestyle="none",
            elinewidth=2 if ours else 1.2,
            capsize=2,
            label=results.title(arm),
            zorder=3 if ours else 2,
        )
    axis.set_xticks(range(len(results.batches)), [str(batch) for batch in results.batches])
    axis.set_xlim(-0.5, len(results.batches) - 0.5)
    for border in range(1, len(results.batches)):
        axis.axvline(border - 0.5, color="#e5e5e5", linewidth=0.8)
    axis.set_xlabel("batch size")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e5e5e5", linewidth=0.7)
    axis.set_axisbelow(True)


def _level(axis: Any, value: float, text: str) -> None:
    axis.axhline(value, color="#444444", linewidth=1, linestyle="--", zorder=1)
    axis.annotate(
        text, (1.01, value), xycoords=("axes fraction", "data"), ha="left", va="center", fontsize=9, color="#444444",
        annotation_clip=False,
    )  # fmt: skip


def draw_tsne(results: Results) -> bytes | None:
    """Test people of one fold by their last hidden features: a column for each arm, coloured by site and by sex."""
    from matplotlib.figure import Figure

    if not results.clouds:
        return None
    figure = Figure(figsize=(3.6 * len(results.clouds), 7.2), layout="constrained")
    axes: Any = figure.subplots(2, len(results.clouds), squeeze=False)
    for number, cloud in enumerate(results.clouds):
        x, y = np.asarray(cloud.x), np.asarray(cloud.y)
        for place, (name, values) in zip(axes[:, number], cloud.levels.items(), strict=True):
            levels = np.asarray(values)
            for level, colour in zip(sorted(set(values)), _LEVELS, strict=False):
                mine = levels == level
                place.scatter(x[mine], y[mine], s=13, color=colour, label=level, linewidths=0, alpha=0.8)
            place.set_title(f"{results.title(cloud.arm)}, by {name}", fontsize=11)
            place.set_xticks([])
            place.set_yticks([])
            if number == len(results.clouds) - 1:
                place.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5), handletextpad=0.1)
    first = results.clouds[0]
    figure.suptitle(f"{first.method} of the last hidden layer, batch {first.batch}, test people of fold {first.fold}",
                    fontsize=11)  # fmt: skip
    return _png(figure, 110)


def _png(figure: Any, dpi: int) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi, metadata={"Software": None})
    return content.getvalue()
