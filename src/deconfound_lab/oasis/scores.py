"""Scores of people from the networks of an arm, as trained, refitted and as W-scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.methods import WScores
from deconfound_lab.footing import Judged
from deconfound_lab.mri.training import Volumes
from deconfound_lab.oasis.plan import Plan
from deconfound_lab.oasis.training import divide

Member = Mapping[str, Any]
"""What `train_member` gives."""

Members = Mapping[tuple[int, str, int], Member]
"""By member, arm and fold."""

Columns = Mapping[str, NDArray[Any]]
# Ridge penalties as shares of the largest eigenvalue: from next to nothing to nearly a constant.
PENALTIES = np.logspace(-5, 1, 25)


@dataclass(frozen=True)
class Scores:
    """What an arm says of each person, who was in no training of the networks that say it.

    Attributes:
        judged: `(members, people)` each: as trained; refitted, where the method keeps coefficients; and as trained but
            standardised by the location and scale of controls of the same age and sex (W-score): those of the training
            folds, each scored by the member that left this person out.
        features: The members' last hidden features side by side.
        seconds: Mean time of a training.
    """

    judged: Mapping[Judged, NDArray[np.float64]]
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


def people_of(table: Columns, fold: NDArray[np.intp]) -> People:
    """The people of the scans; `fold` is the test fold of each scan."""
    _, first, of_scan = np.unique(table["person"], return_index=True, return_inverse=True)
    rows = {name: np.asarray(table[name])[first] for name in ("sex", "dementia")}
    people = People({**rows, "fold": fold[first]}, of_scan)
    people.table["age"] = people.mean(np.asarray(table["age"], dtype=np.float64))
    return people


def fold_of_scans(plan: Plan, table: Columns) -> NDArray[np.intp]:
    """The test fold of each scan."""
    fold = np.full(len(table["age"]), -1, dtype=np.intp)
    for number in range(plan.folds):
        fold[divide(plan, table, number, 0).test] = number
    return fold


def score(members: Members, plan: Plan, arm: str, table: Columns, people: People) -> Scores:
    """The scores of every member, each on the scale of the scans that it left out."""
    scans, width = len(people.of_scan), members[0, arm, 0]["features"].shape[1]
    kinds: tuple[Judged, ...] = ("as trained", "refitted", "W-score")
    judged = {kind: np.zeros((scans, plan.members)) for kind in kinds}
    features = np.zeros((scans, plan.members * width))
    for fold in range(plan.folds):
        mine = [members[member, arm, fold] for member in range(plan.members)]
        test = mine[0]["test_rows"]
        judged["as trained"][test] = np.stack([_scaled(each, "unrefitted") for each in mine], axis=1)
        judged["refitted"][test] = np.stack([_scaled(each, "test") for each in mine], axis=1)
        held_out_rows = np.concatenate([each["held_out_rows"] for each in mine])
        held_out = np.concatenate([_scaled(each, "held_out") for each in mine])
        controls = np.asarray(table["dementia"])[held_out_rows] == 0
        norm = WScores.fit(held_out, _confounds(plan, table, held_out_rows), plan.question.confounds, controls)
        at = _confounds(plan, table, test)
        judged["W-score"][test] = np.stack([norm(own, at) for own in judged["as trained"][test].T], axis=1)
        features[test] = np.concatenate([each["features"] for each in mine], axis=1)
    each_second = [members[m, arm, f]["seconds"] for m in range(plan.members) for f in range(plan.folds)]
    seconds = float(np.mean(each_second))
    if np.array_equal(judged["as trained"], judged["refitted"]):
        del judged["refitted"]
    by_person = {kind: people.mean(values).T for kind, values in judged.items()}
    return Scores(by_person, people.mean(features), seconds)


def _confounds(plan: Plan, table: Columns, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(table[name])[rows] for name in plan.question.columns}


def _scaled(member: Member, which: str) -> NDArray[np.float64]:
    """Logits with mean and sd of the held-out scans taken out: members' logits are of different size."""
    spread = float(member["held_out"].std())
    logits = member[which].astype(np.float64)
    scaled: NDArray[np.float64] = (logits - member["held_out"].mean()) / (spread if spread > 0 else 1.0)
    return scaled


def linear_members(plan: Plan, volumes: Volumes) -> dict[tuple[int, str, int], Member]:
    """A linear model in the place of the network: ridge regression on all voxels, as an arm called "linear"."""
    images = volumes.images.float().flatten(1).cpu().numpy().astype(np.float64)
    products = images @ images.T  # all that a ridge regression needs to know of so many voxels
    target = volumes.target[:, 0].cpu().numpy().astype(np.float64)
    found: dict[tuple[int, str, int], Member] = {}
    for member in range(plan.members):
        for number in range(plan.folds):
            fold = divide(plan, volumes.table, number, member)
            scores = ridge_scores(products, target, fold.train).astype(np.float32)
            test = scores[fold.test]
            found[member, "linear", number] = {
                "held_out_rows": fold.validation, "held_out": scores[fold.validation], "test_rows": fold.test,
                "test": test, "unrefitted": test, "features": np.empty((len(test), 0), np.float32), "seconds": 0.0,
            }  # fmt: skip
    return found


def ridge_scores(products: NDArray[Any], target: NDArray[Any], train: NDArray[Any]) -> NDArray[np.float64]:
    """Scores of all rows by ridge regression on some; its penalty has the least leave-one-out error on these.

    Args:
        products: `X Xᵀ` of all rows.
        target: One value per row.
        train: The rows that are learned from.
    """
    own = products[np.ix_(train, train)]
    means = own.mean(axis=0)
    centred = own - means - means[:, None] + means.mean()
    values, vectors = np.linalg.eigh(centred)
    values = np.maximum(values, 0)
    outcome = target[train] - target[train].mean()
    along = vectors.T @ outcome
    best: tuple[float, NDArray[Any]] = (np.inf, outcome)
    for penalty in PENALTIES * values[-1]:
        weights = vectors @ (along / (values + penalty))
        # A residual is penalty · weight, and 1 − leverage what divides it, with the mean's own leverage of 1 / n.
        rest = penalty * (vectors**2 / (values + penalty)).sum(axis=1) - 1 / len(train)
        error = float(np.mean((penalty * weights / rest) ** 2))
        if error < best[0]:
            best = (error, weights)
    rows = products[:, train]
    rows = rows - rows.mean(axis=1, keepdims=True) - means + means.mean()
    found: NDArray[np.float64] = rows @ best[1]
    return found
