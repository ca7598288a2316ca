"""Planted leaks: would the test have found a leak of a given size in this table?

In each trial the confound is permuted within cells, which removes whatever leak there is. Outputs
are then shifted along the permuted confound, and the test is repeated. The p-value comes from the
table's own permuted statistics, which hardly change because K is normalised: a trial costs one K
and no permutation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deconfound.errors import OptionError, StateError
from deconfound.metrics.arrays import Array, Codes
from deconfound.metrics.leak import LeakTest, adjusted_p_values
from deconfound.metrics.numeric_labels import leading_direction
from deconfound.metrics.permutations import draw_orders
from deconfound.metrics.similarity import (
    OutputSimilarity,
    combine_parts,
    comparable_rows,
    distance_part,
    ridge_inverse,
    ridge_penalty,
)

LEVEL = 0.05


@dataclass(frozen=True)
class Planted:
    """How many planted leaks the test found.

    Attributes:
        group: The label group whose rows were shifted; None if all rows were.
        shift: The shift in standard deviations of the outputs within cells.
        trials: Number of planted leaks.
        found: Number of them with p ≤ .05.
    """

    group: Any
    shift: float
    trials: int
    found: int


def plant_leaks(
    test: LeakTest, *, shift: float = 0.5, trials: int = 100, seed: int = 0
) -> list[Planted]:
    """Count how many leaks of one size the test finds, in all rows and in each label group.

    Levels: the outputs of the second most frequent level are shifted against those of the most
    frequent one. Numbers: outputs are shifted by `shift` for each standard deviation. Outputs of
    several columns are shifted along their leading component within cells.

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
        found = sum(is_found(test, shifted, shifts, order, part) for order in orders)
        planted.append(Planted(name, shift, trials, found))
    return planted


def shift_pattern(test: LeakTest, part: slice) -> Array:
    """Return the shift that belongs to the confound of each row, shape `(n,)`.

    Args:
        test: The test of the confound.
        part: The rows that decide which levels are the most frequent ones.
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
    kernel = shifted.kernel(shifts[order] * in_part)
    planted = test.sums(kernel, test.contrasts[order][:, None])
    statistics = np.concatenate([planted, test.statistics[:, 1:]], axis=1)
    return bool(adjusted_p_values(statistics).min() <= LEVEL)


@dataclass(frozen=True, eq=False)
class ComparableBlock:
    """Rows whose outputs are compared with each other, and the products that a shift updates.

    Attributes:
        rows: Row numbers, shape `(m,)`.
        gram: y_i · y_j, shape `(m, m)`.
        scores: y projected on the direction of the shift, shape `(m,)`.
        penalty: λ of the ridge regression.
        inverse: (I + G/λ)⁻¹, shape `(m, m)`; None for one output, whose linear part is G.
    """

    rows: Codes
    gram: Array
    scores: Array
    penalty: float
    inverse: Array | None

    def parts(self, shifts: Array, root: Array) -> tuple[Array, Array]:
        """Return K_reader and K_distance of outputs y_i + s_i e, where e has length 1.

        A shift s changes the Gram matrix by rank two, s bᵀ + b sᵀ with b = Ye + s/2, and by the
        identity of Woodbury the inverse as well.
        """
        middle = self.scores + shifts / 2
        cross = np.outer(shifts, middle)
        gram = self.gram + cross + cross.T
        if self.inverse is None:
            return gram * np.outer(root, root), distance_part(gram, root)
        factors = np.column_stack([root * shifts, root * middle])
        product = self.inverse @ factors
        # The inverse of the 2 × 2 matrix [[0, 1/λ], [1/λ, 0]] is λ times the exchange of columns.
        core = self.penalty * np.eye(2)[::-1] + factors.T @ product
        inverse = self.inverse - product @ np.linalg.solve(core, product.T)
        return np.eye(len(gram)) - inverse, distance_part(gram, root)


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
        root = np.sqrt(rows.votes)
        direction = leading_direction(outputs * root[:, None])
        scores = outputs @ direction
        columns = outputs.shape[1]
        blocks = []
        for members in comparable_rows(rows, similarity.compare_folds):
            gram = outputs[members] @ outputs[members].T
            penalty = ridge_penalty(gram, root[members], columns)
            inverse = None if columns == 1 else ridge_inverse(gram, root[members], penalty)
            blocks.append(ComparableBlock(members, gram, scores[members], penalty, inverse))
        unit = np.sqrt(np.average(scores**2, weights=rows.votes))
        return cls(similarity, tuple(blocks), float(unit))

    def kernel(self, shifts: Array) -> Array:
        """Return K of the shifted outputs, shape `(n, n)`; `shifts (n,)` are in units of sd."""
        rows, cells = self.similarity.rows, self.similarity.cells
        root = np.sqrt(rows.votes)
        centred = self.unit * cells.centre(shifts, rows.votes)
        reader, distance = np.zeros((2, len(rows), len(rows)))
        for block in self.blocks:
            pairs = np.ix_(block.rows, block.rows)
            parts = block.parts(centred[block.rows], root[block.rows])
            reader[pairs], distance[pairs] = parts
        return combine_parts(reader, distance, rows, cells)
