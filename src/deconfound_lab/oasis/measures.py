"""What scores are worth: AUC, AUC in older people, and what is left of age within controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.metrics import auc, u_distance_correlation_sqr
from deconfound_lab.footing import Judged
from deconfound_lab.harness.estimates import Value, of_draws

OLD = 60
BANDS = ((18, 30), (30, 45), (45, 60), (60, 70), (70, 80), (80, 100))


@dataclass(frozen=True)
class Line:
    """One score.

    Attributes:
        arm: Whose.
        judged: As trained, refitted, or standardised by controls of the same age and sex.
        auc: Dementia against control, everyone.
        auc_old: The same among people of 60 and older.
        r_age: Pearson correlation with age within controls.
        r_age_old: The same within controls of 60 and older.
        r_sex: Pearson correlation with sex within controls.
        dcor2_age: Bias-corrected squared distance correlation with age within controls.
        curve: Mean and standard deviation of the score of controls in bands of age, in sd of all controls' scores.
        seconds: Mean time of a training.
    """

    arm: str
    judged: Judged
    auc: Value
    auc_old: Value
    r_age: Value
    r_age_old: Value
    r_sex: Value
    dcor2_age: float
    curve: tuple[Mapping[str, float], ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Line:
        """From plain values."""
        values = {name: Value(**item) for name, item in plain.items() if isinstance(item, Mapping)}
        return cls(**{**plain, **values, "curve": tuple(plain["curve"])})


def measure(
    arm: str,
    judged: Judged,
    scores: NDArray[Any],
    table: Mapping[str, Any],
    bootstraps: int,
    seconds: float = 0.0,
) -> Line:
    """Measure the scores of people.

    Args:
        arm: Whose scores they are.
        judged: Which of the arm's scores.
        scores: `(members, people)`; the mean of the members is what is measured.
        table: `age`, `sex` and `dementia` of each.
        bootstraps: Draws of the bootstrap over people, stratified by diagnosis and side of 60, and over members.
        seconds: Mean time of a training.
    """
    found, draws = _with_draws(scores, table, bootstraps)
    values = {name: of_draws(float(found[name]), draws[name]) for name in found}
    age, control = np.asarray(table["age"], dtype=np.float64), np.asarray(table["dementia"]) == 0
    mean = scores.mean(0)
    left = u_distance_correlation_sqr(*(torch.from_numpy(each[control])[:, None] for each in (mean, age)))
    curve = _curve(mean, age, control)
    return Line(arm, judged, **values, dcor2_age=float(left), curve=curve, seconds=seconds)


def difference(one: NDArray[Any], other: NDArray[Any], table: Mapping[str, Any], bootstraps: int) -> dict[str, Value]:
    """By how much measures of one arm's scores exceed the other's, paired over people and members.

    `r_age` is the difference of absolute values: below zero, the one goes less with age.
    """
    own, theirs = (_with_draws(scores, table, bootstraps) for scores in (one, other))

    def minus(name: str, which: int) -> NDArray[np.float64]:
        size: Any = np.abs if name == "r_age" else np.asarray
        found: NDArray[np.float64] = size(own[which][name]) - size(theirs[which][name])
        return found

    return {name: of_draws(float(minus(name, 0)), minus(name, 1)) for name in ("auc", "auc_old", "r_age")}


def _with_draws(
    scores: NDArray[Any], table: Mapping[str, Any], bootstraps: int
) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]:
    """The measures of the members' mean, and of bootstrap draws: the same people and members for all scores."""
    age, dementia = np.asarray(table["age"], dtype=np.float64), np.asarray(table["dementia"]) == 1
    male = (np.asarray(table["sex"]) == "M").astype(np.float64)
    rows = _bootstrap_rows(2 * dementia + (age >= OLD), bootstraps)
    members = len(scores)
    counts = np.random.default_rng(1).multinomial(members, np.full(members, 1 / members), size=bootstraps)
    drawn = np.take_along_axis(counts / members @ scores, rows, axis=1)
    return figures(scores.mean(0), age, male, dementia), figures(drawn, age[rows], male[rows], dementia)


def figures(
    scores: NDArray[Any], age: NDArray[Any], male: NDArray[Any], dementia: NDArray[np.bool_]
) -> dict[str, NDArray[np.float64]]:
    """The measures of one set of people `(n,)`, or of many sets `(sets, n)` with the same diagnoses."""
    old = (age >= OLD).reshape(-1, len(dementia))[0]
    control = ~dementia
    return {
        "auc": _auc(scores, dementia),
        "auc_old": _auc(scores[..., old], dementia[old]),
        "r_age": _r(scores[..., control], age[..., control]),
        "r_age_old": _r(scores[..., control & old], age[..., control & old]),
        "r_sex": _r(scores[..., control], male[..., control]),
    }


def _auc(scores: NDArray[Any], positive: NDArray[np.bool_]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = auc(scores, np.broadcast_to(positive, scores.shape).copy()).numpy()
    return found


def _r(values: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    a, b = (each - each.mean(axis=-1, keepdims=True) for each in (values, other))
    with np.errstate(invalid="ignore", divide="ignore"):
        found: NDArray[np.float64] = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return np.nan_to_num(found)  # a score that does not vary goes with nothing


def _bootstrap_rows(groups: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Bootstrap rows, stratified by group, `(count, n)`; a group's rows stay where the group's are."""
    random = np.random.default_rng(0)
    rows = np.tile(np.arange(len(groups)), (count, 1))
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        rows[:, members] = random.choice(members, (count, len(members)))
    return rows


def _curve(scores: NDArray[Any], age: NDArray[Any], control: NDArray[np.bool_]) -> tuple[dict[str, float], ...]:
    own = scores[control]
    scaled = (scores - own.mean()) / (own.std() or 1.0)
    bands = []
    for low, high in BANDS:
        mine = control & (age >= low) & (age < high)
        if mine.sum() > 1:
            values = scaled[mine]
            band = {"age": age[mine].mean(), "n": len(values), "mean": values.mean(), "sd": values.std(ddof=1)}
            bands.append({name: float(value) for name, value in band.items()})
    return tuple(bands)
