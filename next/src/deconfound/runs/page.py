"""The pages of a run and of a comparison: one HTML file each, without scripts or network."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from math import nan
from typing import TYPE_CHECKING, Any

import yaml

from deconfound.auditing import About, Audit, Performance
from deconfound.metrics import Estimate, HonestScore
from deconfound.runs.folder import RunFolder, flatten

if TYPE_CHECKING:
    from deconfound.runs.compare import Comparison
    from deconfound.runs.run import Run

# Width and height of the figure of training curves, in its own units.
WIDTH, HEIGHT = 400.0, 120.0
# What stands elsewhere on the page.
NOT_PROVENANCE = ("identity", "others", "task", "folds", "notes")


def render_run(run: Run) -> str:
    """Return the page of a run.

    It begins with failures and the answer in three lines. Then come honest performance, what is
    left of the confounds, training curves, the performance as sampled, methods and provenance.
    """
    audit = run.audit or without_leaks({"model": run.metrics}, run)
    return _render(
        audit,
        run,
        title=f"Run {run.folder.name}: method {run.config.method.name}",
        failures={f"Fold {name}": reason for name, reason in run.failures.items()},
        curves=_draw_curves(run),
    )


def render_comparison(comparison: Comparison) -> str:
    """Return the page of a comparison: that of a run, and after the answer a table of variants."""
    assert comparison.audit is not None
    return _render(
        comparison.audit,
        comparison.runs[comparison.base],
        title=f"Comparison {comparison.folder.name}: {len(comparison.runs)} variants",
        failures=comparison.failures,
        lines=comparison.to_frame().to_dict("records"),
        base=comparison.base,
        summary=comparison.summary,
    )


def without_leaks(scores: Mapping[str, Mapping[str, HonestScore]], run: Run) -> Audit:
    """Return an audit that holds nothing but the performance of models.

    Args:
        scores: From models and labels to scores.
        run: A run of one of the models, for what is known about the rows.
    """
    performance = [
        Performance(model, label, (), "", honest, Estimate(nan), None, "")
        for model, labels in scores.items()
        for label, honest in labels.items()
    ]
    person = run.config.data.person
    confounds = {name: None for row in performance for name in row.honest.within_strata}
    people = run.predictions["id" if person is None else person].nunique()
    about = About(
        rows=len(run.predictions),
        people=people,
        folds=len(run.finished),
        models=tuple(scores),
        features=(),
        labels=run.task.labels,
        confounds=tuple(confounds),
        groups={},
        permutations=0,
        bootstraps=0,
        planted=None,
        has_people=person is not None,
        has_weights=False,
        reading=(),
        version=version("deconfound"),
    )
    return Audit((), tuple(performance), (), about)


def _render(audit: Audit, run: Run, **values: Any) -> str:
    description = RunFolder(run.folder).description()
    facts = {key: value for key, value in description.items() if key not in NOT_PROVENANCE}
    if not audit.verdicts:
        measured = audit.summary[1]
        values = {"summary": ["This was not audited.", measured, "–"], "methods": "", **values}
    defaults: dict[str, Any] = {"lines": [], "curves": None, "notes_of_run": run.notes}
    return audit.render(
        "run.html.j2",
        "deconfound.runs",
        provenance={**facts, **flatten({"fingerprints": description["identity"]["fingerprints"]})},
        config=yaml.safe_dump(run.config.to_dict(), sort_keys=False, allow_unicode=True),
        folds=description["folds"],
        **defaults | values,
    )


def _draw_curves(run: Run) -> dict[str, Any] | None:
    """Return the losses of all folds as points of lines, with the ends of the axes."""
    histories = [run.history(name) for name in run.finished]
    losses = ("training_loss", "validation_loss")
    curves = [(name, one) for one in histories for name in losses if name in one and len(one) > 1]
    if not curves:
        return None
    lowest = min(one[name].min() for name, one in curves)
    highest = max(one[name].max() for name, one in curves)
    epochs = max(one["epoch"].max() for _, one in curves)
    lines = []
    for name, one in curves:
        across = WIDTH * one["epoch"] / epochs
        down = HEIGHT * (highest - one[name]) / max(highest - lowest, 1e-12)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
        lines.append({"loss": name, "points": points})
    return {"lines": lines, "lowest": lowest, "highest": highest, "epochs": epochs}
