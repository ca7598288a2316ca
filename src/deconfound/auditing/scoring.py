"""The rows of an audit that say how well outputs answer the labels, for every model, stratum and comparison."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from deconfound.auditing.answers import Answers, answers
from deconfound.auditing.baselines import confounds_alone, missing_cells_alone
from deconfound.auditing.class_names import listed_names
from deconfound.auditing.independent import independence_weights, independent_performance
from deconfound.auditing.intake import Intake, sampled
from deconfound.auditing.measures import scaled
from deconfound.auditing.performance import (
    Performance,
    bootstrapped,
    calibration_error,
    equal_error_rate,
    gaps,
    performance,
    split_by,
)
from deconfound.auditing.records import AuditRow, Note
from deconfound.metrics.columns import Column, tercile_codes
from deconfound.metrics.correlation import association
from deconfound.metrics.differences import Difference, bootstrap_difference, delong_difference
from deconfound.metrics.resampling import Estimate, Resampling

ALONE = {"confounds alone": confounds_alone, "missing cells alone": missing_cells_alone}
NAN = float("nan")
# A regression on as many rows tells what confounds reach; one column per level of all rows would not fit.
MOST_FOR_BASELINES = 5_000
# Shares of a confound that are erased, one after the other.
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Below this the outputs are no linear function of the features, and erasing there says little about them.
FEWEST_EXPLAINED = 0.9


def scored(data: Intake, resampling: Resampling) -> tuple[list[AuditRow], list[Note]]:
    """Every number about performance, and how the outputs of each model were read."""
    if not data.labels:
        return [], []
    rows: list[AuditRow] = []
    notes: list[Note] = []
    readings: dict[str, list[str]] = {}
    first: tuple[str, Answers, Performance] | None = None
    labels = ", ".join(label.name for label in data.labels)
    weights = independence_weights(data)
    if isinstance(weights, Note):
        notes.append(weights)
    for model, values in data.spaces["outputs"].items():
        given = answers(values, data.labels, data.classes.get(model, ()), data.units, data.folds)
        if given is None:
            notes.append(_no_answers(model, values, data))
            continue
        readings.setdefault(given.reading, []).append(model)
        found = performance(given, resampling)
        more = (calibration_error(given, resampling), equal_error_rate(given))
        whole = [*found.estimates, *(item for item in more if item is not None)]
        if not isinstance(weights, Note):
            whole += independent_performance(given, weights, resampling)
        rows += [audit_row(model, "outputs", "", "", item) for item in whole]
        rows += _by_stratum(model, given, data.confounds, resampling)
        if first is None:
            first = (model, given, found)
        else:
            rows += _differences(model, given, found, first)
        notes += _question(model, whole, labels)
        used, remarks = _used(model, data, resampling)
        rows, notes = rows + used, notes + remarks
    read = [Note("reading", "note", "", f"{', '.join(models)}: {text}.") for text, models in readings.items()]
    return rows + _alone(data, resampling), [*read, *notes]


def _no_answers(model: str, values: Tensor, data: Intake) -> Note:
    """Why there is no performance: no column for a class, or columns that are something else."""
    classes, label = data.classes.get(model, ()), data.labels[0]
    absent = [level for level in label.levels if level not in classes]
    if classes and absent and len(data.labels) == 1:
        text = (
            f"The outputs of {model} are called {listed_names(classes)}, and none of them stands for {label.name} "
            f"{listed_names(absent)}: no performance. Rename the columns, or say in classes what each stands for."
        )
        return Note("no performance", "warning", "", text)
    labels = ", ".join(item.name for item in data.labels)
    text = f"The outputs of {model} ({values.shape[1]} columns) do not answer {labels}: no performance."
    return Note("no performance", "note", "", text)


def association_rows(data: Intake) -> list[AuditRow]:
    """How much each confound goes with each label in the table itself."""
    rows = []
    for confound in data.confounds:
        for label in data.labels:
            found = association(confound, label)
            n = int((confound.present & label.present).sum())
            rows.append(audit_row("", "table", confound.name, label.name, Estimate(found.statistic, found.value, n)))
    return rows


def audit_row(model: str, space: str, confound: str, level: str, item: Estimate) -> AuditRow:
    """An estimate as a row of the audit."""
    numbers = (item.value, item.low, item.high, item.p, item.chance, item.independent)
    return AuditRow(model, space, confound, item.statistic, level, *numbers, item.n)


def difference_row(row: AuditRow, base: str, change: Difference) -> AuditRow:
    """A row less that of the model `base`, on the same people."""
    numbers = (change.value, change.low, change.high, change.p, NAN, NAN)
    return AuditRow(row.model, row.space, row.confound, f"{row.statistic}_difference", base, *numbers, row.n)


def strata(confound: Column) -> tuple[Tensor, tuple[str, ...]]:
    """The levels of a category, or thirds of a number: codes `(n,)` (-1 where missing) and names."""
    if confound.kind == "numeric":
        return tercile_codes(confound.values)
    return confound.values.nan_to_num(nan=-1).long(), confound.levels


def _alone(data: Intake, resampling: Resampling) -> list[AuditRow]:
    """What the confounds, or the pattern of missing cells, reach without any model."""
    rows = []
    some = sampled(data.units, MOST_FOR_BASELINES, resampling.seed)
    confounds, labels = ([item.take(some) for item in items] for items in (data.confounds, data.labels))
    units, levels = data.units[some], labels[0].levels if len(labels) == 1 else ()
    for name, predict in ALONE.items():
        scores = predict(confounds, labels, units, resampling.seed)
        given = None if scores is None else answers(scores, labels, levels, units)
        if given is not None:
            found = performance(given, resampling).estimates
            rows += [audit_row(name, "baseline", "", "", item) for item in found if item.statistic != "brier_score"]
    return rows


def _by_stratum(model: str, given: Answers, confounds: list[Column], resampling: Resampling) -> Iterator[AuditRow]:
    """Performance on each level (or third) of each confound, the split of the AUC, and gaps between strata."""
    for confound in confounds:
        codes, names = strata(confound)
        for code, name in enumerate(names):
            part = (codes == code).nonzero()[:, 0]
            if len(part):
                inside = given.take(part)
                for item in (*performance(inside, resampling).estimates, calibration_error(inside, resampling)):
                    if item is not None:
                        yield audit_row(model, "outputs", confound.name, name, item)
        if given.binary:
            known = (codes >= 0).nonzero()[:, 0]
            inside, codes = given.take(known), codes[known]
            for function in (split_by(inside, codes), gaps(inside, codes)):
                found = () if function is None else bootstrapped(function, inside.units, resampling).estimates
                for item in found:
                    if item.value == item.value:
                        yield audit_row(model, "outputs", confound.name, "", item)


def _differences(
    model: str, given: Answers, found: Performance, first: tuple[str, Answers, Performance]
) -> list[AuditRow]:
    """Each measure less that of the first model, on the same people: DeLong for one AUC, else a paired bootstrap."""
    base, base_given, base_found = first
    rows = []
    alone = len(torch.unique(given.units)) == len(given.units)
    base_values = {item.statistic: item.value for item in base_found.estimates}
    for item in found.estimates:
        if item.statistic not in base_values:  # scores have no Brier score, probabilities have
            continue
        name, value = item.statistic, item.value - base_values[item.statistic]
        if name == "auc" and alone and given.binary:
            change = delong_difference(given.scores[0][1], base_given.scores[0][1], given.scores[0][2], given.folds)
        else:
            change = bootstrap_difference(value, found.replicates[name] - base_found.replicates[name])
        rows.append(difference_row(audit_row(model, "outputs", "", "", item), base, change))
    return rows


def _question(model: str, whole: list[Estimate], labels: str) -> list[Note]:
    """An AUC clearly below one half, or an R² clearly below 0, asks whether the outputs are what they were read as."""
    if any(item.statistic == "r2" and item.high < 0 for item in whole):
        text = (
            f"The outputs of {model} are further from {labels} than its mean is (R² below 0). Are they in its units? "
            "Logarithms and z-scores are not."
        )
        return [Note("points away", "note", "", text)]
    if not any(item.statistic == "auc" and item.high < 0.5 for item in whole):
        return []
    text = (
        f"The scores of {model} point away from {labels} (AUC below one half). Does a high score stand for the other "
        "level? Then pass positive={label: level} (--positive LABEL=LEVEL), or classes for columns of classes."
    )
    return [Note("points away", "warning", "", text)]


def _used(model: str, data: Intake, resampling: Resampling) -> tuple[list[AuditRow], list[Note]]:
    """How performance and outputs move when a confound's direction is erased from the features, in growing shares."""
    features = data.spaces.get("features", {}).get(model)
    if features is None or len(torch.unique(data.folds)) > 1:
        return [], []
    rows: list[AuditRow] = []
    for confound in data.confounds:
        keep = confound.present.nonzero()[:, 0]
        labels = [label.take(keep) for label in data.labels]
        found = _erased(data.spaces["outputs"][model][keep], features[keep], confound.take(keep), labels)
        if found is None or found.explained < FEWEST_EXPLAINED:
            why = "too many" if found is None else f"a linear read-out explains {found.explained:.0%} of the outputs"
            text = f"Whether {model} uses what its features hold is not measured: {why}, at least 90 % are needed."
            return rows, [Note("not linear", "note", "", text)]
        rows.append(audit_row(model, "features", confound.name, "", Estimate("used_outputs", found.moved, len(keep))))
        for share, outputs in zip(SHARES, found.outputs, strict=True):
            given = answers(outputs, labels, data.classes.get(model, ()), data.units[keep])
            if given is None:
                continue
            main = performance(given, resampling).estimates[0]
            item = replace(main, statistic=f"used_{main.statistic}")
            rows.append(audit_row(model, "features", confound.name, f"{share:g}", item))
    return rows, []


class _Erased(NamedTuple):
    """Outputs `(n, k)` after each share was erased, how much of them the read-out explains, and how much moves."""

    outputs: list[Tensor]
    explained: float
    moved: float


def _erased(outputs: Tensor, features: Tensor, confound: Column, labels: list[Column]) -> _Erased | None:
    """Outputs of features from which a confound without gaps is erased; None where features are too many to read.

    The outputs are read off the features by least squares. The confound's part of the features, `C β` of the fit
    `features ≈ b₀ + C β + L γ` with the labels L, is subtracted in growing shares, and the same read-out applied again.
    """
    n, d = features.shape
    if n <= d + 10:
        return None
    centred = features - features.mean(0)
    y = outputs - outputs.mean(0)
    weights = torch.linalg.lstsq(centred, y, driver="gelsd").solution
    rest = y - centred @ weights
    explained = 1 - float(rest.square().sum() / y.square().sum().clamp_min(1e-300))
    design = torch.cat([scaled(confound), *(scaled(label) for label in labels)], dim=1)
    design = design - design.mean(0)
    width = scaled(confound).shape[1]
    beta = torch.linalg.lstsq(design, centred, driver="gelsd").solution[:width]
    part = design[:, :width] @ beta @ weights
    moved = float(part.square().sum() / y.square().sum().clamp_min(1e-300))
    return _Erased([outputs - share * part for share in SHARES], explained, moved)
