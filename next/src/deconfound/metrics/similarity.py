"""How similar the outputs of two rows are, compared with other rows of their cells.

The similarity K is made once for the outputs of a model and serves all confounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import lapack
from scipy.sparse import csr_array

from deconfound.metrics.arrays import Array, Codes, as_matrix, check_lengths
from deconfound.metrics.cells import Cells
from deconfound.metrics.leak_rows import LeakRows
from deconfound.metrics.numeric_labels import label_position, neighbourhoods, subtract_curves
from deconfound.metrics.ranks import normal_scores

# K needs n² numbers: 72 MB for this many rows.
MOST_ROWS = 3000
# The standard deviation of a smaller cell is that of all cells together.
FEWEST_FOR_SD = 20
# λ of the ridge regression, as a share of the mean eigenvalue of YᵀY.
RIDGE = 0.1
# A variance within cells below this share of the whole is rounding: nothing is left to compare.
SMALLEST_VARIANCE = 1e-8


@dataclass(frozen=True, eq=False)
class OutputSimilarity:
    """Similarity K of the outputs of all pairs of rows.

    K is the sum of a linear and a nonlinear part, each divided by its norm:

        K_linear = Y (YᵀY + λI)⁻¹ Yᵀ      K_distance = −‖y_i − y_j‖ √u_i √u_j

    where the rows of Y are √u_i y_i, and y are the outputs, centred in each cell and divided by
    the cell's standard deviation (the pooled one in cells of fewer than 20 people). For one output
    K_linear is YYᵀ. Both parts are centred by cell, and 0 for two rows of one person.

    Attributes:
        kernel: K, shape `(n, n)`, with rows in the order of their cells.
        outputs: y, shape `(n, d)`.
        rows: Label group, fold, person and weight of the n rows.
        cells: Label group within fold, and with numeric labels neighbours within these.
        used: The number of each row in the caller's arrays, shape `(n,)`.
        total_rows: Number of rows in the caller's arrays.
        curve_size: Degrees of freedom of the curves in numeric labels.
        compare_folds: Whether K is computed between rows of different folds.
    """

    kernel: Array
    outputs: Array
    rows: LeakRows
    cells: Cells
    used: Codes
    total_rows: int
    curve_size: float
    compare_folds: bool

    @classmethod
    def from_outputs(
        cls,
        outputs: ArrayLike,
        rows: LeakRows,
        *,
        compare_folds: bool | None = None,
        seed: int = 0,
    ) -> OutputSimilarity:
        """Compute K. Above 3,000 rows, rows are drawn within people, then people.

        Args:
            outputs: Scores or features, shape `(n,)` or `(n, d)`.
            rows: What is known about the n rows.
            compare_folds: Whether outputs of different folds have the same meaning. By default
                they do if there is one column, a score; features come from different networks.
            seed: Seed of the random numbers that draw the rows.
        """
        values = as_matrix(outputs, "outputs")
        total_rows = check_lengths(outputs=values, rows=rows.group)
        used = rows.sample(MOST_ROWS, seed)
        rows, values = rows.take(used), values[used]
        curve_size = 0.0
        if rows.numeric_labels.shape[1]:
            values = normal_scores(values, rows.votes)
        total = weighted_variance(values, rows.votes)
        cell = rows.group * (rows.fold.max() + 1) + rows.fold
        if rows.numeric_labels.shape[1]:
            residuals, curve_size = subtract_curves(values, rows.numeric_labels, rows)
            position = label_position(rows.numeric_labels, values - residuals)
            cell, values = neighbourhoods(position, rows), residuals
        order = np.argsort(cell, kind="stable")
        rows, used = rows.take(order), used[order]
        cells = Cells(np.unique(cell[order], return_inverse=True)[1])
        standardised = standardise(values[order], total, cells, rows.votes)
        if compare_folds is None:
            compare_folds = values.shape[1] == 1
        kernel = compute_kernel(standardised, rows, cells, compare_folds)
        return cls(kernel, standardised, rows, cells, used, total_rows, curve_size, compare_folds)

    def __len__(self) -> int:
        return len(self.used)

    @property
    def is_constant(self) -> bool:
        """True if no two rows can be compared: the outputs are constant within each cell."""
        return not self.kernel.any()


def compute_kernel(outputs: Array, rows: LeakRows, cells: Cells, compare_folds: bool) -> Array:
    """Return K, shape `(n, n)`, of standardised outputs `(n, d)`."""
    linear, distance = np.zeros((2, len(rows), len(rows)))
    for block in comparable_rows(rows, compare_folds):
        gram = outputs[block] @ outputs[block].T
        root = np.sqrt(rows.votes[block])
        pairs = np.ix_(block, block)
        linear[pairs] = linear_part(gram, root, outputs.shape[1])
        distance[pairs] = distance_part(gram, root)
    return combine_parts(linear, distance, rows, cells)


def weighted_variance(values: Array, votes: Array) -> Array:
    """Return the variance of each column, shape `(d,)`, in which people count once."""
    centred = values - np.average(values, axis=0, weights=votes)
    return np.asarray(np.average(centred**2, axis=0, weights=votes))


def standardise(values: Array, total: Array, cells: Cells, votes: Array) -> Array:
    """Centre each column in each cell, and divide it by its standard deviation there.

    Args:
        values: Shape `(n, d)`.
        total: Variance of each column before anything was subtracted, shape `(d,)`.
        cells: The cells of the rows.
        votes: u, shape `(n,)`.
    """
    votes = votes[:, None]
    centred = cells.centre(values, votes)
    people, squares = cells.sums(votes), cells.sums(votes * centred**2)
    pooled = squares.sum(axis=0) / max(votes.sum() - len(people), 1.0)
    own = squares / np.maximum(people - 1, 1.0)
    variance = np.where(people >= FEWEST_FOR_SD, own, pooled)
    varies = variance > SMALLEST_VARIANCE * total
    scale = np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1.0)), 0.0)
    return np.asarray(centred * scale[cells.codes])


def comparable_rows(rows: LeakRows, compare_folds: bool) -> list[Codes]:
    """Return the row numbers of each set of rows whose outputs are compared with each other."""
    if compare_folds:
        return [np.arange(len(rows))]
    return [np.flatnonzero(rows.fold == fold) for fold in np.unique(rows.fold)]


def ridge_penalty(gram: Array, root: Array, columns: int) -> float:
    """Return λ, a tenth of the mean eigenvalue of YᵀY; 1 where the outputs are constant."""
    trace = float(np.diag(gram) @ root**2)
    return RIDGE * trace / min(float(root @ root), columns) or 1.0


def linear_part(gram: Array, root: Array, columns: int) -> Array:
    """Return K_linear from `gram (n, n)` = y_i · y_j and root = √u.

    For several outputs it is I − (I + G/λ)⁻¹, where G = √u_i √u_j y_i · y_j.
    """
    scaled = gram * root
    scaled *= root[:, None]
    if columns == 1:
        return scaled
    scaled /= ridge_penalty(gram, root, columns)
    scaled[np.diag_indices_from(scaled)] += 1.0
    # Cholesky is faster than `inv`. The transpose has LAPACK's order; the lower half stays 0.
    factor = lapack.dpotrf(scaled.T, overwrite_a=True)[0]
    upper = lapack.dpotri(factor, overwrite_c=True)[0]
    linear = -(upper + upper.T)
    linear[np.diag_indices_from(linear)] = 1.0 - upper.diagonal()
    return np.asarray(linear)


def squared_distances(gram: Array) -> Array:
    """Return ‖y_i − y_j‖², shape `(n, n)`, from `gram (n, n)` = y_i · y_j."""
    squares = np.diag(gram)
    distances = -2 * gram
    distances += squares
    distances += squares[:, None]
    return np.maximum(distances, 0, out=distances)


def distance_part(gram: Array, root: Array) -> Array:
    """Return K_distance, not yet centred, from `gram (n, n)` = y_i · y_j and root = √u."""
    distance = squared_distances(gram)
    np.sqrt(distance, out=distance)
    distance *= root
    distance *= -root[:, None]
    return distance


def pairs_within_people(person: Codes) -> tuple[Codes, Codes]:
    """Return the row numbers i and j of all pairs of rows of one person, among them i = j."""
    n = len(person)
    rows_of_people = csr_array((np.ones(n), person, np.arange(n + 1)))
    i, j = (rows_of_people @ rows_of_people.T).nonzero()
    return i, j


def combine_parts(linear: Array, distance: Array, rows: LeakRows, cells: Cells) -> Array:
    """Return K: both parts centred by cell, 0 within people, divided by their norms, added.

    The parts are overwritten.
    """
    root = np.sqrt(rows.votes)
    people_in_cell = cells.sums(rows.votes)
    within = pairs_within_people(rows.person)
    for part in (linear, distance):
        for matrix in (part, part.T):  # the columns, then the rows
            means = cells.weighted_sums(matrix, root) / people_in_cell[:, None]
            for cell, mean in zip(cells.slices, means, strict=True):
                matrix[cell] -= np.outer(root[cell], mean)
        part[within] = 0.0
        norm = np.linalg.norm(part)
        if norm > 0:
            part /= norm
    linear += distance
    return linear
