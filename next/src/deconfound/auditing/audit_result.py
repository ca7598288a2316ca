"""`Audit`: the verdicts, scores and notes of one audit, and the forms in which it is kept."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from deconfound.auditing.result import About, Performance, Verdict
from deconfound.auditing.sentences import confounds_help, methods_paragraph, summarise
from deconfound.errors import OptionError
from deconfound.table import Note


@dataclass(frozen=True)
class Audit:
    """What is left of confounds in the outputs of models, and what the models are worth.

    Attributes:
        verdicts: One for each model (and each array of features) and confound.
        performance: One for each model and label.
        notes: Findings about the table.
        about: What was audited, and how.

    Example:
        >>> import deconfound as dc
        >>> features, target, people = dc.example("heart")
        >>> report = dc.audit(
        ...     features[:, 0], people, confounds=["sex"], labels=["ill"], planted=None
        ... )
        >>> report.to_frame()[["model", "confound", "answer"]].values.tolist()
        [['model', 'sex', 'not found']]
    """

    verdicts: tuple[Verdict, ...]
    performance: tuple[Performance, ...]
    notes: tuple[Note, ...]
    about: About

    @property
    def summary(self) -> tuple[str, str, str]:
        """The answer: what is left, what the models are worth, and what cannot be known."""
        return summarise(self.verdicts, self.performance, self.notes, self.about)

    @property
    def methods_paragraph(self) -> str:
        """A paragraph for the methods section of a paper, with the numbers."""
        return methods_paragraph(self.verdicts, self.performance, self.about)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-safe data; unknown numbers are None."""
        data = {
            "summary": list(self.summary),
            "methods": self.methods_paragraph,
            "about": asdict(self.about),
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "performance": [_performance_data(row) for row in self.performance],
            "notes": [
                {"kind": note.kind, "column": note.column, "text": note.text, "fix": note.fix}
                for note in self.notes
            ],
        }
        cleaned: dict[str, Any] = _without_nan(data)
        return cleaned

    def to_frame(self) -> pd.DataFrame:
        """Return the verdicts as a DataFrame with one row for each model and confound."""
        rows = []
        for verdict in self.verdicts:
            effect = verdict.effect
            rows.append(
                {
                    "model": verdict.model,
                    "confound": verdict.confound,
                    "answer": verdict.answer,
                    "grade": verdict.grade,
                    "effect": effect.value,
                    "low": effect.low,
                    "high": effect.high,
                    "p": effect.p,
                    "holm": verdict.holm,
                    "reason": verdict.reason,
                }
            )
        return pd.DataFrame(rows)

    def render(
        self, template: str = "page.html.j2", package: str | None = None, **values: Any
    ) -> str:
        """Return the audit as HTML: one page that needs no network, or another template.

        Args:
            template: The file of a template.
            package: A package whose folder `templates` has the template. It may extend
                `page.html.j2`.
            **values: What the template reads beside the data of `to_dict`.
        """
        # Imported here, because templates and figures are slow to import.
        from deconfound.auditing.page import render_template

        return render_template(template, self.to_dict(), package, **values)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the audit: a page (.html), all numbers (.json), or the verdicts (.csv).

        Raises:
            OptionError: The path has another ending, or its folder does not exist.
        """
        target = Path(path)
        if target.suffix not in (".html", ".json", ".csv"):
            raise OptionError(
                f"An audit cannot be written as {target.suffix or 'a file without an ending'!r}. "
                "Write a path that ends with .html, .json or .csv."
            )
        if not target.parent.is_dir():
            raise OptionError(f"There is no folder {str(target.parent)!r}. Make it first.")
        if target.suffix == ".html":
            text = self.render()
        elif target.suffix == ".json":
            text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False)
        else:
            text = self.to_frame().to_csv(index=False)
        target.write_text(text, encoding="utf-8")
        return target

    def __str__(self) -> str:
        return "\n".join(self.summary)

    def _repr_html_(self) -> str:
        return self.render("summary.html.j2")


def _performance_data(row: Performance) -> dict[str, Any]:
    """Return a row of performance as data, with what can be concluded from it."""
    data = asdict(row)
    data["confounds_help"] = confounds_help(row)
    data["honest"]["has_enough_people"] = row.honest.has_enough_people
    return data


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
