"""Test rows among which labels and confounds are independent, drawn from a table where they are tied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.errors import TableError
from deconfound.training.splits import RowNumbers, TestRows, stratum_codes

DRAWS, EXCHANGES = 100, 400


def isolated_test_rows(
    labels: NDArray[np.float64],
    confounds: NDArray[np.float64],
    people: NDArray[Any],
    rows: RowNumbers,
    *,
    numeric: bool,
    folds: int,
    seed: int,
) -> tuple[TestRows, list[str]]:
    """Test rows that show no tie between labels and confounds (confound-isolating sampling, Chyzhyk 2022), and notes.

    Each test set is drawn from the people that no other test set has, with the table's share of each label. Of many
    random sets of people the one with the weakest tie is kept, and people of the same label are then exchanged as long
    as that weakens it further. Rows that are drawn for the test are missing among the training rows, where the tie
    rises: each fold's note says by how much. A test set holds a `2 * folds`-th of the people, each as a whole.
    """
    random = np.random.default_rng(seed)
    units, member = np.unique(people[rows], return_inverse=True)
    size = len(units) // (2 * folds)
    targets = labels[rows] if numeric else _indicators(labels[rows])
    if size < 2 * (targets.shape[1] + 1):
        raise TableError(
            f"splits.kind isolated must have people enough for {folds} test sets of their own; got {len(units)}. Use "
            "fewer folds."
        )
    first = np.unique(member, return_index=True)[1]
    group = stratum_codes([labels[rows][first, k] for k in range(labels.shape[1])])
    share = np.maximum(1, np.bincount(group) * size // len(units))
    sums = _Sums(targets, confounds[rows], member, len(units))
    free = np.ones(len(units), dtype=bool)
    tests, ties = [], []
    for number in range(folds):
        chosen = _draw(
            sums, [np.flatnonzero(free & (group == level)) for level in range(group.max() + 1)], share, random
        )
        free[chosen] = False
        inside = np.isin(member, chosen)
        tests.append((str(number), rows[inside]))
        ties.append((sums.tie(chosen), sums.tie(np.setdiff1d(np.arange(len(units)), chosen))))
    everyone = sums.tie(np.arange(len(units)))
    notes = [
        f"the confounds explain {tie:.1%} of the labels among {len(tested)} test rows, {everyone:.1%} in the table and "
        f"{rest:.1%} among the other rows"
        for (_, tested), (tie, rest) in zip(tests, ties, strict=True)
    ]
    return tests, notes


class _Sums:
    """Sums over each person's rows, from which the tie of any set of people follows without going over its rows."""

    def __init__(self, targets: NDArray[Any], confounds: NDArray[Any], member: NDArray[np.intp], units: int) -> None:
        joined = np.column_stack([np.ones(len(targets)), confounds, targets])
        products = joined[:, :, None] * joined[:, None, :]
        self.products = np.zeros((units, *products.shape[1:]))
        np.add.at(self.products, member, products)
        self.width = 1 + confounds.shape[1]

    def tie(self, units: NDArray[Any]) -> float:
        """The mean R² of the targets on the confounds among these people; classes that are absent count as tied."""
        return self.of_sums(self.products[units].sum(0))

    def of_sums(self, total: NDArray[np.float64]) -> float:
        """The same from the people's summed products."""
        k = self.width
        mean = total[0, k:] / total[0, 0]
        spread = np.diag(total)[k:] - total[0, 0] * mean**2
        inverse = np.linalg.pinv(total[:k, :k], rcond=1e-9, hermitian=True)
        cross = total[:k, k:]
        explained = np.einsum("ij,ik,kj->j", cross, inverse, cross) - total[0, 0] * mean**2
        return float(np.where(spread > 1e-9, explained / np.maximum(spread, 1e-9), 1.0).mean())


def _draw(
    sums: _Sums, free: Sequence[NDArray[np.intp]], share: NDArray[np.intp], random: np.random.Generator
) -> NDArray[np.intp]:
    """People of each label group: the best of many draws, then better by exchanges within the groups."""

    def inside(order: Sequence[NDArray[np.intp]]) -> NDArray[np.intp]:
        return np.concatenate([people[:count] for people, count in zip(order, share, strict=True)])

    draws = ([random.permutation(people) for people in free] for _ in range(DRAWS))
    order = min(draws, key=lambda drawn: sums.tie(inside(drawn)))
    total = sums.products[inside(order)].sum(0)
    best = sums.of_sums(total)
    for _ in range(EXCHANGES):
        for people, count in zip(order, share, strict=True):
            if len(people) > count:
                a, b = random.integers(count), random.integers(count, len(people))
                exchanged = total - sums.products[people[a]] + sums.products[people[b]]
                if (tie := sums.of_sums(exchanged)) < best:
                    best, total = tie, exchanged
                    people[a], people[b] = people[b], people[a]
    return np.sort(inside(order))


def _indicators(codes: NDArray[np.float64]) -> NDArray[np.float64]:
    """A column for each class of each label but its first."""
    columns = [codes[:, k] == level for k in range(codes.shape[1]) for level in np.unique(codes[:, k])[1:]]
    return np.column_stack(columns).astype(np.float64)
