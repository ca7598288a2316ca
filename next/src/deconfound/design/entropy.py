"""Entropy balancing: the weights nearest to equal ones that make labels and confounds uncorrelated.

Hainmueller (2012), "Entropy balancing for causal effects", with the products of label and confounds
as further moments, so that it also serves numeric labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from deconfound.errors import TableError

Array = NDArray[np.float64]

# Moments are in units of sd; weights whose moments are further off do not exist.
_TOLERANCE = 1e-9
# Directions of the constraints below this share of the largest one follow from the others.
_REDUNDANT = 1e-8


def entropy_weights(y: Array, columns: Array, label: str, names: Sequence[str]) -> Array:
    """Return weights with mean 1 under which y and the columns are uncorrelated, shape `(n,)`.

    They minimise Σ w log w subject to E_w[y] = E[y], E_w[c] = E[c] and E_w[y c] = E_w[y] E_w[c].
    With g the moments that must vanish, w ∝ exp(g λ), and λ minimises the convex dual

        log Σ_i exp(g_i λ)

    Args:
        y: The label, or one column per class but the first, shape `(n, l)`.
        columns: Columns of the confounds, shape `(n, k)`.
        label: Name of the label, for the error.
        names: Names of the columns, for the error.

    Raises:
        TableError: There are no such weights; the columns furthest from balance are named.
    """
    # Imported here, because it is slow to import and only these weights need it.
    from scipy.optimize import minimize

    y, columns = _standardise(y), _standardise(columns)
    products = (y[:, :, None] * columns[:, None, :]).reshape(len(y), -1)
    moments = np.concatenate([products, columns, y], axis=1)
    basis, sizes, _ = np.linalg.svd(moments, full_matrices=False)
    constraints = basis[:, sizes > _REDUNDANT * sizes[0]] * np.sqrt(len(y))

    def weights_at(multipliers: Array) -> Array:
        scores = constraints @ multipliers
        return np.asarray(np.exp(scores - logsumexp(scores)))

    def value_and_gradient(multipliers: Array) -> tuple[float, Array]:
        value = float(logsumexp(constraints @ multipliers))
        return value, weights_at(multipliers) @ constraints

    def hessian(multipliers: Array) -> Array:
        weights = weights_at(multipliers)
        mean = weights @ constraints
        return np.asarray((constraints.T * weights) @ constraints - np.outer(mean, mean))

    start = np.zeros(constraints.shape[1])
    options = {"gtol": 1e-13, "maxiter": 500}
    solution = minimize(
        value_and_gradient, start, jac=True, hess=hessian, method="trust-exact", options=options
    )
    weights = weights_at(solution.x)
    gaps = np.abs(weights @ moments)
    if not gaps.max() < _TOLERANCE:
        gap_of_column = gaps[: products.shape[1]].reshape(y.shape[1], -1).max(axis=0)
        worst = [repr(names[i]) for i in np.argsort(-gap_of_column)[:3] if gap_of_column[i] > 1e-6]
        raise TableError(
            f"No weights make {label!r} and the confounds uncorrelated; furthest from it are "
            f"{', '.join(worst) or 'the means'}. Leave out a confound, join rare levels, or "
            "collect rows where label and confounds do not go together."
        )
    return weights * len(y)


def _standardise(columns: Array) -> Array:
    """Centre and scale columns; the constant ones become zero."""
    centred = columns - columns.mean(axis=0)
    sd = centred.std(axis=0)
    return np.asarray(np.where(sd > 1e-12, centred / np.where(sd > 1e-12, sd, 1.0), 0.0))
