"""Removing the smooth effect of numeric labels, and the neighbours between whom rows may move.

Each label group has its own curve, a ridge regression on waves of the labels. The waves are damped
by the square of their frequency, so that the penalty grows with its fourth power, as in a smoothing
spline. Several labels have additive curves.
"""

from __future__ import annotations

import numpy as np
from sklearn.utils.extmath import randomized_svd

from deconfound.metrics.arrays import Array, Codes
from deconfound.metrics.cells import Cells
from deconfound.metrics.leak_rows import LeakRows
from deconfound.metrics.ranks import normal_scores, rank_shares

# Fewer people hardly move; the labels of more differ.
NEIGHBOURS = 8
# In smaller groups no curve is fitted.
FEWEST_FOR_CURVE = 12
MOST_WAVES = 60
PENALTIES = np.logspace(-9, 1, 31)
VALIDATION_FOLDS = 10
# In standard deviations. Further out, waves over the range would follow single rows.
RANGE = 3.0


def subtract_curves(targets: Array, labels: Array, rows: LeakRows) -> tuple[Array, float]:
    """Return what curves in numeric labels leave of the targets, and the size of the curves.

    Args:
        targets: Outputs or an encoded confound, shape `(n, t)`.
        labels: Numeric labels, shape `(n, k)`.
        rows: Label group, fold and person of the rows. Folds have their own intercept.

    Returns:
        The residuals, shape `(n, t)`, and the degrees of freedom n − tr (I − H)² of the curves,
        where H is the hat matrix; averaged over the targets and summed over the groups.
    """
    residuals = np.empty_like(targets)
    size = 0.0
    votes = rows.votes
    for group in np.unique(rows.group):
        members = np.flatnonzero(rows.group == group)
        members = members[np.argsort(rows.fold[members], kind="stable")]
        folds = Cells(np.unique(rows.fold[members], return_inverse=True)[1])
        weight = votes[members, None]
        residuals[members] = folds.centre(targets[members], weight)
        if weight.sum() < FEWEST_FOR_CURVE:
            continue
        basis = folds.centre(make_waves(labels[members], votes[members]), weight)
        fit, curve_size = fit_ridge(basis, residuals[members], votes[members], rows.person[members])
        residuals[members] -= fit
        size += curve_size
    return residuals, size


def make_waves(labels: Array, votes: Array) -> Array:
    """Return each label, its normal score, and cosines of its ranks and of its range."""
    columns = []
    frequency = np.arange(1, min(MOST_WAVES, round(votes.sum()) // 2) + 1)
    for label in labels.T:
        shares = rank_shares(label, votes)
        centred = label - np.average(label, weights=votes)
        spread = np.sqrt(np.average(centred**2, weights=votes))
        standardised = centred / (spread if spread > 0 else 1.0)
        position = (np.clip(standardised, -RANGE, RANGE) / RANGE + 1) / 2
        columns += [standardised[:, None], normal_scores(label[:, None], votes)]
        for position_on_scale in (shares, position):
            columns.append(
                np.sqrt(2) * np.cos(np.pi * np.outer(position_on_scale, frequency)) / frequency**2
            )
    return np.concatenate(columns, axis=1)


def fit_ridge(basis: Array, targets: Array, votes: Array, person: Codes) -> tuple[Array, float]:
    """Fit a ridge regression with a penalty for each target, chosen by leaving out people.

    Args:
        basis: Centred waves, shape `(n, k)`.
        targets: Centred targets, shape `(n, t)`.
        votes: u, the weight of each row, shape `(n,)`.
        person: Codes of the person of each row. The rows of a person are left out together.

    Returns:
        The fit, shape `(n, t)`, and its degrees of freedom, averaged over the targets.
    """
    penalties = votes.sum() * PENALTIES
    weighted = basis * votes[:, None]
    gram, cross = weighted.T @ basis, weighted.T @ targets
    errors = np.zeros((len(penalties), targets.shape[1]))
    validation = np.unique(person, return_inverse=True)[1] % VALIDATION_FOLDS
    for part in range(VALIDATION_FOLDS):
        out = validation == part
        gram_out, cross_out = weighted[out].T @ basis[out], weighted[out].T @ targets[out]
        values, vectors = np.linalg.eigh(gram - gram_out)
        rotated = vectors.T @ (cross - cross_out)
        for i, penalty in enumerate(penalties):
            slopes = vectors @ (rotated / (np.maximum(values, 0) + penalty)[:, None])
            # The squared error of the rows left out, apart from Σ u y², which no penalty changes.
            errors[i] += (slopes * (gram_out @ slopes - 2 * cross_out)).sum(axis=0)
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, 0)[:, None]
    best = penalties[errors.argmin(axis=0)]
    slopes = vectors @ ((vectors.T @ cross) / (values + best))
    shrinkage = values / (values + best)
    return basis @ slopes, float((2 * shrinkage - shrinkage**2).sum(axis=0).mean())


def mean_within_people(labels: Array, rows: LeakRows) -> Array:
    """Return each label averaged over the rows that a person has in a label group."""
    part = np.unique(np.column_stack([rows.group, rows.person]), axis=0, return_inverse=True)[1]
    counts = np.bincount(part)
    means = [np.bincount(part, label) / counts for label in labels.T]
    return np.stack(means, axis=1)[part]


def neighbourhoods(position: Array, rows: LeakRows) -> Codes:
    """Return codes of `NEIGHBOURS` people next to each other, within label group and fold.

    Args:
        position: Where each row lies, shape `(n,)`. A person lies at the mean of its rows.
        rows: Label group, fold and person of the rows.
    """
    position_of_row = mean_within_people(position[:, None], rows)[:, 0]
    cell = np.empty(len(rows), dtype=np.intp)
    first_code = 0
    for members in blocks_of(rows):
        people, person = np.unique(rows.person[members], return_inverse=True)
        position_of_person = np.empty(len(people))
        position_of_person[person] = position_of_row[members]
        rank = np.argsort(np.argsort(position_of_person, kind="stable"), kind="stable")
        count = max(1, len(people) // NEIGHBOURS)
        cell[members] = first_code + (rank * count // len(people))[person]
        first_code += count
    return cell


def blocks_of(rows: LeakRows) -> list[Codes]:
    """Return the row numbers of each label group within each fold, group by group."""
    block = np.unique(rows.group * (rows.fold.max() + 1) + rows.fold, return_inverse=True)[1]
    return [np.flatnonzero(block == code) for code in range(block.max() + 1)]


def label_position(labels: Array, explained: Array) -> Array:
    """Return one number by which rows are ranked, shape `(n,)`.

    One label ranks the rows itself. Several are ranked by what they explain of the outputs, along
    its leading component.

    Args:
        labels: Numeric labels, shape `(n, k)`.
        explained: The curves of the outputs, shape `(n, d)`.
    """
    if labels.shape[1] == 1:
        return labels[:, 0]
    return explained @ leading_direction(explained)


def leading_direction(values: Array) -> Array:
    """Return the first right singular vector of `values (n, d)`, shape `(d,)`."""
    if values.shape[1] == 1:
        return np.ones(1)
    direction: Array = randomized_svd(values, n_components=1, random_state=0)[2][0]
    return direction
