"""The report of the OASIS-1 experiment: a page, the figure, and the tables as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deconfound.data.files import write_bytes, write_text
from deconfound_lab.harness.sheet import Figure, Section, sheet
from deconfound_lab.oasis.drawing import draw
from deconfound_lab.oasis.results import OLD
from deconfound_lab.oasis.tables import audit_table, lines_of, score_table, sentence

_FIGURE = (
    f"Above: what each score is worth among people of {OLD} and older (dashed: to be beaten; dotted: chance) and its "
    "correlation with age within controls, with 95 % intervals. Below: mean ± sd of the score of controls in bands of "
    "age; a score free of age is flat."
)
_TRAINED = "Each score as its method leaves it. In brackets the 95 % interval of people drawn again."
_AFTERWARDS = (
    "The same networks, and then each score as a z-score among controls of the same age and sex. What is usual at an "
    "age, mean and spread, is learned from training controls, each scored by a network that had not seen this person."
)
_AUDIT = "What is left of age and sex within diagnoses, by `dc.audit`."


def sections(results: Mapping[str, Any], figure: bytes) -> list[Section]:
    """What the results hold."""
    return [
        Section("Scores and age", _FIGURE, Figure(figure, "AUC and correlation with age of every score")),
        Section("As trained", _TRAINED, score_table(lines_of(results, False))),
        Section("Beside controls of the same age and sex", _AFTERWARDS, score_table(lines_of(results, True))),
        Section("Audit", _AUDIT, audit_table(results)),
    ]


def write_report(results: Mapping[str, Any], folder: Path) -> Path:
    """Write `figure.png`, `tables.md` and `report.html` beside `results.json`; returns the page's path."""
    figure = draw(results)
    shown = sections(results, figure)
    write_bytes(folder / "figure.png", figure)
    tables = [f"## {s.title}\n\n{s.lead}\n\n{s.content.markdown()}" for s in shown if not isinstance(s.content, Figure)]
    write_text(folder / "tables.md", "\n\n".join(tables) + "\n")
    page = sheet("Real scans", "Dementia without age", sentence(results), shown, _made(results))
    write_text(folder / "report.html", page)
    return folder / "report.html"


def _made(results: Mapping[str, Any]) -> list[str]:
    source, counts = results["provenance"], results["counts"]
    packages = ", ".join(f"{name} {version}" for name, version in source["packages"].items())
    return [
        "OASIS-1: " + ", ".join(f"{count} {name}" for name, count in counts.items()) + ".",
        f"deconfound {source['deconfound']} (commit {source['commit']}) on {source['device']}, Python "
        f"{source['python']}, {packages}. Command: {source['command']}",
        "Plan: " + ", ".join(f"{name} {value}" for name, value in results["plan"].items()),
    ]
