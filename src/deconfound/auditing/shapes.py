"""What the figures of an audit show: score distributions, ROC and calibration curves, predicted against true."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deconfound.auditing.answers import Answers, answers
from deconfound.auditing.intake import Intake
from deconfound.auditing.scoring import strata
from deconfound.metrics.columns import Column
from deconfound.metrics.performance import auc, calibration

# Facets of a figure: more levels than this are those with most rows.
MOST_LEVELS = 40
MOST_CURVES = 12
FEWEST_ROWS = 10
_SHARES = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
_GRID = 60
_DOTS = 600


def shapes(data: Intake, seed: int) -> dict[str, Any]:
    """Curves and quantiles by model and confound, as JSON-safe data."""
    out: dict[str, Any] = {}
    for model, values in data.spaces["outputs"].items():
        given = answers(values, data.labels, data.classes)
        if given is None:
            continue
        found: dict[str, Any] = {}
        if given.binary:
            _, score, positive = given.scores[0]
            names = list(data.labels[0].levels)
            found["scores"] = {item.name: _spread(score, positive.long(), names, item) for item in data.confounds}
            found["roc"] = {"": [_roc("all rows", score, positive)]}
            found["roc"] |= {item.name: _by_level(item, score, positive, _roc) for item in data.confounds}
            if given.probabilities:
                found["calibration"] = {"": [_calibrated("all rows", score, positive)]}
                found["calibration"] |= {
                    item.name: _by_level(item, score, positive, _calibrated) for item in data.confounds
                }
        elif given.scores:  # several labels or classes: each against the rest
            found["roc"] = {"": [_roc(name, score, positive) for name, score, positive in given.scores[:MOST_CURVES]]}
            if given.probabilities:
                found["calibration"] = {"": [_calibrated(*item) for item in given.scores[:MOST_CURVES]]}
        elif given.predicted is not None and given.true is not None:
            found["predicted"] = _predicted(given, seed)
            error = given.predicted - given.true
            nothing = torch.zeros(len(error), dtype=torch.long)
            found["errors"] = {item.name: _spread(error, nothing, [""], item) for item in data.confounds}
        if found:
            out[model] = found
    return out


def _levels(item: Column, most: int) -> list[tuple[str, Tensor]]:
    """The strata with most rows, in their own order."""
    codes, names = strata(item)
    counts = torch.bincount(codes[codes >= 0], minlength=len(names))
    kept = sorted(counts.argsort(descending=True, stable=True)[:most].tolist())
    return [(names[code], (codes == code).nonzero()[:, 0]) for code in kept if counts[code] >= FEWEST_ROWS]


def _spread(score: Tensor, group: Tensor, names: list[str], item: Column) -> list[dict[str, Any]]:
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
    order = score.argsort(descending=True, stable=True)
    last = torch.cat([score[order][1:] != score[order][:-1], torch.ones(1, dtype=torch.bool)])
    rise = positive[order].cumsum(0)[last] / positive.sum()
    run = (1 - positive[order]).cumsum(0)[last] / (1 - positive).sum()
    pick = torch.unique(torch.linspace(0, len(rise) - 1, _GRID).round().long())
    x, y = _short(run[pick]), _short(rise[pick])
    return {"name": name, "x": [0.0, *x], "y": [0.0, *y], "auc": float(auc(score, positive)), "n": len(score)}


def _calibrated(name: str, score: Tensor, positive: Tensor) -> dict[str, Any]:
    found = calibration(score, positive)
    x, y = (_short(torch.tensor(values)) for values in (found.predicted, found.observed))
    return {"name": name, "x": x, "y": y, "error": found.error, "n": len(score)}


def _predicted(given: Answers, seed: int) -> dict[str, Any]:
    assert given.predicted is not None
    assert given.true is not None
    some = torch.randperm(len(given.true), generator=torch.Generator().manual_seed(seed))[:_DOTS]
    return {"x": _short(given.true[some]), "y": _short(given.predicted[some])}


def _short(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
