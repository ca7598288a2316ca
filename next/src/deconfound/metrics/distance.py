"""Distance correlation (Székely, Rizzo and Bakirov 2007; Székely and Rizzo 2013, 2014).

It is zero in the population exactly if two variables, of any dimension, are independent. With the
distances a_ij = ‖x_i − x_j‖ and b_ij = ‖y_i − y_j‖, their row sums a_i and b_i, and their totals
a and b, the squared distance covariance is

    biased          [Σ a_ij b_ij − 2 Σ a_i b_i / n + a b / n²] / n²
    bias-corrected  [Σ a_ij b_ij − 2 Σ a_i b_i / (n − 2) + a b / ((n − 1)(n − 2))] / (n (n − 3))

and the squared correlation is C(x, y) / √(C(x, x) C(y, y)). The biased form is never negative, and
grows with the dimension of independent data. The bias-corrected form, a U-statistic, has mean zero
there and may be negative.

Arrays give a float. Tensors give a tensor with a gradient. The formulas are written once, in
operations that arrays and tensors share.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike

from deconfound.errors import ShapeError
from deconfound.metrics.arrays import Array, as_codes, as_matrix, check_lengths

if TYPE_CHECKING:
    from torch import Tensor

# Distances are computed in square blocks, so memory does not grow with n².
BLOCK = 1024
# A variance below this share of the mean squared distance is rounding.
SMALLEST_VARIANCE = 1e-13
FEWEST_ROWS = 4


@overload
def distance_correlation_sqr(x: Tensor, y: Tensor) -> Tensor: ...
@overload
def distance_correlation_sqr(x: ArrayLike, y: ArrayLike) -> float: ...
def distance_correlation_sqr(x: Any, y: Any) -> Any:
    """Return the squared distance correlation, from 0 to 1; 0 if a side is constant.

    Args:
        x: Shape `(n,)` or `(n, d)` with n ≥ 4. A tensor may need a gradient; pairs of equal rows
            add none.
        y: Shape `(n,)` or `(n, q)`, an array or tensor like x.

    Example:
        >>> round(distance_correlation_sqr([0.0, 1.0, 2.0, 3.0], [5.0, 3.0, 1.0, -1.0]), 6)
        1.0
    """
    return _correlate(x, y, corrected=False)


@overload
def u_distance_correlation_sqr(x: Tensor, y: Tensor) -> Tensor: ...
@overload
def u_distance_correlation_sqr(x: ArrayLike, y: ArrayLike) -> float: ...
def u_distance_correlation_sqr(x: Any, y: Any) -> Any:
    """Return the bias-corrected squared distance correlation, the paper's dcor².

    Args:
        x: Shape `(n,)` or `(n, d)` with n ≥ 4. A tensor may need a gradient; pairs of equal rows
            add none.
        y: Shape `(n,)` or `(n, q)`, an array or tensor like x.

    Example:
        >>> x = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 4.0], [3.0, 9.0], [4.0, 8.0]])
        >>> round(u_distance_correlation_sqr(x, 3 * x), 6)
        1.0
    """
    return _correlate(x, y, corrected=True)


@overload
def within_group_dcor_sqr(x: Tensor, y: Tensor, groups: Sequence[Any] | ArrayLike) -> Tensor: ...
@overload
def within_group_dcor_sqr(
    x: ArrayLike, y: ArrayLike, groups: Sequence[Any] | ArrayLike
) -> float: ...
def within_group_dcor_sqr(x: Any, y: Any, groups: Any) -> Any:
    """Return the bias-corrected dcor² within each group, averaged over groups, as in the paper.

    Args:
        x: Features, shape `(n,)` or `(n, d)`.
        y: A confound, shape `(n,)` or `(n, q)`.
        groups: The label of each row, shape `(n,)`. Each group needs at least 4 rows and counts the
            same.
    """
    codes, names = as_codes(_to_numpy(groups), "groups")
    x = x if _is_tensor(x) else np.asarray(x)
    y = y if _is_tensor(y) else np.asarray(y)
    check_lengths(x=x, y=y, groups=codes)
    sizes = np.bincount(codes)
    if sizes.min() < FEWEST_ROWS:
        raise ShapeError(
            f"`groups` has {sizes.min()} rows of the level {names.tolist()[sizes.argmin()]!r}. "
            f"dcor² needs at least {FEWEST_ROWS}: leave this level out, or join it with another."
        )
    members = [np.flatnonzero(codes == code) for code in range(len(names))]
    return sum(u_distance_correlation_sqr(x[rows], y[rows]) for rows in members) / len(names)


@dataclass(frozen=True)
class _PairSums:
    """Sums over all ordered pairs of rows, as numbers or as tensors with a gradient.

    Attributes:
        products: Σ a_ij b_ij, Σ a_ij² and Σ b_ij².
        rows: Row sums of a and b, each of shape `(n,)`.
    """

    products: tuple[Any, Any, Any]
    rows: tuple[Any, Any]

    def covariance(self, product: int, left: int, right: int, *, corrected: bool) -> Any:
        """Return the squared distance covariance from a product and two sets of row sums."""
        a, b = self.rows[left], self.rows[right]
        n = len(a)
        cross, totals = (a * b).sum(), a.sum() * b.sum()
        if not corrected:
            return (self.products[product] - 2 * cross / n + totals / n**2) / n**2
        middle = 2 * cross / (n - 2)
        return (self.products[product] - middle + totals / ((n - 1) * (n - 2))) / (n * (n - 3))


def _correlate(x: Any, y: Any, *, corrected: bool) -> Any:
    """Return C(x, y) / √(C(x, x) C(y, y)), and 0 with a gradient of 0 if a side is constant."""
    a, b = _prepare(x, y)
    if len(a) < FEWEST_ROWS:
        raise ShapeError(f"`x` has {len(a)} rows. dcor² needs at least {FEWEST_ROWS} rows.")
    needs_gradient = any(_is_tensor(side) and side.requires_grad for side in (a, b))
    if a.shape[1] == b.shape[1] == 1 and not needs_gradient:
        sums = _sorted_sums(_to_numpy(a)[:, 0], _to_numpy(b)[:, 0])
    else:
        sums = _block_sums(a, b)
    covariance = sums.covariance(0, 0, 1, corrected=corrected)
    variances = [sums.covariance(side + 1, side, side, corrected=corrected) for side in (0, 1)]
    least = [SMALLEST_VARIANCE * square / len(a) ** 2 for square in sums.products[1:]]
    if any(variance <= rounding for variance, rounding in zip(variances, least, strict=True)):
        correlation = 0.0 * covariance
    else:
        correlation = covariance / (variances[0] * variances[1]) ** 0.5
    return _as_result(correlation, x if _is_tensor(x) else y)


def _is_tensor(values: Any) -> bool:
    """Return whether `values` is a tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def _to_numpy(values: Any) -> Any:
    """Return values as an array, without their gradient."""
    return values.detach().cpu().numpy() if _is_tensor(values) else np.asarray(values)


def _prepare(x: Any, y: Any) -> tuple[Any, Any]:
    """Return both sides as float64 matrices of ordinary size, tensors if one of them is."""
    tensors = [side for side in (x, y) if _is_tensor(side)]
    if tensors:
        import torch

        x, y = (torch.as_tensor(side, device=tensors[0].device).double() for side in (x, y))
        for name, side in (("x", x), ("y", y)):
            if not side.isfinite().all() or not side.ndim:
                as_matrix(_to_numpy(side), name)  # raises the error
        x, y = x.reshape(len(x), -1), y.reshape(len(y), -1)
    else:
        x, y = as_matrix(x, "x"), as_matrix(y, "y")
    check_lengths(x=x, y=y)
    return _rescale(x), _rescale(y)


def _as_result(value: Any, x: Any) -> Any:
    """Return a float; or, if x is a tensor, a tensor of its type on its device."""
    if not _is_tensor(x):
        return float(value)
    import torch

    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    return torch.as_tensor(value, device=x.device).to(dtype)


def _rescale(side: Any) -> Any:
    """Centre at the median and divide by the largest number, which leaves dcor as it is.

    At the mean, one far row would push all others away from zero, where squares lose digits.
    """
    constant = side.detach() if _is_tensor(side) else side
    centre = constant.median(dim=0).values if _is_tensor(side) else np.median(side, axis=0)
    largest = float(abs(constant - centre).max())
    return (side - centre) / (largest if largest > 0 else 1.0)


def _block_sums(x: Any, y: Any) -> _PairSums:
    """Sum the products of distances block by block, in O(n² (d + q)) time and O(n) memory."""
    if _is_tensor(x):
        from torch.utils.checkpoint import checkpoint

    # Row sums start at 0, on the device of each side.
    a_rows, b_rows = 0.0 * x[:, 0], 0.0 * y[:, 0]
    products: list[Any] = [0.0, 0.0, 0.0]
    for rows, columns in _blocks(len(x)):
        sides = (x[rows], x[columns], y[rows], y[columns])
        # A checkpoint computes the distances again in the backward pass instead of keeping them.
        if _is_tensor(x):
            sums = checkpoint(_one_block, *sides, use_reentrant=False)
        else:
            sums = _one_block(*sides)
        # A block off the diagonal stands for its mirror image as well.
        is_diagonal = rows == columns
        times = 1 if is_diagonal else 2
        products = [total + times * part for total, part in zip(products, sums[:3], strict=True)]
        a_rows[rows] += sums[3]
        b_rows[rows] += sums[4]
        if not is_diagonal:
            a_rows[columns] += sums[5]
            b_rows[columns] += sums[6]
    return _PairSums((products[0], products[1], products[2]), (a_rows, b_rows))


def _blocks(n: int) -> Iterator[tuple[slice, slice]]:
    """Yield pairs of row slices that cover all unordered pairs of rows."""
    for start in range(0, n, BLOCK):
        for other in range(start, n, BLOCK):
            yield slice(start, min(start + BLOCK, n)), slice(other, min(other + BLOCK, n))


def _one_block(x: Any, other_x: Any, y: Any, other_y: Any) -> tuple[Any, ...]:
    """Return Σ ab, Σ a², Σ b²; the sums of a and b for each row; and those for each column."""
    a, b = _distances(x, other_x), _distances(y, other_y)
    products = ((a * b).sum(), (a * a).sum(), (b * b).sum())
    return (*products, a.sum(1), b.sum(1), a.sum(0), b.sum(0))


def _distances(x: Any, other: Any) -> Any:
    """Return Euclidean distances, shape `(len(x), len(other))`; ties have a zero gradient."""
    if x.shape[1] == 1:
        return abs(x - other.T)
    norms, other_norms = (x * x).sum(1), (other * other).sum(1)
    size = norms[:, None] + other_norms
    squares = size - 2 * (x @ other.T)
    differs = squares > 8 * np.finfo(np.float64).eps * size
    # The square root of 1 stands in for that of 0, whose gradient is infinite.
    return (squares * differs + ~differs) ** 0.5 * differs


def _sorted_sums(x: Array, y: Array) -> _PairSums:
    """Return the sums of two single columns in O(n log n)."""
    x, y = x - x.mean(), y - y.mean()
    products = (_sorted_products(x, y), 2 * len(x) * (x @ x), 2 * len(x) * (y @ y))
    return _PairSums(products, (_row_sums(x), _row_sums(y)))


def _row_sums(values: Array) -> Array:
    """Return Σ_j |y_i − y_j| for each i: the k-th smallest number lies above k − 1 others."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    n, below = len(values), np.arange(len(values))
    prefix = np.cumsum(ascending)
    sums = np.empty_like(values)
    sums[order] = ascending * (2 * below + 2 - n) + prefix[-1] - 2 * prefix
    return sums


def _sorted_products(x: Array, y: Array) -> float:
    """Return Σ |x_i − x_j| |y_i − y_j| over ordered pairs.

    In the order of x, the product is (x_j − x_i)(y_j − y_i) with the sign changed where y descends.
    So the sum is a closed form minus twice the sum over descending pairs, which a merge sort finds:
    runs of y of length 1, 2, 4, … are sorted, and each number of a right half descends from the
    numbers of its left half that are larger.
    """
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    n = len(x)
    closed_form = n * float(x @ y) - float(x.sum() * y.sum())
    rank = np.empty(n, dtype=np.intp)
    rank[np.argsort(y, kind="stable")] = np.arange(n)
    position = np.arange(n)
    descending, width = 0.0, 1
    # In each step, `merged` holds the rows in runs of 2 · width that are sorted by y.
    while width < n:
        merged = np.lexsort((rank, position // (2 * width)))
        is_left = (position[merged] // width) % 2 == 0
        run_start = position // (2 * width) * (2 * width)
        moments = np.stack([np.ones(n), x[merged], y[merged], x[merged] * y[merged]])
        # Sums over the left rows of a run from each row on: all of them minus those before it.
        before = np.cumsum(np.pad(moments * is_left, ((0, 0), (1, 0))), axis=1)
        run_end = np.minimum(run_start + 2 * width, n)
        count, sum_x, sum_y, sum_xy = before[:, run_end] - before[:, :-1]
        _, right_x, right_y, right_xy = moments
        pairs = right_xy * count - right_x * sum_y - right_y * sum_x + sum_xy
        descending += float(pairs[~is_left].sum())
        width *= 2
    return 2 * (closed_form - 2 * descending)
