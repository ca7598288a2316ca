"""The page of the MRI experiment, from the results alone: the paper's tables, every arm, t-SNE, and maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deconfound_lab.harness import Figure, Page, Section
from deconfound_lab.harness.estimates import Value
from deconfound_lab.harness.page import png, settings, tidy
from deconfound_lab.harness.provenance import made_by
from deconfound_lab.mri.maps import FILE as MAPS
from deconfound_lab.mri.maps import PICTURE, draw_maps, load_maps
from deconfound_lab.mri.results import OURS, Line, Results
from deconfound_lab.mri.tables import (
    arms_table,
    footing_table,
    gaps,
    groups_table,
    not_first,
    oracle_table,
    table_one,
    table_three,
    table_two,
    within_table,
)

ARMS = (
    "Where each method acts in the network; all else is equal. `fc1` and `fc2` are before a ReLU, `relu1` and `relu2` "
    "after it, `fc3` is the logits, `blocks` the ResNet's output."
)
TABLE_ONE = "Counts of people, with the paper's in brackets."
TABLE_TWO = (
    "Correlations of the logits with age, sex (|Pearson|) and site (dcor²), and accuracy (both labels right, mean of "
    "the four groups), averaged over folds; 95 % intervals over folds in brackets. Methods that keep coefficients are "
    "refitted on the validation people. The last row has the correlations of the true labels themselves, which are "
    "not zero, and the best accuracy with the site's help."
)
FOOTING = (
    "Every arm on one footing: with the coefficients that training left, and refitted on the validation people. Left: "
    "mean of the three correlations within diagnostic groups, where those of the true labels are zero (intervals over "
    "people). Right: accuracy on people in whom the labels are independent of age, sex and site (intervals over folds)."
)
WITHIN = "The correlations within diagnostic groups one by one, refitted where an arm can be; intervals over people."
GROUPS = "Accuracy on the test folds in each diagnostic group, refitted where an arm can be."
ORACLE = (
    "Accuracy on independent people. The oracle is the plain network trained on as many people, for as many steps, in "
    "whom the labels are independent of the confounds: what a method can hope for. Paired over folds, 95 % intervals."
)
TABLE_THREE = (
    "The difference in each fold, averaged, with the corrected 95 % t interval over folds. A fold has fewer people "
    "than Table 2 looks at together, so its correlations are larger and only their difference is shown."
)
COMPARISON = (
    "Left: an arm that leans on the confounds loses accuracy where the labels are independent of them. Right: what the "
    "logits still say about age, sex and site among people of equal diagnosis. Bars are 95 % intervals."
)
TSNE = "Test people by their last hidden features. A map that falls apart by colour gives the confound away."
MAPS_LEAD = (
    "How much a layer in the first residual block takes out at each place, over the mean brain: root mean square over "
    "channels of β, in features per year of age, for men against women, and for a site against ADNI."
)
_UNSHOWN = ("parts", "people", "bootstraps")
# Okabe and Ito's colours, which colour-blind readers can tell apart; the shapes say the same again.
_LEVELS = ("#0072B2", "#E69F00", "#009E73")
_OURS = "#D55E00"
_OTHERS = ("#000000", "#999999", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#0072B2")
_SHAPES = ("s", "v", "D", "^", "P", "X", "d")
CHANCE = 0.25
"""Accuracy of answers that know nothing: two labels, both right."""


def make_page(results: Results, folder: Path, modules: Sequence[str]) -> Page:
    """What the results hold; `folder` may hold the maps beside them."""
    comparison = Figure("comparison.png", draw_comparison(results), "Accuracy and correlations of every arm")
    shown = [
        Section("Every arm at every batch size", COMPARISON, comparison),
        Section("Arms", f"{ARMS} {settings(results.plan, _UNSHOWN)}", arms_table(results)),
        Section("Table 1", TABLE_ONE, table_one(results)),
        Section("Every arm on one footing", FOOTING, footing_table(results), gaps(results)),
        Section("The way to the oracle", ORACLE, oracle_table(results)),
        Section("Table 2", TABLE_TWO, table_two(results)),
        Section("Within groups", WITHIN, within_table(results)),
        Section("Accuracy by diagnosis", GROUPS, groups_table(results)),
        Section("Ours against each other arm", TABLE_THREE, table_three(results), not_first(results)),
    ]
    shown = [each for each in shown if isinstance(each.content, Figure) or each.content.rows]
    if results.clouds:
        shown.append(Section("t-SNE", TSNE, Figure("tsne.png", draw_tsne(results), "People by site and sex")))
    if (folder / MAPS).exists():
        picture = Figure(PICTURE, draw_maps(load_maps(folder / MAPS)), "Slices of the coefficients")
        shown.append(Section("Coefficients in space", MAPS_LEAD, picture))
    counts = []
    found = [line for batch in results.batches for arm in results.present if (line := results.find(batch, arm))]
    for index in range(len(results.provenance)):
        trials = [trial for line in found for trial in line.trials if trial.source == index]
        counts.append(f"{len(trials)} trainings in {sum(trial.seconds for trial in trials):.0f} s")
    made = made_by(results.provenance, counts, modules)
    return Page("MRI experiment", "Labels without age, sex and site", sentence(results), shown, made)


def sentence(results: Results) -> str:
    """How far ours comes, from the numbers alone."""
    lines = [line for batch in results.batches if (line := results.find(batch, OURS))]
    if not lines:
        return f"The arm {OURS!r} is not among the results yet."
    free = _range([line.independent.mean for line in lines], ".1%")
    left = _range([line.within_mean.mean for line in lines], ".3f")
    batches = ", ".join(str(line.batch) for line in lines)
    return (
        f"{results.title(OURS)} at batch {batches}: accuracy on independent people {free}, of {results.ceiling:.1%} "
        f"possible; mean correlation within groups {left}, where random scores have {results.mean_chance:.3f}."
    )


def _range(values: Sequence[float], form: str) -> str:
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}"


def draw_comparison(results: Results) -> bytes:
    """Accuracy on independent people and what is left of the confounds within groups, as PNG."""
    from matplotlib.figure import Figure as Drawing
    from matplotlib.ticker import PercentFormatter

    drawing = Drawing(figsize=(12.5, 5), layout="constrained")
    left, right = drawing.subplots(1, 2)
    _panel(left, results, lambda line: line.independent)
    _level(left, results.ceiling, f"best\npossible\n{results.ceiling:.0%}")
    _level(left, CHANCE, "chance\n25%")
    left.set_ylim(0.2, results.ceiling + 0.05)
    left.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    left.set_title("accuracy where labels are independent of age, sex and site (higher is better)", fontsize=10.5)
    _panel(right, results, lambda line: line.within_mean)
    _level(right, results.mean_chance, f"random\nscores\n{results.mean_chance:.3f}")
    right.set_ylim(bottom=min(0, *(line.within_mean.low for line in results.lines)))
    right.set_title("mean correlation with the three, within groups (lower is better)", fontsize=10.5)
    handles, labels = left.get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 8), frameon=False, fontsize=9.5)
    return png(drawing, 130)


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
    tidy(axis)


def _level(axis: Any, value: float, text: str) -> None:
    axis.axhline(value, color="#444444", linewidth=1, linestyle="--", zorder=1)
    axis.annotate(
        text, (1.01, value), xycoords=("axes fraction", "data"), ha="left", va="center", fontsize=9, color="#444444",
        annotation_clip=False,
    )  # fmt: skip


def draw_tsne(results: Results) -> bytes:
    """Test people of one fold by their last hidden features: a column for each arm, coloured by site and by sex."""
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(3.6 * len(results.clouds), 7.2), layout="constrained")
    axes: Any = drawing.subplots(2, len(results.clouds), squeeze=False)
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
    where = f"batch {first.batch}, test people of fold {first.fold}"
    drawing.suptitle(f"{first.method} of the last hidden layer, {where}", fontsize=11)
    return png(drawing)
