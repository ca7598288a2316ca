"""The tables of the OASIS-1 experiment, from `results.json` alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deconfound_lab.footing import Judged
from deconfound_lab.harness import Table
from deconfound_lab.harness.estimates import Value
from deconfound_lab.oasis.measures import OLD, Line
from deconfound_lab.oasis.plan import ARMS

# How free of age is free.
FREE = 0.1


def title(arm: str) -> str:
    """An arm as tables name it."""
    others = {"age": "age alone", "linear": "ridge regression on voxels"}
    return others[arm] if arm in others else ARMS[arm].title


def lines_of(results: Mapping[str, Any], judged: Judged | None = None) -> list[Line]:
    """The lines of `results.json`; those that are judged in one way, if asked."""
    lines = [Line.from_dict(plain) for plain in results["lines"]]
    return [line for line in lines if judged in (None, line.judged)]


def to_beat(lines: list[Line]) -> float:
    """The AUC that ridge regression on voxels has among people of 60 and older."""
    return next(line.auc_old.mean for line in lines if line.arm == "linear" and line.judged == "as trained")


def score_table(lines: list[Line]) -> Table:
    """How well each score tells dementia from control, and what it holds of age and sex within controls."""
    head = ["", "AUC, everyone", f"AUC, {OLD} and older", "r with age, controls"]
    head += [f"r with age, controls, {OLD} and older", "dcor² with age, controls", "r with sex, controls"]
    rows = []
    for line in lines:
        values = [line.auc, line.auc_old, line.r_age, line.r_age_old]
        rows.append([title(line.arm), *map(_value, values), f"{line.dcor2_age:.3f}", _value(line.r_sex)])
    return Table(head, rows)


def difference_table(results: Mapping[str, Any]) -> Table:
    """Every score against the plain network's own, and against its W-score, paired over people and trainings."""
    head = ["", "scores", "against the plain network's", f"AUC, {OLD} and older: more", "AUC, everyone: more"]
    rows = []
    for each in results["differences"]:
        old, everyone, age = (Value(**each[name]).shown("+.3f") for name in ("auc_old", "auc", "r_age"))
        rows.append([title(each["arm"]), each["judged"], each["against"], old, everyone, age])
    return Table([*head, "size of r with age, controls: more"], rows)


def audit_table(results: Mapping[str, Any]) -> Table:
    """What `dc.audit` finds of age and sex, within diagnoses: in the scores and in the hidden features."""
    rows = []
    for verdict in results["audit"]["verdicts"]:
        arm, _, after = verdict["model"].partition(", ")
        found = _row(results, verdict)
        numbers = [found[name] for name in ("value", "low", "high", "p")]
        value, low, high, p = ("–" if number is None else f"{number:.3f}" for number in numbers)
        where = "hidden features" if verdict["space"] == "features" else after or "score"
        rows.append([title(arm), where, verdict["confound"], verdict["headline"], f"{value} ({low} to {high})", p])
    order = {arm: number for number, arm in enumerate(dict.fromkeys(row[0] for row in rows))}
    rows.sort(key=lambda row: (order[row[0]], ("score", "hidden features", "W-score").index(row[1])))
    return Table(["", "in", "confound", "verdict", "dcor² within diagnoses", "p"], rows)


def sentence(results: Mapping[str, Any]) -> str:
    """The finding in few words, from the numbers alone."""
    lines = [line for line in lines_of(results) if line.arm != "age"]
    plain = next((line for line in lines if line.arm == "baseline" and line.judged == "as trained"), None)
    least = to_beat(lines)
    lines = [line for line in lines if line.arm != "linear"]
    reached = [line for line in lines if line.auc_old.mean > least and abs(line.r_age.mean) < FREE]
    opening = ""
    if plain is not None:
        opening = (
            f"The plain network has AUC {plain.auc_old.mean:.2f} among people of {OLD} and older, and its score goes "
            f"with age within controls (r = {plain.r_age.mean:.2f}). "
        )
    bar = f"ridge regression on voxels (AUC {least:.2f}) among people of {OLD} and older with |r| below {FREE}"
    if not reached:
        return f"{opening}No score beats {bar}."
    best = max(reached, key=lambda line: line.auc_old.mean)
    return (
        f"{opening}{len(reached)} of {len(lines)} scores beat {bar}; the best of them is {title(best.arm)}, "
        f"{best.judged}: AUC "
        f"{best.auc_old.mean:.2f}, r = {best.r_age.mean:.2f}."
    )


def _row(results: Mapping[str, Any], verdict: Mapping[str, Any]) -> Mapping[str, Any]:
    same = ("model", "space", "confound")
    rows = results["audit"]["rows"]
    return next(r for r in rows if r["statistic"] == "within_group_dcor_sqr" and all(r[k] == verdict[k] for k in same))


def _value(value: Value) -> str:
    return f"{value.mean:.3f} ({value.low:.3f} to {value.high:.3f})"
