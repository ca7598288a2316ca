"""`audit`: how much of each confound is left in the outputs of any model, as one result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deconfound.auditing.answers import Answers, answers, performance
from deconfound.auditing.embedding import embed
from deconfound.auditing.intake import Intake, read
from deconfound.auditing.measures import Measured, left_in
from deconfound.auditing.notes import Note, diagnose, unanswerable
from deconfound.auditing.records import AuditRow, Embedding, Verdict
from deconfound.auditing.result import Audit
from deconfound.auditing.verdicts import verdict
from deconfound.design.table import Table
from deconfound.errors import DeconfoundWarning
from deconfound.metrics.columns import Column, tercile_codes
from deconfound.metrics.correlation import association
from deconfound.metrics.resampling import Estimate, Resampling

# Statistics of pairs cost n² for every permutation; of more rows a random sample of people is measured.
MOST_ROWS = 3000
MOST_POINTS = 1500
Progress = Callable[[str, int, int], None]


def audit(
    outputs: Any,
    table: Table,
    *,
    confounds: Sequence[str],
    labels: Sequence[str] | None = (),
    person: str | None = None,
    features: Any = None,
    fold: str | None = None,
    types: Mapping[str, str] | None = None,
    positive: Mapping[str, str] | None = None,
    permutations: int = 499,
    bootstraps: int = 500,
    seed: int = 0,
    embedding: bool = True,
    progress: Progress | None = None,
) -> Audit:
    """Measure how much of each confound is left in the outputs of one or several models.

    Args:
        outputs: `(n,)` or `(n, k)` logits, scores, probabilities or features, or predicted classes as text; a
            mapping of model name to such arrays compares several models on the same rows.
        table: one row per sample, in the order of the outputs.
        confounds: columns that should not be there.
        labels: columns that the model is meant to predict; what is left is then measured within their groups.
        person: column that names the person of each row; a person's rows are permuted, drawn and split
            together.
        features: hidden features to measure beside the outputs, in the same form; the figure shows them.
        fold: column with the test fold of each row; correlations and AUC are taken within folds and averaged.
        types: "numeric" or "categorical" for columns that should not be read by their values.
        positive: for a binary label, the level that a high score stands for; by default the one that is not
            called "control", "healthy", "no" and the like, else the later one in the alphabet.
        permutations: permuted tables for each p-value (a tenth of them, at least 39, for probes).
        bootstraps: bootstrap samples for each interval.
        seed: of every random draw; the same seed gives the same audit.
        embedding: whether to place the rows in the plane for the page.
        progress: called with (what, done, total) before each step.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> age, dx = rng.normal(60, 10, 200), rng.integers(0, 2, 200)
        >>> table = {"age": age, "dx": dx}
        >>> found = audit(dx + 0.1 * age, table, confounds=["age"], labels=["dx"], permutations=99)
        >>> found.verdicts[0].headline
        'age is still there, strongly'
    """
    resampling = Resampling(permutations, bootstraps, seed)
    data = read(
        outputs, features, table, confounds, labels or (), person, fold, dict(types or {}), dict(positive or {})
    )
    notes = [note for item in data.confounds for note in diagnose(item, data.labels, data.groups, data.units)]
    notes = [*data.notes, *notes]
    sample = _sample(data.units, MOST_ROWS, seed)
    if len(sample) < len(data.units):
        text = f"What is left is measured on {len(sample):,} of {len(data.units):,} rows, people drawn at random."
        notes.append(Note("note", "", text))
    told = progress or (lambda what, done, total: None)
    left = _what_is_left(data, sample, notes, resampling, told)
    told("performance and figure", len(left), len(left) + 1)
    rows = [row for _, part in left for row in part]
    for model, values in data.spaces["outputs"].items():
        performed, said = _performance(model, values, data, resampling)
        rows, notes = rows + performed, notes + said
    rows += _association_rows(data)
    embeddings, points = _figure(data, seed) if embedding else ((), None)
    for note in notes:
        if note.severity == "warning":
            warnings.warn(note.text, DeconfoundWarning, stacklevel=2)
    verdicts = tuple(verdict for verdict, _ in left)
    return Audit(tuple(rows), verdicts, tuple(notes), _about(data, resampling, person, fold), embeddings, points)


def _what_is_left(
    data: Intake, sample: Tensor, notes: Sequence[Note], resampling: Resampling, progress: Progress
) -> list[tuple[Verdict, list[AuditRow]]]:
    """The verdict and its numbers for every space, model and confound, on a sample of the rows."""
    jobs = [
        (space, model, values, confound)
        for space, models in data.spaces.items()
        for model, values in models.items()
        for confound in data.confounds
    ]
    found = []
    for number, (space, model, values, confound) in enumerate(jobs):
        progress(f"{confound.name} in the {space} of {model}", number, len(jobs) + 1)
        keep = sample[confound.present[sample]]
        measured = Measured(values[keep], confound.take(keep), data.groups[keep], data.units[keep], data.folds[keep])
        items = left_in(measured, [label.take(keep) for label in data.labels], resampling, logits=space == "outputs")
        rows = [_row(model, space, confound.name, "", item) for item in items]
        found.append((verdict(rows, unanswerable=unanswerable(notes, confound.name)), rows))
    return found


def _performance(
    model: str, outputs: Tensor, data: Intake, resampling: Resampling
) -> tuple[list[AuditRow], list[Note]]:
    """How well the outputs answer the labels, and how they were read."""
    given, labels = answers(outputs, data.labels), ", ".join(label.name for label in data.labels)
    if given is None:
        text = f"The outputs of {model} ({outputs.shape[1]} columns) do not answer {labels}: no performance."
        return [], [Note("note", "", text)] if labels else []
    notes = [Note("note", "", f"{model}: {given.reading}.")]
    rows = _performance_rows(model, given, data, resampling)
    if any(row.statistic == "auc" and row.high < 0.5 and not row.level for row in rows):
        text = (
            f"The scores of {model} point away from {labels} (AUC below one half). If a high score stands for the "
            "other level, pass positive={label: level}."
        )
        notes.append(Note("warning", "", text))
    return rows, notes


def _row(model: str, space: str, confound: str, level: str, item: Estimate) -> AuditRow:
    return AuditRow(
        model,
        space,
        confound,
        item.statistic,
        level,
        item.value,
        item.low,
        item.high,
        item.p,
        item.chance,
        item.independent,
        item.n,
    )


def _performance_rows(model: str, given: Answers, data: Intake, resampling: Resampling) -> list[AuditRow]:
    """Performance on all rows, then on each level (or third) of each confound."""
    folds = data.folds if len(torch.unique(data.folds)) > 1 else None
    rows = [_row(model, "outputs", "", "", item) for item in performance(given, data.units, resampling, folds)]
    for confound in data.confounds:
        codes, names = _strata(confound)
        for code, name in enumerate(names):
            part = (codes == code).nonzero()[:, 0]
            if len(part):
                found = performance(
                    given.take(part), data.units[part], resampling, None if folds is None else folds[part]
                )
                rows += [_row(model, "outputs", confound.name, name, item) for item in found]
    return rows


def _association_rows(data: Intake) -> list[AuditRow]:
    """How much each confound goes with each label in the table itself."""
    rows = []
    for confound in data.confounds:
        for label in data.labels:
            found = association(confound, label)
            n = int((confound.present & label.present).sum())
            rows.append(_row("", "table", confound.name, label.name, Estimate(found.statistic, found.value, n)))
    return rows


def _strata(confound: Column) -> tuple[Tensor, tuple[str, ...]]:
    if confound.kind == "numeric":
        return tercile_codes(confound.values)
    return confound.values.nan_to_num(nan=-1).long(), confound.levels


def _sample(units: Tensor, most: int, seed: int) -> Tensor:
    """Row numbers of as many people, drawn at random, as have at most so many rows together; in order."""
    if len(units) <= most:
        return torch.arange(len(units))
    _, codes, counts = torch.unique(units, return_inverse=True, return_counts=True)
    order = torch.randperm(len(counts), generator=torch.Generator().manual_seed(seed))
    taken = order[counts[order].cumsum(0) <= most]
    return torch.isin(codes, taken).nonzero()[:, 0]


def _figure(data: Intake, seed: int) -> tuple[tuple[Embedding, ...], dict[str, Any]]:
    """The same points for every model, and the columns that colour them."""
    rows = _sample(torch.arange(len(data.units)), MOST_POINTS, seed)
    models = data.spaces.get("features", data.spaces["outputs"])
    maps = tuple(embed(model, values[rows].numpy(), data.rows[rows].numpy(), seed) for model, values in models.items())
    columns = [
        {"name": item.name, "kind": item.kind, "levels": list(item.levels), "values": _cells(item, rows)}
        for item in [*data.labels, *data.confounds]
    ]
    return maps, {"columns": columns, "space": "features" if "features" in data.spaces else "outputs"}


def _cells(item: Column, rows: Tensor) -> list[float | None]:
    return [None if value != value else float(f"{value:.6g}") for value in item.values[rows].tolist()]


def _about(data: Intake, resampling: Resampling, person: str | None, fold: str | None) -> dict[str, Any]:
    from deconfound import __version__

    return {
        "version": __version__,
        "models": list(data.spaces["outputs"]),
        "rows": len(data.units),
        "people": len(torch.unique(data.units)),
        "confounds": [{"name": item.name, "kind": item.kind, "levels": list(item.levels)} for item in data.confounds],
        "labels": [{"name": item.name, "kind": item.kind, "levels": list(item.levels)} for item in data.labels],
        "groups": len(torch.unique(data.groups)),
        "person": person,
        "fold": fold,
        "permutations": resampling.permutations,
        "bootstraps": resampling.bootstraps,
        "seed": resampling.seed,
    }
