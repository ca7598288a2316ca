"""The page of the MRI experiment, from the results alone: the paper's tables, every arm, t-SNE, and maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deconfound_lab.harness import Figure, Page, Section
from deconfound_lab.harness.estimates import Value
from deconfound_lab.harness.page import filled, png, settings, tidy
from deconfound_lab.harness.provenance import made_by, trainings
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
_BATCHES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
_SHAPES = ("o", "s", "D", "^")
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
    if results.clouds:
        shown.append(Section("t-SNE", TSNE, Figure("tsne.png", draw_tsne(results), "People by site and sex")))
    if (folder / MAPS).exists():
        picture = Figure(PICTURE, draw_maps(load_maps(folder / MAPS)), "Slices of the coefficients")
        shown.append(Section("Coefficients in space", MAPS_LEAD, picture))
    counts = trainings(results.provenance, [(t.source, t.seconds) for line in results.shown for t in line.trials])
    made = made_by(results.provenance, counts, modules)
    return Page("MRI experiment", "Labels without age, sex and site", sentence(results), filled(shown), made)


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
    """Accuracy on independent people and what is left of the confounds within groups, a row for each arm, as PNG."""
    from matplotlib.figure import Figure as Drawing
    from matplotlib.ticker import PercentFormatter

    arms = results.present
    drawing = Drawing(figsize=(12.5, 0.34 * len(arms) + 1.8), layout="constrained")
    left, right = drawing.subplots(1, 2, sharey=True)
    _forest(left, results, lambda line: line.independent)
    _level(left, results.ceiling, f"best possible {results.ceiling:.0%}")
    _level(left, CHANCE, "chance 25%")
    left.set_xlim(0.2, results.ceiling + 0.05)
    left.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    _title(left, "accuracy where labels are independent\nof age, sex and site (higher is better)")
    _forest(right, results, lambda line: line.within_mean)
    _level(right, results.mean_chance, f"random scores {results.mean_chance:.3f}")
    right.set_xlim(left=min(0, *(line.within_mean.low for line in results.lines)))
    _title(right, "mean correlation with the three,\nwithin groups (lower is better)")
    left.set_yticks(range(len(arms)), [results.title(arm) for arm in arms])
    left.set_ylim(len(arms) - 0.5, -0.5)
    handles, labels = left.get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9.5)
    return png(drawing, 130)


def _forest(axis: Any, results: Results, measure: Callable[[Line], Value]) -> None:
    arms, batches = results.present, results.batches
    for number, batch in enumerate(batches):
        found = [(place, line) for place, arm in enumerate(arms) if (line := results.find(batch, arm))]
        values = [measure(line) for _, line in found]
        axis.errorbar(
            [value.mean for value in values],
            [place + 0.6 * (number - (len(batches) - 1) / 2) / len(batches) for place, _ in found],
            xerr=[[value.mean - value.low for value in values], [value.high - value.mean for value in values]],
            color=_BATCHES[number % len(_BATCHES)],
            marker=_SHAPES[number % len(_SHAPES)],
            markersize=5.5,
            linestyle="none",
            elinewidth=1.3,
            label=f"batch {batch}",
        )
    if OURS in arms:
        axis.axhspan(arms.index(OURS) - 0.5, arms.index(OURS) + 0.5, color="#D55E00", alpha=0.1, linewidth=0)
    tidy(axis, "x")


def _title(axis: Any, text: str) -> None:
    axis.set_title(text, fontsize=10.5, pad=16)  # above the names of the lines


def _level(axis: Any, value: float, text: str) -> None:
    """A line that is named above the rows, where no interval is drawn."""
    axis.axvline(value, color="#444444", linewidth=1, linestyle="--", zorder=1)
    axis.annotate(text, (value, 1.005), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8)


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
