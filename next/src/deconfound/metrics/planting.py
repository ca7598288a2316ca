"""Planted leaks: would the test have found a leak of a given size in this table?

In each trial the confound is permuted within cells, which removes whatever leak there is. Outputs
are then shifted along the permuted confound, and the test is repeated. The p-value comes from the
table's own permuted statistics, which hardly change because K is normalised: a trial costs one K
and no permutation. K is not centred; its norm and T are corrected for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deconfound.errors import OptionError, StateError
from deconfound.metrics.arrays import Array, Codes
from deconfound.metrics.cells import Cells
from deconfound.metrics.leak import LeakTest, adjusted_p_values, group_slices, quadratic_sums
from deconfound.metrics.leak_rows import LeakRows
from deconfound.metrics.numeric_labels import leading_direction
from deconfound.metrics.permutations import draw_orders
from deconfound.metrics.similarity import (
    OutputSimilarity,
    comparable_rows,
    linear_part,
    pairs_within_people,
    ridge_penalty,
    squared_distances,
)

LEVEL = 0.05
# So many rows of K fit into the processor's cache.
ROWS_AT_A_TIME = 128
# A squared norm below this share of the norm before centring is rounding.
SMALLEST_NORM = 1e-12


@dataclass(frozen=True)
class PlantedLeaks:
    """How many planted leaks the test found.

    Attributes:
        group: The label group whose rows were shifted; None if all rows were.
        shift: The shift in standard deviations of the outputs within cells.
        trials: Number of planted leaks.
        detections: Number of them with p ≤ .05.
    """

    group: Any
    shift: float
    trials: int
    detections: int


def plant_leaks(
    test: LeakTest, *, shift: float = 0.5, trials: int = 100, seed: int = 0
) -> list[PlantedLeaks]:
    """Count how many leaks of one size the test finds, in all rows and in each label group.

    Levels: the outputs of the second most frequent level are shifted against those of all other
    levels. Numbers: outputs are shifted by `shift` for each standard deviation. Outputs of several
    columns are shifted along their leading component within cells.

    Args:
        test: The test of the confound.
        shift: The shift in standard deviations within cells. With 0, p ≤ .05 in 5 % of trials.
        trials: Number of planted leaks in all rows, and in each label group that takes part.
        seed: Seed of the random numbers.
    """
    if not np.isfinite(shift) or shift < 0:
        raise OptionError(f"`shift` cannot be {shift!r}. Pass a number of at least 0, such as 0.5.")
    if trials < 1:
        raise OptionError(f"`trials` cannot be {trials!r}. Pass a whole number of at least 1.")
    if not test.has_answer:
        raise StateError("The test of this confound has no answer, so no leak can be planted.")
    rows, cells = test.similarity.rows, test.similarity.cells
    shifted = ShiftedOutputs.from_similarity(test.similarity)
    names = [None, *(rows.group_names[group] for group in test.groups)]
    random = np.random.default_rng(seed)
    planted = []
    for name, part in zip(names, test.parts, strict=True):
        shifts = shift * shift_pattern(test, part)
        orders = draw_orders(rows.person, cells.codes, test.confound.codes, trials, random)
        detections = sum(is_found(test, shifted, shifts, order, part) for order in orders)
        planted.append(PlantedLeaks(name, shift, trials, detections))
    return planted


def shift_pattern(test: LeakTest, part: slice) -> Array:
    """Return the shift that belongs to the confound of each row, shape `(n,)`.

    Args:
        test: The test of the confound.
        part: The rows in which levels are counted to find the second most frequent one.
    """
    values, votes = test.confound.values, test.similarity.rows.votes
    if test.confound.categorical:
        levels, codes = np.unique(values, return_inverse=True)
        people = np.bincount(codes[part], votes[part], minlength=len(levels))
        second_largest = np.argsort(-people, kind="stable")[1]
        return np.asarray(codes == second_largest, dtype=np.float64)
    mean = np.average(values, weights=votes)
    variance = np.average((values - mean) ** 2, weights=votes)
    return np.asarray((values - mean) / np.sqrt(variance))


def is_found(
    test: LeakTest, shifted: ShiftedOutputs, shifts: Array, order: Codes, part: slice
) -> bool:
    """Return whether one planted leak is found.

    Args:
        test: The test, with its permuted statistics.
        shifted: The outputs, to which shifts can be added.
        shifts: The shift that belongs to the confound of each row, shape `(n,)`.
        order: The row whose confound each row takes, shape `(n,)`.
        part: The rows whose outputs are shifted.
    """
    in_part = np.zeros(len(order))
    in_part[part] = 1.0
    planted = shifted.sums(shifts[order] * in_part, test.contrasts[order])
    taking_part = [0, *(group + 1 for group in test.groups)]
    statistics = np.column_stack([planted[taking_part], test.statistics[:, 1:]])
    return bool(adjusted_p_values(statistics).min() <= LEVEL)


@dataclass(frozen=True, eq=False)
class ComparableBlock:
    """Rows whose outputs are compared with each other, and what all their shifts share.

    Attributes:
        rows: Row numbers, shape `(m,)`.
        known: Label group and person of the rows.
        cells: The cells of the rows.
        root: √u, shape `(m,)`. People vote with all their rows, also with those in other blocks.
        within: i and j of all pairs of rows of one person.
        scores: y projected on the direction of the shift, shape `(m,)`.
        squares: ‖y_i − y_j‖², shape `(m, m)`.
        penalty: λ of the ridge regression.
        linear: K_linear, shape `(m, m)`; None for one output.
        work: Room for K of the shifted outputs, shape `(m, m)`.
    """

    rows: Codes
    known: LeakRows
    cells: Cells
    root: Array
    within: tuple[Codes, Codes]
    scores: Array
    squares: Array
    penalty: float
    linear: Array | None
    work: Array

    @classmethod
    def from_rows(cls, similarity: OutputSimilarity, rows: Codes, scores: Array) -> ComparableBlock:
        """Prepare the products of some rows, given `scores (n,)` of all."""
        known, outputs = similarity.rows.take(rows), similarity.outputs[rows]
        root = np.sqrt(similarity.rows.votes[rows])
        gram, columns = outputs @ outputs.T, outputs.shape[1]
        return cls(
            rows=rows,
            known=known,
            cells=Cells(np.unique(similarity.cells.codes[rows], return_inverse=True)[1]),
            root=root,
            within=pairs_within_people(known.person),
            scores=scores[rows],
            squares=squared_distances(gram),
            penalty=ridge_penalty(gram, root, columns),
            linear=None if columns == 1 else linear_part(gram, root, columns),
            work=np.empty_like(gram),
        )

    def sums(self, shifts: Array, contrasts: Array) -> Array:
        """Return ‖K‖² and T of both parts of K, shape `(2, 2 + groups)`.

        Args:
            shifts: s, shape `(m,)`: outputs become y_i + s_i e, where e has length 1.
            contrasts: a, shape `(m, q)`.
        """
        self._write_linear(shifts)
        linear = self._sums_of_work(contrasts)
        self._write_distance(shifts)
        return np.stack([linear, self._sums_of_work(contrasts)])

    def _write_linear(self, shifts: Array) -> None:
        """Write K_linear of the shifted outputs to `work`.

        A shift adds FXFᵀ to the Gram matrix, where F = √u (s, t + s/2), t = Ye, and X exchanges two
        columns. By the identity of Woodbury K_linear grows by L (λX + FᵀL)⁻¹ Lᵀ with
        L = F − K_linear F.
        """
        if self.linear is None:
            shifted = self.root * (self.scores + shifts)
            np.outer(shifted, shifted, out=self.work)
            return
        factors = self.root[:, None] * np.column_stack([shifts, self.scores + shifts / 2])
        left = factors - self.linear @ factors
        core = self.penalty * np.eye(2)[::-1] + factors.T @ left
        right = np.linalg.solve(core, left.T)
        for part in self._chunks():
            self.work[part] = self.linear[part] + left[part] @ right

    def _write_distance(self, shifts: Array) -> None:
        """Write K_distance of the shifted outputs to `work`, not yet centred.

        ‖y_i + s_i e − y_j − s_j e‖² = ‖y_i − y_j‖² + (s_i − s_j) (g_i − g_j) with g = 2t + s.
        """
        doubled = 2 * self.scores + shifts
        for part in self._chunks():
            distance = np.subtract.outer(shifts[part], shifts)
            distance *= np.subtract.outer(doubled[part], doubled)
            distance += self.squares[part]
            np.sqrt(np.maximum(distance, 0, out=distance), out=distance)
            np.multiply(distance, -np.outer(self.root[part], self.root), out=self.work[part])

    def _chunks(self) -> list[slice]:
        starts = range(0, len(self.rows), ROWS_AT_A_TIME)
        return [slice(start, start + ROWS_AT_A_TIME) for start in starts]

    def _sums_of_work(self, contrasts: Array) -> Array:
        """Return ‖PKP‖² and T of PKP for K in `work`, both without pairs of rows of one person.

        P = I − QQᵀ centres by cell, where Q holds one column for each cell, √u divided by its
        length. PKP itself is needed for the pairs within people only:

            ‖PKP‖² = ‖K‖² − 2 ‖QᵀK‖² + ‖QᵀKQ‖²        aᵀPKPa = (Pa)ᵀ K (Pa)
        """
        kernel, code, root = self.work, self.cells.codes, self.root[:, None]
        unit = self.root / np.sqrt(self.cells.sums(self.root**2))[code]
        by_cell = self.cells.weighted_sums(kernel, unit)
        by_cells = self.cells.weighted_sums(by_cell.T, unit)
        i, j = self.within
        centred = kernel[i, j] - unit[i] * by_cell[code[i], j] - unit[j] * by_cell[code[j], i]
        centred += unit[i] * unit[j] * by_cells[code[i], code[j]]
        squares = [np.vdot(one, one) for one in (kernel, by_cell, by_cells, centred)]
        norm = np.dot([1, -2, 1, -1], squares)
        moved = root * self.cells.centre(contrasts, root**2)
        sums = quadratic_sums(kernel, moved, group_slices(self.known)).sum(axis=1)
        weighted, group = root * contrasts, self.known.group
        products = centred * np.einsum("pq,pq->p", weighted[i], weighted[j])
        same = group[i] == group[j]
        sums[0] -= products.sum()
        sums[1:] -= np.bincount(group[i[same]], products[same], minlength=len(sums) - 1)
        # A part of K that is constant within cells counts for nothing.
        return np.asarray(np.array([norm, *sums]) * (norm > SMALLEST_NORM * squares[0]))


@dataclass(frozen=True, eq=False)
class ShiftedOutputs:
    """Outputs to which shifts along their leading component are added.

    λ and the standard deviations stay those of the table.

    Attributes:
        similarity: K of the outputs without a shift.
        blocks: The rows that are compared with each other.
        unit: The standard deviation of the outputs along the leading component.
    """

    similarity: OutputSimilarity
    blocks: tuple[ComparableBlock, ...]
    unit: float

    @classmethod
    def from_similarity(cls, similarity: OutputSimilarity) -> ShiftedOutputs:
        """Prepare the products of the outputs that all trials share."""
        outputs, rows = similarity.outputs, similarity.rows
        scores = outputs @ leading_direction(outputs * np.sqrt(rows.votes)[:, None])
        sets = comparable_rows(rows, similarity.compare_folds)
        blocks = tuple(ComparableBlock.from_rows(similarity, one, scores) for one in sets)
        unit = np.sqrt(np.average(scores**2, weights=rows.votes))
        return cls(similarity, blocks, float(unit))

    def sums(self, shifts: Array, contrasts: Array) -> Array:
        """Return T over all pairs and over each label group, shape `(1 + groups,)`.

        Args:
            shifts: Shifts of the outputs in units of their sd, shape `(n,)`.
            contrasts: a, shape `(n, q)`.
        """
        rows, cells = self.similarity.rows, self.similarity.cells
        centred = self.unit * cells.centre(shifts, rows.votes)
        sums = [one.sums(centred[one.rows], contrasts[one.rows]) for one in self.blocks]
        totals = np.sum(sums, axis=0)
        norms = np.sqrt(totals[:, :1])
        return np.asarray((totals[:, 1:] / np.where(norms > 0, norms, 1.0)).sum(axis=0))
