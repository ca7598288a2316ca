"""The pages of a run and of a comparison: one HTML file each, without scripts or network."""

from __future__ import annotations

from importlib.metadata import version
from math import nan
from typing import TYPE_CHECKING, Any

import pandas as pd
import yaml

from deconfound.auditing import About, Audit, Performance
from deconfound.metrics import Estimate
from deconfound.runs.folder import RunFolder

if TYPE_CHECKING:
    from deconfound.runs.compare import Comparison
    from deconfound.runs.run import Run

# Width and height of the figure of training curves, in its own units.
WIDTH, HEIGHT = 400.0, 120.0


def render_run(run: Run) -> str:
    """Return the page of a run.

    It begins with failures and the answer in three lines. Then come honest performance, what is
    left of the confounds, training curves, the performance as sampled, methods and provenance.
    """
    return _render(
        run.audit or _without_leaks(run),
        run,
        title=f"Run {run.folder.name}: method {run.config.method.name}",
        failures={f"Fold {name}": reason for name, reason in run.failures.items()},
        curves=_draw_curves(run),
        notes_of_run=run.notes,
    )


def render_comparison(comparison: Comparison) -> str:
    """Return the page of a comparison: that of a run, and after the answer a table of variants."""
    assert comparison.audit is not None
    return _render(
        comparison.audit,
        comparison.runs[comparison.base],
        title=f"Comparison {comparison.folder.name}: {len(comparison.runs)} variants",
        failures=comparison.failures,
        notes_of_run=comparison.notes,
        lines=comparison.to_frame().to_dict("records"),
        base=comparison.base,
        summary=comparison.summary,
    )


def _without_leaks(run: Run) -> Audit:
    """Return an audit that holds nothing but the performance of a run."""
    performance = [
        Performance("model", label, (), "", honest, Estimate(nan), None, "")
        for label, honest in run.metrics.items()
    ]
    person = run.config.data.person
    confounds = [name for honest in run.metrics.values() for name in honest.within_strata]
    about = About(
        rows=len(run.predictions),
        people=run.predictions[person or "id"].nunique(),
        folds=len(run.finished),
        models=("model",),
        features=(),
        labels=run.task.labels,
        confounds=tuple(dict.fromkeys(confounds)),
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
    if not audit.verdicts:
        measured = audit.summary[1]
        values = {"summary": ["This was not audited.", measured, "–"], "methods": "", **values}
    return audit.render(
        "run.html.j2",
        "deconfound.runs",
        provenance={
            "Fingerprint of the config": description["fingerprint"],
            "Fingerprints of files": description["identity"]["fingerprints"],
            "Versions": description["versions"],
            "Commit": description["commit"] or "–",
        },
        config=yaml.safe_dump(run.config.to_dict(), sort_keys=False, allow_unicode=True),
        folds=description["folds"],
        **{"lines": [], "curves": None, **values},
    )


def _draw_curves(run: Run) -> dict[str, Any] | None:
    """Return the losses of all folds as points of lines, with the ends of the axes."""
    histories = [run.history(fold) for fold in run.finished]
    curves = [one.set_index("epoch").filter(like="_loss") for one in histories if len(one) > 1]
    if not curves:
        return None
    points = pd.concat(curves)
    lowest, highest, epochs = points.min().min(), points.max().max(), points.index.max()
    lines = []
    for curve in curves:
        across = WIDTH * curve.index / epochs
        for name, losses in curve.items():
            down = HEIGHT * (highest - losses) / max(highest - lowest, 1e-12)
            pairs = zip(across, down, strict=True)
            lines.append({"loss": name, "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)})
    return {"lines": lines, "lowest": lowest, "highest": highest, "epochs": epochs}
