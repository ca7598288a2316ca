"""The arithmetic that all layers share, as pure functions on tensors.

Shapes: features f `(n, d)`; regressors `R = [z_C, z_L, 1]` `(n, q)`, which are confounds, labels
and a column of ones, white on the training table; coefficients β `(q, d)`, whose first `q_C` rows
belong to the confounds and whose last row is the intercept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deconfound.layers.environment import widest_float

# Directions that vary less than this share of the most varying one are not fitted, because metadata
# arrive as float32, whose squares carry no more digits.
SMALLEST_VARIANCE = 1e-9


@dataclass(frozen=True)
class Moments:
    """Sums over rows from which β follows; sums of several batches add up.

    Attributes:
        gram: RᵀWR, shape `(q, q)`, where W holds the row weights.
        cross: RᵀWf, shape `(q, d)`.
    """

    gram: Tensor
    cross: Tensor

    @property
    def rows(self) -> Tensor:
        """Σw, the number of rows: the last entry of the Gram matrix, because R ends with ones."""
        return self.gram[-1, -1]

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.gram + other.gram, self.cross + other.cross)


def positive(rows: Tensor) -> Tensor:
    """Return Σw to divide by, where a batch without weight has sums of zero: never 0 itself."""
    return rows.clamp(min=torch.finfo(rows.dtype).tiny)


def subtract_effect(
    features: Tensor,
    confounds: Tensor,
    coefficients: Tensor,
    shape: tuple[int, ...],
    scale: float = 1.0,
) -> Tensor:
    """Return r = f − C β_C (Eq. 2), or f − scale · C β_C.

    Args:
        features: Shape `(n, …)`, which `(n, *shape)` broadcasts to.
        confounds: C, shape `(n, q_C)`.
        coefficients: β_C, shape `(q_C, d)`.
        shape: The shape that d coefficients have in one sample: `(16, 1, 1)` for one per channel.
        scale: A factor of the effect.
    """
    if shape == features.shape[1:] and features.ndim == 2:
        return torch.addmm(features, confounds, coefficients, alpha=-scale)
    # The result must not be a view, because an in-place ReLU behind the layer changes it.
    effect = (confounds @ coefficients).view(-1, *shape)
    return torch.sub(features, effect, alpha=scale)


def identity_like(matrix: Tensor) -> Tensor:
    """Return the identity of the size, type and device of a square matrix."""
    return torch.eye(matrix.shape[0], dtype=matrix.dtype, device=matrix.device)


def least_squares(moments: Moments, prior: float = 0.0) -> Tensor:
    """Solve (RᵀWR + k I) β = RᵀWf with a free intercept (Eq. 3 for k = 0).

    The regressors are centred first. What the rows cannot distinguish from their mean, such as the
    effect of the only site among them, is therefore credited to the intercept. Directions in which
    the rows do not vary get coefficients of zero.

    Args:
        moments: The sums over rows.
        prior: k, the number of rows for which β = 0 counts. It does not hold the intercept.
    """
    gram = moments.gram.to(widest_float(moments.gram))
    cross = moments.cross.to(gram)
    rows = positive(gram[-1, -1])
    means = gram[:-1, -1] / rows
    centred_gram = gram[:-1, :-1] - torch.outer(gram[:-1, -1], means)
    centred_gram = centred_gram + prior * identity_like(centred_gram)
    centred_cross = cross[:-1] - means.unsqueeze(1) * cross[-1]
    tolerance = max(SMALLEST_VARIANCE, 10 * torch.finfo(gram.dtype).eps)
    inverse = torch.linalg.pinv(centred_gram, rtol=tolerance, hermitian=True)
    slopes = inverse @ centred_cross
    intercept = cross[-1] / rows - means @ slopes
    return torch.cat([slopes, intercept.unsqueeze(0)])


def refit_coefficients(beta: Tensor, moments: Moments, prior: float) -> Tensor:
    """Return β + (RᵀWR + k I)⁺ RᵀW(f − Rβ): least squares in which the old β counts for k rows.

    The prior k does not hold the intercept; see `least_squares`.

    Args:
        beta: The old coefficients, shape `(q, d)`.
        moments: Sums over the rows to fit.
        prior: k.

    Returns:
        The new coefficients; the old ones if the new ones are not finite.
    """
    unexplained = moments.cross - moments.gram @ beta.to(moments.gram)
    refitted = beta + least_squares(Moments(moments.gram, unexplained), prior).to(beta)
    return torch.where(refitted.isfinite().all(), refitted, beta)
