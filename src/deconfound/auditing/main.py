"""`audit`: how much of each confound is left in the outputs of any model, as one result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deconfound.auditing.embedding import embed
from deconfound.auditing.intake import Intake, Roles, read, sampled
from deconfound.auditing.measures import Left, Measured, left_in, main_statistic
from deconfound.auditing.notes import diagnose, one_class_folds, reasons
from deconfound.auditing.records import NO_ANSWER, AuditRow, Embedding, Note, Verdict
from deconfound.auditing.result import Audit
from deconfound.auditing.scoring import association_rows, audit_row, difference_row, scored
from deconfound.auditing.shapes import shapes
from deconfound.auditing.verdicts import LEVEL, corrected, verdict
from deconfound.design.table import Table
from deconfound.errors import DeconfoundWarning
from deconfound.metrics.columns import Column
from deconfound.metrics.differences import bootstrap_difference
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
    classes: Sequence[str] = (),
    permutations: int = 499,
    bootstraps: int = 500,
    seed: int = 0,
    embedding: bool = True,
    progress: Progress | None = None,
) -> Audit:
    """Measure how much of each confound is left in the outputs of one or several models.

    Args:
        outputs: `(n,)` or `(n, k)` logits, scores, probabilities or features, or predicted classes; a mapping of
            model name to such arrays compares several models on the same rows, with the first.
        table: one row per sample, in the order of the outputs.
        confounds: columns that should not be there.
        labels: columns that the model is meant to predict; what is left is then measured given them.
        person: column that names the person of each row; a person's rows are permuted, drawn and split
            together.
        features: hidden features to measure beside the outputs, in the same form; the figure shows them.
        fold: column with the test fold of each row; correlations and AUC are taken within folds and averaged.
        types: "numeric" or "categorical" for columns that should not be read by their values.
        positive: for a binary label, the level that a high score stands for; by default the one that is not
            called "control", "healthy", "no" and the like, else the later one in the alphabet.
        classes: the level that each column of outputs stands for, where there is one column per class; by default
            what the columns of a DataFrame are called, else the sorted order, as scikit-learn's `classes_`. A row for
            which a class is predicted that the label does not have counts as wrong.
        permutations: permuted tables for each p-value (a tenth of them, at least 99, for probes).
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
        'age is still there: strong'
    """
    resampling = Resampling(permutations, bootstraps, seed)
    seed = resampling.seed
    roles = Roles(confounds, labels or (), person, fold, dict(types or {}), dict(positive or {}), classes)
    data = read(outputs, features, table, roles)
    notes = [
        note for item in data.confounds for note in diagnose(item, data.labels, data.groups, data.units, data.folds)
    ]
    notes = [*data.notes, *(note for label in data.labels for note in one_class_folds(label, data.folds)), *notes]
    sample = sampled(data.units, MOST_ROWS, seed)
    if len(sample) < len(data.units):
        text = f"What is left is measured on {len(sample):,} of {len(data.units):,} rows, people drawn at random."
        notes.append(Note("sampled", "note", "", text))
    report = progress or (lambda what, done, total: None)
    verdicts, rows = _what_is_left(data, sample, notes, resampling, report)
    report("performance and figures", len(verdicts), len(verdicts) + 1)
    performed, reading = scored(data, resampling)
    notes = [*reading, *notes, *_many_tests(verdicts, resampling)]
    embeddings, points = _points(data, seed) if embedding else ((), None)
    for note in notes:
        if note.severity == "warning":
            warnings.warn(note.text, DeconfoundWarning, stacklevel=2)
    return Audit(
        (*rows, *performed, *association_rows(data)),
        tuple(verdicts),
        tuple(notes),
        _about(data, resampling, roles),
        embeddings,
        points,
        shapes(data, seed),
    )


def _what_is_left(
    data: Intake, sample: Tensor, notes: list[Note], resampling: Resampling, progress: Progress
) -> tuple[list[Verdict], list[AuditRow]]:
    """The verdict and its numbers for every space, model and confound, on a sample of the rows."""
    jobs = [
        (space, model, values, confound)
        for space, models in data.spaces.items()
        for model, values in models.items()
        for confound in data.confounds
    ]
    verdicts, rows = [], []
    first: dict[tuple[str, str], Left] = {}
    for number, (space, model, values, confound) in enumerate(jobs):
        progress(f"{confound.name} in the {space} of {model}", number, len(jobs) + 1)
        keep = sample[confound.present[sample]]
        keep = keep[torch.bincount(data.folds[keep])[data.folds[keep]] > 1]  # alone in a fold, nothing can be measured
        measured = Measured(values[keep], confound.take(keep), data.groups[keep], data.units[keep], data.folds[keep])
        labels = [label.take(keep) for label in data.labels]
        if any(note.kind == "constant in test sets" for note in reasons(notes, confound.name)):
            left = Left((Estimate(main_statistic(labels), float("nan"), len(keep)),), torch.zeros(0))
        else:
            left = left_in(measured, labels, resampling, logits=space == "outputs")
        _people_note(left, confound.name, notes)
        part = [audit_row(model, space, confound.name, "", item) for item in left.estimates]
        verdicts.append(verdict(part, reasons(notes, confound.name)))
        rows += part
        base = first.setdefault((space, confound.name), left)
        if base is not left and len(left.replicates) == len(base.replicates) > 0:
            value = left.estimates[0].value - base.estimates[0].value
            change = bootstrap_difference(value, left.replicates - base.replicates)
            rows.append(difference_row(part[0], next(iter(data.spaces[space])), change))
    return corrected(verdicts), rows


def _people_note(left: Left, confound: str, notes: list[Note]) -> None:
    """Say how many rows a permutation can move, where it is not all of them; once for each confound."""
    main = left.estimates[0]
    noted = any(note.kind in {"people", *NO_ANSWER} and note.confound == confound for note in notes)
    if main.movable < 0 or noted:
        return
    if main.movable == 0:
        text = f"No permutation gives any row another {confound}, given the label and the person: there is no test."
        notes.append(Note("nothing to permute", "warning", confound, text))
    elif main.value != main.value:
        text = f"{confound} differs in one row at most wherever rows are compared: that is too little to measure."
        notes.append(Note("nothing to permute", "warning", confound, text))
    elif main.movable < main.n:
        text = f"Permutations can give {main.movable:,} of {main.n:,} rows another {confound}; the others stay."
        notes.append(Note("people", "note", confound, text))


def _many_tests(verdicts: Sequence[Verdict], resampling: Resampling) -> list[Note]:
    smallest = len([item for item in verdicts if item.p == item.p]) / (resampling.permutations + 1)
    if smallest <= LEVEL:
        return []
    text = (
        f"{len(verdicts)} verdicts from {resampling.permutations} permutations: no corrected p-value can fall below "
        f"{smallest:.2f}. Ask for at least {int(len(verdicts) / LEVEL) + 1:,} permutations."
    )
    return [Note("many tests", "note", "", text)]


def _points(data: Intake, seed: int) -> tuple[tuple[Embedding, ...], dict[str, Any]]:
    """The same points for every model, and the columns that colour them."""
    rows = sampled(torch.arange(len(data.units)), MOST_POINTS, seed)
    models = data.spaces.get("features", data.spaces["outputs"])
    maps = tuple(embed(model, values[rows].numpy(), data.rows[rows].numpy(), seed) for model, values in models.items())
    columns = [{**_described(item), "values": _cells(item, rows)} for item in [*data.labels, *data.confounds]]
    return maps, {"columns": columns, "space": "features" if "features" in data.spaces else "outputs"}


def _described(item: Column) -> dict[str, Any]:
    return {"name": item.name, "kind": item.kind, "levels": list(item.levels)}


def _cells(item: Column, rows: Tensor) -> list[float | None]:
    return [None if value != value else float(f"{value:.6g}") for value in item.values[rows].tolist()]


def _about(data: Intake, resampling: Resampling, roles: Roles) -> dict[str, Any]:
    from deconfound import __version__

    return {
        "version": __version__,
        "models": list(data.spaces["outputs"]),
        "rows": len(data.units),
        "people": len(torch.unique(data.units)),
        "confounds": [_described(item) for item in data.confounds],
        "labels": [_described(item) for item in data.labels],
        "groups": len(torch.unique(data.groups)),
        "person": roles.person,
        "fold": roles.fold,
        "folds": len(torch.unique(data.folds)),
        "permutations": resampling.permutations,
        "bootstraps": resampling.bootstraps,
        "seed": resampling.seed,
        "main": main_statistic(data.labels),
    }
