"""The report of the synthetic experiment: an HTML page, the figure, and the tables as Markdown."""

from __future__ import annotations

from pathlib import Path

from deconfound.data.files import write_bytes, write_text
from deconfound_lab.harness.sheet import Figure, Section, sheet
from deconfound_lab.synthetic.drawing import figure_2
from deconfound_lab.synthetic.images import CEILING
from deconfound_lab.synthetic.tables import (
    NAMES,
    Results,
    closer_table,
    drift_table,
    gap_table,
    long_table,
    main_table,
    of,
    option_table,
    problem_table,
    rate_table,
)

CELL = (
    "Each cell: accuracy in % with the half width of its 95 % interval / accuracy where the confound is independent of "
    "the group / dcor² of the first fully connected layer with the confound."
)


def sections(results: Results, figure: bytes) -> list[Section]:
    """What the results hold, in the order of the paper's argument."""
    found = [
        Section("Figure 2", _FIGURE, Figure(figure, "dcor² and accuracy of each method against batch size")),
        Section("Every method at every batch size", f"{CELL} The best validation loss decides.", main_table(results)),
        Section("Nearer the ceiling", _CLOSER, closer_table(results)),
        Section("Learning rates", f"PMDN in one pass. {CELL}", rate_table(results)),
        Section("Training mode and eval mode", _GAP, gap_table(results)),
        Section("Long training", CELL, long_table(results)),
        Section("Other confounds", f"Batch 200. {CELL}", problem_table(results)),
        Section("What the options do", CELL, option_table(results)),
        Section("Drifting data", _DRIFT, drift_table(results)),
    ]
    return [each for each in found if isinstance(each.content, Figure) or each.content.rows]


def sentence(results: Results) -> str:
    """The finding in one sentence, from the numbers alone."""
    cells = [cell for batch in results.batches() if (cell := results.find("pmdn", batch=batch))]
    if not cells:
        return "PMDN in one pass is not among the results yet."
    accuracies = [100 * of(cell, "accuracy").mean for cell in cells]
    left = max(of(cell, "dcor2").mean for cell in cells)
    plain = [100 * of(c, "accuracy").mean for b in results.batches() if (c := results.find("none", batch=b))]
    before = f", where {NAMES['none']} has {min(plain):.1f} to {max(plain):.1f} %" if plain else ""
    return (
        f"Over batch sizes {', '.join(map(str, results.batches()))}, PMDN in one pass has an accuracy of "
        f"{min(accuracies):.1f} to {max(accuracies):.1f} %{before}; the ceiling without the confound is "
        f"{100 * CEILING:.1f} %. Its dcor² with the confound is {left:.4f} at most."
    )


def write_report(results: Results, folder: Path) -> Path:
    """Write `figure2.png`, `tables.md` and `report.html` beside `results.json`; returns the page's path."""
    figure = figure_2(results)
    shown = sections(results, figure)
    write_bytes(folder / "figure2.png", figure)
    tables = [f"## {s.title}\n\n{s.lead}\n\n{s.content.markdown()}" for s in shown if not isinstance(s.content, Figure)]
    write_text(folder / "tables.md", "\n\n".join(tables) + "\n")
    page = sheet(
        "Synthetic experiment", "A ceiling that only the confound can break", sentence(results), shown, _made(results)
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"


def _made(results: Results) -> list[str]:
    lines = []
    for index, source in enumerate(results.content["provenance"]):
        count = sum(cell["provenance"] == index for cell in results.cells)
        packages = ", ".join(f"{name} {version}" for name, version in source["packages"].items())
        lines.append(
            f"{count} cells: deconfound {source['deconfound']} (commit {source['commit']}) on {source['device']}, "
            f"Python {source['python']}, {packages}. Command: {source['command']}"
        )
    lines.extend(f"Failed: {key}: {text}" for key, text in results.content["failures"].items())
    return lines


_FIGURE = (
    "Mean over seeds with 95 % intervals. Accuracy above the dashed ceiling is the confound's doing; below it, "
    "something of the main effect is lost."
)
_CLOSER = (
    "By how many points PMDN in one pass is nearer the ceiling than each other method, paired over seeds, with 95 % "
    "intervals; above zero it is nearer."
)
_GAP = (
    "Root mean square difference between the logits of one batch in training mode and in eval mode, in standard "
    "deviations of the logit."
)
_DRIFT = (
    "Five stages in which the main effect fades (ceilings 75, 68.75, 62.5, 56.25 and 50 %). Mean distance of the "
    "accuracy from the ceiling of a stage, in points, with 95 % intervals."
)
