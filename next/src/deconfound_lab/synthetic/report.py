"""Figure 2 and the tables of the synthetic experiment, from its results alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from deconfound_lab.harness import Page, Results
from deconfound_lab.report import GAP, format_mean, make_panels, mean_interval
from deconfound_lab.synthetic.experiment import ARMS, FIGURE_ARMS, WEIGHTED_ARMS, make_cell
from deconfound_lab.synthetic.images import CEILING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Settings = Mapping[str, Any]
Cells = Sequence[Mapping[str, Any]]

BATCHES = (1, 2, 20, 200, 1000, 2000)
STATES = {"as_trained": "as trained", "refitted": "refitted"}
KIND_TITLES = {"width": "the width is drawn", "two": "two confounds", "sites": "three sites"}
# Settings of a cell of the paper's own question; other tables change one of them.
USUAL = {name: make_cell("plain", 20)[name] for name in ("kind", "weights", "network", "order")}

HOW_TO_READ = (
    "Each entry is the accuracy in %, with half its 95 % interval where there are three seeds or "
    "more / the accuracy where the confound is independent of the group / dcor² of the first fully "
    "connected layer. "
    f"The best accuracy without the confound is {CEILING:.1%}; more is the confound's doing. Arms "
    "that learn coefficients of confounds are measured with those of the training and with those "
    "refitted to validation images. The published arms choose their best state without a refit. "
    "Entries of an earlier release carry its number in brackets. Release 0.2 chose the best state "
    "of all arms after a refit, and multiplied losses by overlap weights where 1.0 draws images. "
    f"{GAP} is not computed."
)


def make_page(results: Results) -> Page:
    """Return Figure 2 and all tables, with gaps for cells that are missing."""
    by_batch = {f"batch {size}": {"batch": size} for size in BATCHES}
    small = {"batch 20": {"batch": 20}, "batch 200": {"batch": 200}}
    others = {"layernorm", "pmdn-layernorm", "pmdn-joint", "plain", "pmdn", "pmdn-published"}
    return Page(
        title="The synthetic experiment",
        text={"summary": summarise(results), "how to read the tables": HOW_TO_READ},
        tables={
            "accuracy by batch size": make_table(
                results, arm_rows(FIGURE_ARMS), by_batch, show_measures
            ),
            "training with overlap weights": make_table(
                results, arm_rows(WEIGHTED_ARMS, weights="overlap"), small, show_measures
            ),
            "training and evaluation mode": make_table(
                results, arm_rows(("batchnorm", "mdn", "rmdn", "pmdn")), by_batch, show_gap
            ),
            "LayerNorm, and Eq. 8": make_table(
                results, arm_rows([arm for arm in ARMS if arm in others]), small, show_measures
            ),
            "other confounds": make_table(results, kind_rows(), small, show_measures),
            "other networks": make_table(
                results,
                network_rows(),
                {"batch 2": {"batch": 2}, "batch 20": {"batch": 20}},
                show_measures,
            ),
            "one image at a time": make_table(
                results,
                arm_rows(("plain", "mdn", "rmdn", "pmdn"), kind="sites", batch=1),
                {"random order": {"order": "random"}, "sorted by site": {"order": "sorted"}},
                show_measures,
            ),
        },
        figures={"Figure 2": draw_figure(results)},
    )


def arm_rows(arms: Sequence[str], title: str = "{}", **settings: Any) -> dict[str, Settings]:
    """Return the settings of one row for each arm."""
    usual = {**USUAL, **settings}
    return {title.format(ARMS[arm].title): {"arm": arm, **usual} for arm in arms}


def kind_rows() -> dict[str, Settings]:
    """Return one row for each kind of confound and arm."""
    rows: dict[str, Settings] = {}
    for kind, title in KIND_TITLES.items():
        rows |= arm_rows(("plain", "mdn", "pmdn"), f"{title}: {{}}", kind=kind)
    return rows


def network_rows() -> dict[str, Settings]:
    """Return one row for each other network and arm."""
    rows: dict[str, Settings] = {}
    for network in ("gru", "transformer"):
        rows |= arm_rows(("plain", "mdn", "pmdn"), f"{network}: {{}}", network=network)
    return {title.replace(" CNN", ""): row for title, row in rows.items()}


def make_table(
    results: Results,
    rows: Mapping[str, Settings],
    columns: Mapping[str, Settings],
    show: Callable[[Cells, str], str],
) -> pd.DataFrame:
    """Return a table of text; rows in which nothing is computed are left out.

    Args:
        results: The results.
        rows: Settings of the cells of each row, by its title.
        columns: Settings of the cells of each column.
        show: Makes the text of some cells that differ in their seeds, in one of `STATES`.
    """
    lines = []
    for title, settings in rows.items():
        for state, state_title in STATES.items():
            found = [newest(results, {**settings, **column}) for column in columns.values()]
            entries = [show(cells, state) for cells in found]
            if set(entries) != {GAP}:
                lines.append([title, state_title, *entries])
    return pd.DataFrame(lines, columns=["", "coefficients", *columns])


def newest(results: Results, settings: Settings) -> Cells:
    """Return the seeds of one training, all made with the newest release that has any."""
    cells = results.find(**settings)
    releases = [cell["release"] for cell in cells]
    return [cell for cell in cells if cell["release"] == max(releases)]


def show_measures(cells: Cells, state: str) -> str:
    """Return accuracy / accuracy with an independent confound / dcor², and an earlier release."""
    measured = [cell["result"][state] for cell in cells if state in cell["result"]]
    if not measured:
        return GAP
    accuracy = format_mean([one["accuracy"] for one in measured], scale=100)
    independent = mean_interval([one["independent"] for one in measured])
    dcor2 = mean_interval([one["dcor2"] for one in measured])
    assert independent is not None
    assert dcor2 is not None
    numbers = f"{accuracy} / {100 * independent.mean:.1f} / {dcor2.mean:.3f}"
    return numbers + show_release(cells)


def show_gap(cells: Cells, state: str) -> str:
    """Return how far training mode lies from evaluation mode, in sd of the logit."""
    if state == "refitted" or not cells:
        return GAP
    return format_mean([cell["result"]["gap"] for cell in cells], digits=2) + show_release(cells)


def show_release(cells: Cells) -> str:
    """Return the release in brackets if it is an earlier one."""
    release = cells[0]["release"]
    return f" ({release})" if release.startswith("0.") else ""


def summarise(results: Results) -> str:
    """Return what PMDN and the plain network reach, in the numbers of the results."""
    sentences = []
    for arm, state in (("plain", "as_trained"), ("pmdn", "refitted")):
        found = [newest(results, {"arm": arm, "batch": size, **USUAL}) for size in BATCHES]
        means = [
            mean_interval(cell["result"][state]["accuracy"] for cell in cells) for cells in found
        ]
        known = [100 * mean.mean for mean in means if mean is not None]
        if known:
            by_size = {
                str(size): cells for size, cells in zip(BATCHES, found, strict=True) if cells
            }
            sizes = [size + show_release(cells) for size, cells in by_size.items()]
            sentences.append(
                f"{ARMS[arm].title}, {STATES[state]}: {min(known):.1f} to {max(known):.1f} % over "
                f"batch sizes {', '.join(sizes)}."
            )
    sentences.append(f"The best accuracy without the confound is {CEILING:.1%}.")
    return " ".join(sentences)


def draw_figure(results: Results) -> Figure:
    """Draw dcor² and accuracy against the batch size, as Figure 2 of the paper.

    Dashed lines are the same networks with refitted coefficients.
    """
    figure, panels = make_panels(2, size=(6.0, 5.0))
    titles = {"dcor2": "dcor², first fully connected layer", "accuracy": "accuracy"}
    for panel, (measure, title) in zip(panels, titles.items(), strict=True):
        for number, arm in enumerate(FIGURE_ARMS):
            states = STATES if ARMS[arm].is_refitted else ["as_trained"]
            for state in states:
                draw_arm(panel, results, number, state, measure)
        panel.set_xticks(range(len(BATCHES)), [str(size) for size in BATCHES])
        panel.set_xlabel("batch size")
        panel.set_title(title, fontsize=11)
    panels[1].axhline(CEILING, color="#444444", linewidth=1, linestyle=":")
    edge = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 9}
    panels[1].annotate(f" {CEILING:.1%}", (1.0, CEILING), **edge)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw_arm(panel: Any, results: Results, number: int, state: str, measure: str) -> None:
    """Draw one line of one arm, by its place in `FIGURE_ARMS`, in one of `STATES`."""
    arm = FIGURE_ARMS[number]
    points = []
    for place, size in enumerate(BATCHES):
        cells = newest(results, {"arm": arm, "batch": size, **USUAL})
        measured = [cell["result"][state] for cell in cells if state in cell["result"]]
        mean = mean_interval(one[measure] for one in measured)
        if mean is not None:
            # Slightly apart, so that intervals do not hide each other.
            shift = 0.06 * (number - len(FIGURE_ARMS) / 2)
            points.append((place + shift, mean.mean, mean.half_width or 0.0))
    if not points:
        return
    places, means, half_widths = zip(*points, strict=True)
    is_refitted = state == "refitted"
    panel.errorbar(
        places,
        means,
        yerr=half_widths,
        label=ARMS[arm].title + (", refitted" if is_refitted else ""),
        color="black" if arm == "pmdn" else f"C{number}",
        linestyle="--" if is_refitted else "-",
        marker="o" if is_refitted else "s",
        markersize=4,
        linewidth=1.2,
        capsize=2,
    )
