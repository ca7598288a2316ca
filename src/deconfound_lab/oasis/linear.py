"""A linear model in the place of the network: ridge regression on all voxels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound_lab.mri.fold import Volumes
from deconfound_lab.oasis.member import Outcome, divide
from deconfound_lab.oasis.plan import Plan

# Ridge penalties as shares of the largest eigenvalue: from next to nothing to nearly a constant.
PENALTIES = np.logspace(-5, 1, 25)


def linear_members(plan: Plan, volumes: Volumes) -> dict[tuple[int, str, int], Outcome]:
    """A ridge regression for every member and fold, as if it were an arm called "linear"."""
    images = volumes.images.float().flatten(1).cpu().numpy().astype(np.float64)
    products = images @ images.T  # all that a ridge regression needs to know of so many voxels
    target = volumes.target[:, 0].cpu().numpy().astype(np.float64)
    found = {}
    for member in range(plan.members):
        for number in range(plan.folds):
            fold = divide(plan, volumes.table, number, member)
            scores = ridge_scores(products, target, fold.train).astype(np.float32)
            held, test = scores[fold.validation], scores[fold.test]
            nothing = np.empty((len(test), 0), np.float32)
            found[member, "linear", number] = Outcome(fold.validation, held, fold.test, test, test, nothing, [], 0.0)
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
