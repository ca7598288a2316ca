"""From measurements to verdicts: Holm over the confounds of a model, and grades."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan

import numpy as np

from deconfound.auditing.measures import Measurement, Source
from deconfound.auditing.result import LEVEL, Answer, Grade, Verdict, grade_of
from deconfound.metrics import holm


def judge(source: Source, measurements: Sequence[Measurement]) -> list[Verdict]:
    """Return the verdicts on all confounds of one array."""
    p_values = [nan if one.leak is None else one.leak.p for one in measurements]
    adjusted = holm(p_values).tolist()
    return [_verdict(source, one, p) for one, p in zip(measurements, adjusted, strict=True)]


def _verdict(source: Source, one: Measurement, p: float) -> Verdict:
    answer: Answer = "no answer"
    if not isnan(p):
        answer = "found" if p <= LEVEL else "not found"
    return Verdict(
        model=source.model,
        is_features=source.is_features,
        confound=one.confound.name,
        answer=answer,
        grade=grade(one) if answer == "found" else "none",
        effect=one.effect,
        holm=p,
        independent=nan if one.leak is None else one.leak.independent,
        by_group=one.by_group,
        sensitivity=one.sensitivity,
        probe=one.probe,
        paper=one.paper,
        rows=0 if one.leak is None else one.leak.rows,
        reason="" if one.obstacle is None else one.obstacle.reason,
        collect="" if one.obstacle is None else one.obstacle.collect,
    )


def grade(one: Measurement) -> Grade:
    """Return the size of a leak: the largest of all pairs and of groups with a finding."""
    groups = [group.effect for group in one.by_group if group.effect.p <= LEVEL]
    effects = [one.effect.value, *(effect.value for effect in groups)]
    return grade_of(float(np.nanmax([*effects, 0.0])))
