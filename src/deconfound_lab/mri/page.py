"""The report of the MRI experiment: an HTML page, figures, tables as Markdown, and the block of the docs page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deconfound.data.files import read_json, write_bytes, write_text
from deconfound.errors import OptionError
from deconfound_lab.harness.sheet import Figure, Section, sheet
from deconfound_lab.mri.drawing import draw_comparison, draw_tsne
from deconfound_lab.mri.maps import FILE as MAPS
from deconfound_lab.mri.maps import PICTURE, write_files
from deconfound_lab.mri.results import OURS, Results
from deconfound_lab.mri.tables import (
    arms_table,
    gaps,
    mean_chance,
    not_first,
    table_one,
    table_three,
    table_two,
)

RESULTS = "results.json"
BEGIN, END = "<!-- begin results -->", "<!-- end results -->"

ARMS = (
    "Where each method acts in the network; all else is equal. `fc1` and `fc2` are before a ReLU, `relu1` and `relu2` "
    "after it, `fc3` is the logits, `blocks` the ResNet's output."
)
TABLE_ONE = "Counts of people, with the paper's in brackets."
TABLE_TWO = (
    "The paper's rows first: correlations of the logits with age, sex (|Pearson|) and site (dcor²), and accuracy (both "
    "labels right, mean of the four groups), averaged over folds. Then the same correlations within diagnostic groups, "
    "where those of the true labels are zero, and the accuracy on people in whom the labels are independent of all "
    "three. 95 % intervals in brackets: over folds for the paper's rows and accuracies, over people for the "
    "correlations within groups. The last column has the best possible accuracy, or what random scores give."
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


def sentence(results: Results) -> str:
    """How far ours comes, from the numbers alone."""
    lines = [line for line in results.lines if line.arm == OURS]
    if not lines:
        return f"The arm {OURS!r} is not among the results yet."
    free = [line.independent.mean for line in lines]
    left = [line.within_mean.mean for line in lines]
    batches = ", ".join(str(line.batch) for line in lines)
    return (
        f"{results.title(OURS)} at batch {batches}: accuracy on independent people "
        f"{_range(free, '.1%')}, of {results.ceiling:.1%} possible; mean correlation within groups "
        f"{_range(left, '.3f')}, where random scores have {mean_chance(results):.3f}."
    )


def remake(folder: Path) -> Results:
    """Make the report of a folder again from its `results.json`, and return what it holds."""
    results = Results.from_dict(read_json(folder / RESULTS))
    write_report(results, folder)
    return results


def write_report(results: Results, folder: Path) -> Path:
    """Write tables, figures and `report.html` beside `results.json`; returns the page's path."""
    comparison, tsne = draw_comparison(results), draw_tsne(results)
    write_bytes(folder / "comparison.png", comparison)
    notes = [*not_first(results), *gaps(results)]
    write_text(folder / "table1.md", table_one(results).markdown() + "\n")
    write_text(folder / "table2.md", _with_notes(table_two(results).markdown(), gaps(results)))
    write_text(folder / "table3.md", _with_notes(table_three(results).markdown(), not_first(results)))
    shown = [
        Section("Every arm at every batch size", COMPARISON, Figure(comparison, "accuracy and correlations by arm")),
        Section("Arms", f"{ARMS} {_plan(results)}", arms_table(results)),
        Section("Table 1", TABLE_ONE, table_one(results)),
        Section("Table 2", TABLE_TWO, table_two(results, "")),
        Section("Ours against each other arm", " ".join([TABLE_THREE, *notes]), table_three(results, "")),
    ]
    if tsne is not None:
        write_bytes(folder / "tsne.png", tsne)
        shown.append(Section("t-SNE", TSNE, Figure(tsne, "people in the plane, coloured by site and sex")))
    if (folder / MAPS).exists():
        write_files(folder)
        picture = (folder / PICTURE).read_bytes()
        shown.append(Section("Coefficients in space", MAPS_LEAD, Figure(picture, "slices of the coefficients")))
    page = sheet("MRI experiment", "Labels without age, sex and site", sentence(results), shown, _made(results))
    write_text(folder / "report.html", page)
    return folder / "report.html"


def block(results: Results, folder: str) -> str:
    """The part of the docs page that the results make.

    Args:
        results: The results.
        folder: The folder of the figures, seen from the page.
    """
    parts = [
        f"![Accuracy and correlations of every arm]({folder}/comparison.png)", COMPARISON,
        "### Arms", f"{ARMS} {_plan(results)}", arms_table(results).markdown(),
        "### Table 1", TABLE_ONE, table_one(results).markdown(),
        "### Table 2", TABLE_TWO, table_two(results).markdown(), *_listed(gaps(results)),
        "### Ours against each other arm", TABLE_THREE, *_listed(not_first(results)), table_three(results).markdown(),
    ]  # fmt: skip
    if results.clouds:
        parts += ["### t-SNE", TSNE, f"![People by site and sex]({folder}/tsne.png)"]
    parts += ["### Where these numbers come from", f"[All numbers]({folder}/{RESULTS}).", *_listed(_made(results))]
    return "\n\n".join(parts)


def filled(page: str, content: str) -> str:
    """A page of the docs with new content between its marks."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise OptionError(f"the page must hold {BEGIN} and {END} once each; got another number. Add the marks.")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{content}\n\n{END}{rest.partition(END)[2]}"


def _made(results: Results) -> list[str]:
    lines = []
    for index, source in enumerate(results.provenance):
        trials = [trial for line in results.lines for trial in line.trials if trial.source == index]
        packages = ", ".join(f"{name} {version}" for name, version in source["packages"].items())
        lines.append(
            f"{len(trials)} trainings in {sum(trial.seconds for trial in trials):.0f} s: deconfound "
            f"{source['deconfound']} (commit {source['commit']}) on {source['device']}, Python {source['python']}, "
            f"{packages}. Command: {source['command']}"
        )
    return lines


def _plan(results: Results) -> str:
    """The settings of all trainings."""
    left_out = ("batch_sizes", "run_folds", "arms", "people", "bootstraps")
    words = [
        f"{name.replace('_', ' ')} {_words(value)}" for name, value in results.plan.items() if name not in left_out
    ]
    return f"Settings: {', '.join(words)}."


def _words(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, list) else str(value)


def _range(values: Sequence[float], form: str) -> str:
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}"


def _listed(lines: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {line}" for line in lines)] if lines else []


def _with_notes(table: str, notes: Sequence[str]) -> str:
    return "\n\n".join([table, *_listed(notes)]) + "\n"


def fill_page(page: Path, folder: Path) -> None:
    """Put the results of a folder into the docs page, between its marks."""
    results = Results.from_dict(read_json(folder / RESULTS))
    seen = folder.relative_to(page.parent).as_posix()
    write_text(page, filled(page.read_text(encoding="utf-8"), block(results, seen)))
