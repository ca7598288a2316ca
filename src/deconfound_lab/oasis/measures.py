"""What scores are worth: AUC, AUC in older people, and what is left of age within controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.metrics import auc, u_distance_correlation_sqr
from deconfound_lab.harness.estimates import Value, of_draws

OLD = 60
BANDS = ((18, 30), (30, 45), (45, 60), (60, 70), (70, 80), (80, 100))


@dataclass(frozen=True)
class Line:
    """One score.

    Attributes:
        arm: Whose.
        w_score: Whether it is standardised by controls of the same age and sex.
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
    w_score: bool
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
    scores: NDArray[Any],
    table: Mapping[str, Any],
    bootstraps: int,
    w_score: bool = False,
    seconds: float = 0.0,
) -> Line:
    """Measure the scores of people.

    Args:
        arm: Whose scores they are.
        scores: One per person.
        table: `age`, `sex` and `dementia` of each.
        bootstraps: Draws of the bootstrap over people, stratified by diagnosis and side of 60.
        w_score: Whether they are standardised by controls of the same age and sex.
        seconds: Mean time of a training.
    """
    age, dementia = np.asarray(table["age"], dtype=np.float64), np.asarray(table["dementia"]) == 1
    male = (np.asarray(table["sex"]) == "M").astype(np.float64)
    found = figures(scores, age, male, dementia)
    rows = _bootstrap_rows(2 * dementia + (age >= OLD), bootstraps)
    draws = figures(scores[rows], age[rows], male[rows], dementia)
    values = {name: of_draws(float(found[name]), draws[name]) for name in found}
    control = ~dementia
    left = u_distance_correlation_sqr(*(torch.from_numpy(each[control])[:, None] for each in (scores, age)))
    curve = _curve(scores, age, control)
    return Line(arm, w_score, **values, dcor2_age=float(left), curve=curve, seconds=seconds)


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
