"""How likely each class is given the confounds, and weights that leave label and confounds uncorrelated. Numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deconfound.errors import TableError

Array = NDArray[np.float64]
_ROUNDS = 200


@dataclass(frozen=True)
class LogisticFit:
    """A multinomial logistic model.

    Attributes:
        coefficients: `(1 + columns, classes)`, the intercept first; the first class is the reference, all zero.
        separated: Whether columns tell classes apart without error, so that coefficients grow without end.
    """

    coefficients: Array
    separated: bool

    def predict(self, columns: Array) -> Array:
        """`(n, classes)`: the probability of each class."""
        return _softmax(_with_intercept(columns) @ self.coefficients)


def cell_shares(cells: NDArray[np.intp], codes: NDArray[np.intp], classes: int) -> Array:
    """`(cells, classes)`: the share of each class among the rows of each cell."""
    counts = np.zeros((int(cells.max()) + 1, classes))
    np.add.at(counts, (cells, codes), 1.0)
    shares: Array = counts / np.maximum(counts.sum(1, keepdims=True), 1.0)
    return shares


def class_weights(kind: str, shares: Array, codes: NDArray[np.intp], used: NDArray[np.bool_], clip: float) -> Array:
    """`(n,)`: overlap weights, or inverse ones of at most `clip` times their mean, from `P(class | confounds)`.

    Zero for rows that are not used and for those in which a class cannot be.
    """
    own = shares[np.arange(len(codes)), codes]
    usable = used & (shares > 0).all(1)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        if kind == "overlap":
            weight = np.where(usable, 1 / (own * (1 / shares).sum(1)), 0.0)
        else:
            marginal = np.bincount(codes[usable], minlength=shares.shape[1]) / max(1, usable.sum())
            weight = np.where(usable, marginal[codes] / own, 0.0)
    weight = np.nan_to_num(weight, nan=0.0, posinf=0.0)
    if kind == "inverse" and usable.any():
        weight = np.minimum(weight, clip * weight[usable].mean())
    return weight


def fit_logistic(columns: Array, codes: NDArray[np.intp], classes: int) -> LogisticFit:
    """Maximum likelihood without a penalty, by Newton's method with step halving, of `codes (n,)` on `columns (n, k)`.

    Without a penalty the score equations hold exactly, `Σᵢ (yᵢ − eᵢ) xᵢ = 0`, which for two classes is what makes
    overlap weights balance every column's mean. The columns are standardised.
    """
    independent, kept = _independent(columns)
    x = _with_intercept(independent)
    y = np.eye(classes)[codes]
    beta = np.zeros((x.shape[1], classes))
    loss = _loss(x, y, beta)
    for _ in range(_ROUNDS):
        e = _softmax(x @ beta)
        gradient = (x.T @ (e - y))[:, 1:]
        if np.abs(gradient).max() < 1e-11 * len(x):
            break
        hessian = _hessian(x, e)
        step = np.linalg.lstsq(hessian + 1e-12 * len(x) * np.eye(len(hessian)), gradient.T.ravel(), rcond=None)[0]
        step = step.reshape(classes - 1, -1).T
        size = 1.0
        while size > 1e-6:
            ahead = beta.copy()
            ahead[:, 1:] -= size * step
            new = _loss(x, y, ahead)
            if new <= loss:
                break
            size /= 2
        if size <= 1e-6 or loss - new < 1e-15 * max(loss, 1e-12):
            beta, loss = (ahead, new) if new <= loss else (beta, loss)
            break
        beta, loss = ahead, new
    chosen = _softmax(x @ beta)[np.arange(len(x)), codes]
    whole = np.zeros((columns.shape[1] + 1, classes))
    whole[[0, *(place + 1 for place in kept)]] = beta
    return LogisticFit(whole, bool((chosen > 1 - 1e-7).any()))


def entropy_weights(y: Array, columns: Array, y_names: tuple[str, ...], names: tuple[str, ...]) -> Array:
    """`(n,)`, mean 1: the weights nearest to equal ones with `E_w[y c] = E_w[y] E_w[c]` and the means of both kept.

    The dual of minimising `Σ w log w` under these constraints is convex: `log Σ exp(gᵢ λ)`, by Newton's method. Both
    `y (n, l)` and `columns (n, k)` are standardised; their names are for the error.
    """
    products = (y[:, :, None] * columns[:, None, :]).reshape(len(y), -1)
    labels = [*names, *y_names, *(f"{a} × {b}" for a in y_names for b in names)]
    constraints = np.concatenate([columns, y, products], axis=1)
    g, _ = _independent(constraints, centre=False)
    multipliers = np.zeros(g.shape[1])
    weight = np.full(len(g), 1 / len(g))
    value = np.log(len(g))
    for _ in range(_ROUNDS):
        gap = weight @ g
        if np.abs(gap).max() < 1e-11:
            break
        hessian = (g.T * weight) @ g - np.outer(gap, gap)
        step = np.linalg.lstsq(hessian + 1e-13 * np.eye(len(hessian)), gap, rcond=None)[0]
        size = 1.0
        while size > 1e-10:
            ahead, new = _tilted(g, multipliers - size * step)
            if new <= value + 1e-15:
                break
            size /= 2
        else:
            break
        multipliers, weight, value = multipliers - size * step, ahead, new
    gaps = np.abs(weight @ constraints)
    if gaps.max() > 1e-8:
        worst = [labels[place] for place in np.argsort(-gaps)[:3] if gaps[place] > 1e-8]
        raise TableError(
            f"entropy weights must make label and confounds uncorrelated; got no weights that do, because of "
            f"{', '.join(worst)}. Remove a confound, join rare levels, or use kind='overlap' with classes."
        )
    return weight * len(g)


def _tilted(g: Array, multipliers: Array) -> tuple[Array, float]:
    scores = g @ multipliers
    top = scores.max()
    weight = np.exp(scores - top)
    total = float(weight.sum())
    return weight / total, float(np.log(total) + top)


def _independent(columns: Array, centre: bool = True) -> tuple[Array, list[int]]:
    """The columns that are no combination of those before them, and where they stand."""
    kept: list[int] = []
    basis = np.empty((0, len(columns)))
    for place in range(columns.shape[1]):
        column = columns[:, place] - (columns[:, place].mean() if centre else 0.0)
        size = np.linalg.norm(column)
        if size < 1e-10:
            continue
        rest = column / size
        for _ in range(2):  # a second pass: one alone loses orthogonality where columns nearly agree
            rest = rest - (basis @ rest) @ basis
        length = np.linalg.norm(rest)
        if length > 1e-7:
            basis = np.concatenate([basis, rest[None] / length])
            kept.append(place)
    return columns[:, kept], kept


def _with_intercept(columns: Array) -> Array:
    return np.concatenate([np.ones((len(columns), 1)), columns], axis=1)


def _softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(1, keepdims=True))
    total: Array = weights / weights.sum(1, keepdims=True)
    return total


def _hessian(x: Array, e: Array) -> Array:
    """Of the negative log likelihood, by the coefficients of all classes but the first."""
    others = range(1, e.shape[1])
    return np.block([[x.T @ ((e[:, i] * ((i == j) - e[:, j]))[:, None] * x) for j in others] for i in others])


def _loss(x: Array, y: Array, beta: Array) -> float:
    scores = x @ beta
    top = scores.max(1, keepdims=True)
    return float((np.log(np.exp(scores - top).sum(1)) + top[:, 0] - (scores * y).sum(1)).sum())


def distance_correlation(y: Array, columns: Array, weight: Array, most: int = 1500, seed: int = 0) -> float:
    """Weighted squared distance correlation of two sets of columns, on at most `most` rows drawn at random."""
    if len(y) > most:
        rows = np.random.default_rng(seed).choice(len(y), most, replace=False)
        y, columns, weight = y[rows], columns[rows], weight[rows]
    share = weight / weight.sum()
    centred = []
    for values in (y, columns):
        squares = np.square(values).sum(1)
        distances = np.sqrt(np.maximum(squares[:, None] + squares[None] - 2 * values @ values.T, 0.0))
        means = distances @ share
        centred.append(distances - means[:, None] - means[None] + share @ means)
    both = np.outer(share, share)
    cross, one, other = (
        (both * a * b).sum() for a, b in ((centred[0], centred[1]), (centred[0],) * 2, (centred[1],) * 2)
    )
    return float(cross / np.sqrt(one * other)) if one * other > 0 else 0.0
