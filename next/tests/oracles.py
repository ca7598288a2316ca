"""What the library should compute, written out in plain numpy and torch.

Nothing here imports deconfound. Where a formula of the paper exists, it is followed to the letter;
speed and numerical care come last, because the inputs of tests are small and well scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


def raw_columns(table: pd.DataFrame, names: Sequence[str], weight: Array | None = None) -> Array:
    """Return standardised numbers and one column per level but the first, shape `(n, p)`."""
    one_hot = pd.get_dummies(table[list(names)], drop_first=True).to_numpy(np.float64)
    weight = np.ones(len(table)) if weight is None else weight
    centred = one_hot - np.average(one_hot, axis=0, weights=weight)
    return centred / np.sqrt(np.average(centred**2, axis=0, weights=weight))


def least_squares(
    regressors: Array, features: Array, weight: Array | None = None, ridge: float = 0.0
) -> Array:
    """Return argmin Σ w ‖f − Rβ‖² + ridge ‖β‖² by the normal equations, shape `(q, d)`.

    The last column of R is the intercept, which the ridge does not hold.
    """
    weight = np.ones(len(regressors)) if weight is None else np.asarray(weight)
    penalty = ridge * np.eye(regressors.shape[1])
    penalty[-1, -1] = 0.0
    gram = regressors.T @ (weight[:, None] * regressors) + penalty
    return np.linalg.solve(gram, regressors.T @ (weight[:, None] * features))


def residual(
    features: Tensor,
    table: pd.DataFrame,
    confounds: Sequence[str],
    keep: Sequence[str],
    weight: Array | None = None,
) -> Array:
    """Return f − C b_C, where b is fitted on the user's own columns [C, L, 1]."""
    c = raw_columns(table, confounds, weight)
    labels = raw_columns(table, keep, weight) if keep else np.empty((len(table), 0))
    regressors = np.column_stack([c, labels, np.ones(len(table))])
    values = features.double().numpy()
    return values - c @ least_squares(regressors, values, weight)[: c.shape[1]]


def explained_share(features: Array, table: pd.DataFrame, confounds: Sequence[str]) -> float:
    """Return the largest R² of a feature on all confounds, labels ignored."""
    regressors = np.column_stack([raw_columns(table, confounds), np.ones(len(table))])
    errors = features - regressors @ least_squares(regressors, features)
    return float((1 - errors.var(0) / features.var(0)).max())


def white_regressors(metadata: Tensor, whitening: Array) -> Tensor:
    """Return R = [M T, 1], shape `(n, q)`, from encoded metadata and the design's transform."""
    ones = metadata.new_ones(len(metadata), 1)
    return torch.cat([metadata @ torch.from_numpy(whitening), ones], dim=1)


def white_confounds(metadata: Tensor, whitening: Array, columns: int, directions: int) -> Tensor:
    """Return C, shape `(n, q_C)`: the part of M T that comes from the confound columns alone."""
    return metadata[:, :columns] @ torch.from_numpy(whitening)[:columns, :directions]


def closed_form(f: Tensor, c: Tensor, r: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return f − C β_C with β by (weighted) least squares on these rows, with a graph through β.

    Args:
        f: Features, shape `(n, d)`.
        c: C, shape `(n, q_C)`.
        r: R, shape `(n, q)`.
        weight: Row weights, shape `(n,)`.
    """
    weighted = r if weight is None else weight[:, None] * r
    beta = torch.linalg.solve(weighted.T @ r, weighted.T @ f)
    return f - c @ beta[: c.shape[1]]


class AlgorithmOne:
    """Algorithm 1 of the paper for an MLP: β after each layer but the last, tanh, squared error.

    Args:
        weights: W, one matrix per layer. They are changed in place.
        confounds: q_C, the number of confound columns; R has them first.
        regressors: q, the number of columns of R.
        optimizer: The class of both optimisers.
        rates: η₁ for β and η₂ for W.
        layer_by_layer: Take line 6 for each layer on features made with the new β before it.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        confounds: int,
        regressors: int,
        optimizer: Any,
        rates: tuple[float, float],
        layer_by_layer: bool = False,
    ) -> None:
        self.w = [weight.clone().requires_grad_() for weight in weights]
        self.beta = [torch.zeros(regressors, weight.shape[1]).to(weight) for weight in weights[:-1]]
        self.confounds = confounds
        self.layer_by_layer = layer_by_layer
        self.beta_optimizer = optimizer(self.beta, lr=rates[0])
        self.w_optimizer = optimizer(self.w, lr=rates[1])

    def step(self, x: Tensor, c: Tensor, r: Tensor, y: Tensor) -> None:
        """Take lines 4 to 9 on one batch."""
        # Lines 4 to 6: W is frozen. ∇_β of ½ Σ_features mean_samples (f − Rβ)².
        for layer, beta in enumerate(self.beta):
            f = self.forward(x, c, layer).detach()
            beta.grad = -r.T @ (f - r @ beta) / len(x)
            if self.layer_by_layer:
                self.beta_optimizer.step()
                beta.grad = None
        if not self.layer_by_layer:
            self.beta_optimizer.step()
        # Lines 7 to 9: β is frozen.
        loss = (self.forward(x, c, len(self.beta)) - y).square().mean()
        for w, gradient in zip(self.w, torch.autograd.grad(loss, self.w), strict=True):
            w.grad = gradient
        self.w_optimizer.step()

    def forward(self, x: Tensor, c: Tensor, layer: int) -> Tensor:
        """Return the features of a layer, made with the present β of the layers before it."""
        for w, beta in zip(self.w[:layer], self.beta, strict=False):
            x = (x @ w - c @ beta[: self.confounds]).tanh()
        return x @ self.w[layer]
