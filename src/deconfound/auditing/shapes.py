"""What the figures of an audit show: score distributions, ROC and calibration curves, predicted against true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deconfound.auditing.answers import Answers, Score, answers
from deconfound.auditing.intake import Intake
from deconfound.auditing.performance import roc
from deconfound.auditing.scoring import strata
from deconfound.metrics.columns import Column
from deconfound.metrics.performance import auc, calibration

# Facets of a figure: more levels than this are those with most rows.
MOST_LEVELS = 40
MOST_CURVES = 12
MOST_SCORES = 6
FEWEST_ROWS = 10
_SHARES = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
_GRID = 60
_DOTS = 600


def shapes(data: Intake, seed: int) -> dict[str, Any]:
    """Curves and quantiles by model, as JSON-safe data: a list of parts, one for each score and one for all of them."""
    out: dict[str, Any] = {}
    for model, values in data.spaces["outputs"].items():
        given = answers(values, data.labels, data.classes.get(model, ()))
        if given is not None:
            out[model] = [_number_part(given, data.confounds, seed)] if given.numeric else _score_parts(given, data)
    return out


def _score_parts(given: Answers, data: Intake) -> list[dict[str, Any]]:
    """What one score shows by stratum; of several labels or classes, all curves together and then each with most rows.

    A class is set against the rest.
    """
    names = [label.levels for label in data.labels]
    if len(names) == 1 and not given.binary:
        names = [(f"not {name}", name) for name, _, _ in given.scores]
    parts = [
        _score_part("" if given.binary else score[0], score, names[place], given.probabilities, data.confounds)
        for place, score in enumerate(given.scores)
        if place in sorted(range(len(names)), key=lambda place: -float(given.scores[place][2].sum()))[:MOST_SCORES]
    ]
    if given.binary:
        return parts
    whole: dict[str, Any] = {"name": "", "roc": {"": [_roc(*item) for item in given.scores[:MOST_CURVES]]}}
    if given.probabilities:
        whole["calibration"] = {"": [_calibrated(*item) for item in given.scores[:MOST_CURVES]]}
    return [whole, *parts]


def _score_part(
    name: str, score: Score, names: Sequence[str], probabilities: bool, confounds: Sequence[Column]
) -> dict[str, Any]:
    _, values, positive = score
    found: dict[str, Any] = {"name": name}
    found["scores"] = {item.name: _spread(values, positive.long(), names, item) for item in confounds}
    for kind, curve, wanted in (("roc", _roc, True), ("calibration", _calibrated, probabilities)):
        if wanted:
            found[kind] = {"": [curve("all rows", values, positive)]}
            found[kind] |= {item.name: _by_level(item, values, positive, curve) for item in confounds}
    return found


def _number_part(given: Answers, confounds: Sequence[Column], seed: int) -> dict[str, Any]:
    _, predicted, true = given.scores[0]
    some = torch.randperm(len(true), generator=torch.Generator().manual_seed(seed))[:_DOTS]
    nothing = torch.zeros(len(true), dtype=torch.long)
    return {
        "name": "",
        "predicted": {"x": _short(true[some]), "y": _short(predicted[some])},
        "errors": {item.name: _spread(predicted - true, nothing, [""], item) for item in confounds},
    }


def _levels(item: Column, most: int) -> list[tuple[str, Tensor]]:
    """The strata with most rows, in their own order."""
    codes, names = strata(item)
    counts = torch.bincount(codes[codes >= 0], minlength=len(names))
    kept = sorted(counts.argsort(descending=True, stable=True)[:most].tolist())
    return [(names[code], (codes == code).nonzero()[:, 0]) for code in kept if counts[code] >= FEWEST_ROWS]


def _spread(score: Tensor, group: Tensor, names: Sequence[str], item: Column) -> list[dict[str, Any]]:
    """Quantiles of the scores by stratum and label group."""
    rows = []
    for level, part in _levels(item, MOST_LEVELS):
        for code, name in enumerate(names):
            values = score[part][group[part] == code]
            if len(values) >= 3:
                at = torch.quantile(values, _SHARES) if len(values) < 10**6 else torch.quantile(values[::10], _SHARES)
                rows.append({"level": level, "group": name, "at": _short(at), "n": len(values)})
    return rows


def _by_level(item: Column, score: Tensor, positive: Tensor, curve: Any) -> list[dict[str, Any]]:
    found = []
    for level, rows in _levels(item, MOST_CURVES):
        up = int(positive[rows].sum())
        if 5 <= up <= len(rows) - 5:
            found.append(curve(level, score[rows], positive[rows]))
    return found


def _roc(name: str, score: Tensor, positive: Tensor) -> dict[str, Any]:
    false, true = roc(score, positive)
    pick = torch.unique(torch.linspace(0, len(true) - 1, _GRID).round().long())
    x, y = _short(false[pick]), _short(true[pick])
    return {"name": name, "x": [0.0, *x], "y": [0.0, *y], "auc": float(auc(score, positive)), "n": len(score)}


def _calibrated(name: str, score: Tensor, positive: Tensor) -> dict[str, Any]:
    found = calibration(score, positive)
    x, y = (_short(torch.tensor(values)) for values in (found.predicted, found.observed))
    return {"name": name, "x": x, "y": y, "error": found.error, "n": len(score)}


def _short(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
