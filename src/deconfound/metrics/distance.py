"""Distance correlation (Székely, Rizzo and Bakirov 2007; Székely and Rizzo 2013, 2014).

Zero in the population exactly when two variables, of any dimension each, are independent. With
`a_ij = |x_i - x_j|`, `b_ij = |y_i - y_j|`, row sums `a_i.`, `b_i.` and totals `a..`, `b..`:

- biased:          `V²(x, y) = Σ a_ij b_ij / n² - 2 Σ a_i. b_i. / n³ + a.. b.. / n⁴`
- bias-corrected:  `Ω(x, y) = [Σ a_ij b_ij - 2 Σ a_i. b_i. / (n - 2) + a.. b.. / ((n - 1)(n - 2))] / (n (n -
  3))`

and the squared correlation is `C(x, y) / sqrt(C(x, x) C(y, y))` for either one. The biased form is never
negative and grows with the dimension of independent data; the bias-corrected form has mean zero there and may
be negative.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deconfound.errors import ShapeError
from deconfound.metrics.checks import ordinary, samples
from deconfound.metrics.pairs import PairSums, pair_sums
from deconfound.metrics.sorted_pairs import sorted_pair_sums

if TYPE_CHECKING:
    from deconfound.metrics.checks import Samples

# Below this the pairs are summed sooner than they are sorted.
_SORT_FROM = 2048
Formula = Callable[[Tensor, Tensor, Tensor], Tensor]


def distance_covariance_sqr(x: "Samples", y: "Samples", *, block: int | None = None) -> Tensor:
    """Squared distance covariance V² between the rows of `x (n,) or (n, d)` and `y (n,) or (n, q)`."""
    return _covariance(*samples(x, y, at_least=1), _biased, block)


def u_distance_covariance_sqr(x: "Samples", y: "Samples", *, block: int | None = None) -> Tensor:
    """Bias-corrected squared distance covariance Ω; mean zero for independent rows, so at times negative."""
    return _covariance(*samples(x, y, at_least=4), _bias_corrected, block)


def distance_correlation_sqr(x: "Samples", y: "Samples", *, block: int | None = None) -> Tensor:
    """Squared distance correlation in [0, 1]; 0 where a side is constant.

    Args:
        x: `(n,)` or `(n, d)`. Differentiable, with a zero contribution from pairs of equal rows.
        y: `(n,)` or `(n, q)`, on the same device.
        block: side of the square blocks in which pairs are visited; memory is O(n·(d+q) + block²).

    Example:
        >>> x = torch.tensor([0.0, 1.0, 2.0, 3.0])
        >>> round(float(distance_correlation_sqr(x, 5 - 2 * x)), 6)
        1.0
    """
    return _correlation(*samples(x, y, at_least=1), _biased, block)


def u_distance_correlation_sqr(x: "Samples", y: "Samples", *, block: int | None = None) -> Tensor:
    """Bias-corrected squared distance correlation, the paper's dcor²: mean zero for independent rows.

    Args:
        x: `(n,)` or `(n, d)`, n of at least 4. Differentiable, with a zero contribution from pairs of equal
            rows.
        y: `(n,)` or `(n, q)`, on the same device.
        block: side of the square blocks in which pairs are visited; memory is O(n·(d+q) + block²).

    Example:
        >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 4.0], [3.0, 9.0], [4.0, 8.0]])
        >>> round(float(u_distance_correlation_sqr(x, 3 * x)), 6)
        1.0
    """
    return _correlation(*samples(x, y, at_least=4), _bias_corrected, block)


def _covariance(x: Tensor, y: Tensor, formula: Formula, block: int | None) -> Tensor:
    sums = _sums(x, y, block)
    covariance = formula(sums.ab, sums.a_rows, sums.b_rows)
    if not bool(covariance.isfinite()):
        raise ShapeError("x and y must be small enough that their products are numbers; got larger ones. Rescale them.")
    return covariance.to(x.dtype)


def _correlation(x: Tensor, y: Tensor, formula: Formula, block: int | None) -> Tensor:
    """`covariance / sqrt(variances)`, and zero with a zero gradient where a side does not vary."""
    sums = _sums(ordinary(x), ordinary(y), block)
    covariance = formula(sums.ab, sums.a_rows, sums.b_rows)
    x_variance, y_variance = formula(sums.aa, sums.a_rows, sums.a_rows), formula(sums.bb, sums.b_rows, sums.b_rows)
    # Equal or equidistant rows leave a variance that is rounding of the sums.
    rounding = 1e-13 / sums.a_rows.shape[0] ** 2
    varies = (x_variance > rounding * sums.aa) & (y_variance > rounding * sums.bb)
    return torch.where(varies, covariance / torch.where(varies, x_variance * y_variance, 1).sqrt(), 0).to(x.dtype)


def _sums(x: Tensor, y: Tensor, block: int | None) -> PairSums:
    # float32 would lose the distances of ordinary rows beside a single row that lies far away.
    x, y = x.double(), y.double()
    differentiable = torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
    if x.shape[1] == y.shape[1] == 1 and len(x) >= _SORT_FROM and not differentiable:
        return sorted_pair_sums(x[:, 0], y[:, 0])
    return pair_sums(x, y, block)


def _biased(products: Tensor, a_rows: Tensor, b_rows: Tensor) -> Tensor:
    n = a_rows.shape[0]
    return products / n**2 - 2 * (a_rows * b_rows).sum() / n**3 + a_rows.sum() * b_rows.sum() / n**4


def _bias_corrected(products: Tensor, a_rows: Tensor, b_rows: Tensor) -> Tensor:
    n = a_rows.shape[0]
    rows, totals = (a_rows * b_rows).sum(), a_rows.sum() * b_rows.sum()
    return (products - 2 * rows / (n - 2) + totals / ((n - 1) * (n - 2))) / (n * (n - 3))
