"""One score per person from the networks of an arm: members averaged, and set beside people of the same age or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.design import Design
from deconfound_lab.oasis.member import Outcome
from deconfound_lab.oasis.plan import Plan

Cells = Mapping[tuple[int, str, int], Outcome]
Table = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Scores:
    """What an arm says of each person, who was in no training of the networks that say it.

    Attributes:
        trained: The mean score of the members as the method leaves them.
        afterwards: The mean score as a z-score among controls of the same age and sex; what is usual at an age is
            learned from the training controls, each scored by the member that left this person out.
        features: The members' last hidden features side by side.
        seconds: Mean time of a training.
    """

    trained: NDArray[np.float64]
    afterwards: NDArray[np.float64]
    features: NDArray[np.float64]
    seconds: float


@dataclass(frozen=True)
class People:
    """One row per person instead of one per scan.

    Attributes:
        table: `age`, `sex`, `dementia` and `fold`; age is the mean over scans.
        of_scan: The row of each scan's person.
    """

    table: dict[str, NDArray[Any]]
    of_scan: NDArray[np.intp]

    def mean(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The mean over each person's scans, of `(scans,)` or `(scans, d)`."""
        count = np.bincount(self.of_scan)
        total = np.zeros((len(count), *values.shape[1:]))
        np.add.at(total, self.of_scan, values)
        averaged: NDArray[np.float64] = total / count.reshape(-1, *[1] * (values.ndim - 1))
        return averaged


def people_of(table: Table, fold: NDArray[np.intp]) -> People:
    """The people of the scans; `fold` is the test fold of each scan."""
    _, first, of_scan = np.unique(table["person"], return_index=True, return_inverse=True)
    rows = {name: np.asarray(table[name])[first] for name in ("sex", "dementia")}
    people = People({**rows, "fold": fold[first]}, of_scan)
    people.table["age"] = people.mean(np.asarray(table["age"], dtype=np.float64))
    return people


def fold_of_scans(cells: Cells, plan: Plan, arm: str, scans: int) -> NDArray[np.intp]:
    """The test fold of each scan."""
    fold = np.full(scans, -1, dtype=np.intp)
    for number in range(plan.folds):
        fold[cells[0, arm, number].test_rows] = number
    return fold


def score(cells: Cells, plan: Plan, arm: str, table: Table, people: People) -> Scores:
    """Average the members of each fold, each on the scale of the scans that it left out."""
    scans, width = len(people.of_scan), cells[0, arm, 0].features.shape[1]
    trained, afterwards = np.zeros(scans), np.zeros(scans)
    features = np.zeros((scans, plan.members * width))
    for fold in range(plan.folds):
        mine = [cells[member, arm, fold] for member in range(plan.members)]
        test = mine[0].test_rows
        trained[test] = np.mean([_scaled(each, each.test) for each in mine], axis=0)
        raw = np.mean([_scaled(each, each.raw) for each in mine], axis=0)
        held_rows = np.concatenate([each.held_rows for each in mine])
        held = np.concatenate([_scaled(each, each.held) for each in mine])
        usual = norm(plan, table, held_rows, held, test)
        afterwards[test] = (raw - usual.mean) / usual.spread
        features[test] = np.concatenate([each.features for each in mine], axis=1)
    seconds = float(np.mean([cells[m, arm, f].seconds for m in range(plan.members) for f in range(plan.folds)]))
    return Scores(people.mean(trained), people.mean(afterwards), people.mean(features), seconds)


@dataclass(frozen=True)
class Norm:
    """What is usual for controls of each row's age and sex.

    Attributes:
        mean: Of the score.
        spread: Its standard deviation; scores of older people differ more.
    """

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]


def norm(plan: Plan, table: Table, rows: NDArray[Any], values: NDArray[Any], at: NDArray[Any]) -> Norm:
    """The mean of a score by age and sex, and its spread by age: least squares on the controls among `rows`.

    Args:
        plan: Says how age enters.
        table: One row per scan.
        rows: Scans whose scores are known.
        values: Their scores.
        at: Scans that the norm is wanted for.
    """
    controls = np.asarray(table["dementia"])[rows] == 0
    rows, values = rows[controls], values[controls]
    columns = {name: np.asarray(table[name]) for name in plan.task.confound_columns}
    design = Design(confounds=list(plan.task.confounds)).fit({name: known[rows] for name, known in columns.items()})
    known, wanted = (
        np.column_stack(
            [np.ones(len(each)), design.encode({name: c[each] for name, c in columns.items()}, dtype=np.float64)]
        )
        for each in (rows, at)
    )
    beta = np.linalg.lstsq(known, values, rcond=None)[0]
    away = np.abs(values - known @ beta)
    slope, start = np.polyfit(columns["age"][rows], away, 1)
    # The line may not fall to nothing, and the mean of |z| is √(2 / π).
    spread = np.maximum(start + slope * columns["age"][at], away.mean() / 2) * np.sqrt(np.pi / 2)
    return Norm(wanted @ beta, np.where(spread > 1e-9, spread, 1.0))


def _scaled(outcome: Outcome, logits: NDArray[Any]) -> NDArray[np.float64]:
    """Logits with the mean and spread of the held-out scans taken out: members' logits are of different size."""
    spread = float(outcome.held.std())
    scaled: NDArray[np.float64] = (logits.astype(np.float64) - outcome.held.mean()) / (spread if spread > 0 else 1.0)
    return scaled
