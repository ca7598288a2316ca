"""Metadata on their way into a layer: checked, moved, and turned into white regressors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.errors import ShapeError
from deconfound.layers.functional import Moments, cross_products

Metadata = Tensor | NDArray[np.floating]


@dataclass(frozen=True)
class Rows:
    """One batch of metadata in the units of the arithmetic.

    Attributes:
        removal: `c`, `(n, q_C)`: the confounds in white units, what is multiplied by β_C and subtracted.
        fit: What the features are regressed on; None in eval.
    """

    removal: Tensor
    fit: Fit | None

    @property
    def regressors(self) -> Tensor | None:
        """`R = [z_C, z_L, 1]`, `(n, q)`; None in eval."""
        return None if self.fit is None else self.fit.regressors

    @property
    def weights(self) -> Tensor | None:
        """`(n,)`, 1 for rows that take part in the fit and 0 for the others; None when all do."""
        return None if self.fit is None else self.fit.weights


@dataclass(frozen=True)
class Fit:
    """What the regression of a batch needs beside its features; layers of one design share it.

    Attributes:
        regressors: `R = [z_C, z_L, 1]`, `(n, q)`.
        weights: `(n,)`, 1 for rows that take part in the fit and 0 for the others; None when all do.
        weighted: R with rows of weight 0 put to zero, `(n, q)`.
        gram: `RᵀR` over the rows that take part, `(q, q)`.
        count: How many rows take part, a scalar.
        pull: `z_C`, `(n, q_C)`, with rows weighted to mean 1: how a row's features move β.
    """

    regressors: Tensor
    weights: Tensor | None
    weighted: Tensor
    gram: Tensor
    count: Tensor
    pull: Tensor

    def directions(self, groups: Sequence[int]) -> Tensor:
        """R with the part of each group of columns scaled to length one in each row, times the weights."""
        if "_directions" in self.__dict__:
            found: Tensor = self.__dict__["_directions"]
            return found
        parts = self.regressors.split(list(groups), dim=1)
        found = torch.cat([nn.functional.normalize(part, dim=1) for part in parts], dim=1)
        found = found if self.weights is None else found * self.weights.unsqueeze(1)
        if not torch.compiler.is_compiling():
            self.__dict__["_directions"] = found  # layers of one design have the same groups
        return found

    def moments(self, features: Tensor) -> Moments:
        """The moments of these features, `(n, d)`."""
        return Moments(self.gram, cross_products(features, self.weighted), self.count)


def as_tensor(metadata: object, design: Design, n: int) -> Tensor:
    """Metadata as a tensor `(n, p)`, or an error that says what to write."""
    if not isinstance(metadata, (Tensor, np.ndarray)):
        raise ShapeError(
            f"metadata must be the array or tensor that design.encode returns; got {type(metadata).__name__}. "
            "Write metadata=design.encode(rows)."
        )
    tensor = torch.as_tensor(metadata)
    p = len(design.names)
    if tensor.ndim != 2 or tensor.shape[1] != p:
        raise ShapeError(
            f"metadata must have shape (n, {p}), one column for each of {', '.join(design.names)}; "
            f"got {tuple(tensor.shape)}. Write metadata=design.encode(rows)."
        )
    if tensor.shape[0] != n:
        raise ShapeError(
            f"metadata must have one row per sample; got {tensor.shape[0]} rows for {n} samples. "
            "Encode the table rows of exactly this batch."
        )
    if not tensor.is_floating_point():
        raise ShapeError(f"metadata must be floating point; got {tensor.dtype}. Write metadata=design.encode(rows).")
    return tensor


def refuse_nan(metadata: Tensor, design: Design, training: bool) -> None:
    """Name the columns whose values are NaN where they are read: all in training, the confounds in eval.

    On an accelerator the look would make every step wait, so there a NaN shows as a NaN output instead.
    """
    if metadata.device.type not in ("cpu", "meta") or torch.compiler.is_compiling():
        return
    columns = design.columns if training else design.confound_columns
    found = torch.isnan(metadata[:, : len(columns)]).any(0).tolist()
    bad = [column for column, is_nan in zip(columns, found, strict=True) if is_nan]
    if not bad:
        return
    names = ", ".join(dict.fromkeys(column.name for column in bad))
    if all(column.role == "keep" for column in bad):
        raise ShapeError(
            f"training metadata must hold every keep column; got NaN in {names}. Encode a table that has "
            "these columns, or call model.eval() for inference."
        )
    raise ShapeError(f"metadata must not be NaN; got NaN in {names}. Write metadata=design.encode(rows).")


def prepare(
    metadata: Tensor,
    whitening: Tensor,
    confounds: int,
    confound_directions: int,
    training: bool,
    fit_on: Tensor | None,
) -> Rows:
    """Turn standardised metadata into white regressors.

    Args:
        metadata: `(n, p)`, `[C | L]`.
        whitening: `(p, q − 1)`, of the design.
        confounds: How many columns of metadata are C.
        confound_directions: q_C.
        training: Without it only C is read.
        fit_on: `(n,)` booleans; None for all rows.
    """
    metadata = metadata.to(whitening)
    removal = metadata[:, :confounds] @ whitening[:confounds, :confound_directions]
    if not training:
        return Rows(removal, None)
    ones = torch.ones_like(metadata[:, :1])
    regressors = torch.cat([metadata @ whitening, ones], dim=1)
    pull = regressors[:, :confound_directions]
    if fit_on is None:
        count = regressors.new_full((), float(len(regressors)))
        return Rows(removal, Fit(regressors, None, regressors, regressors.T @ regressors, count, pull))
    weights = fit_on.to(whitening)
    weighted = regressors * weights.unsqueeze(1)
    count = weights.sum()
    share = weights / (count / len(weights)).clamp(min=1e-6)
    return Rows(removal, Fit(regressors, weights, weighted, weighted.T @ regressors, count, pull * share.unsqueeze(1)))


def as_mask(fit_on: object, n: int, device: torch.device) -> Tensor | None:
    """`fit_on` as a boolean tensor `(n,)`, or an error that says what to write."""
    if fit_on is None:
        return None
    mask = torch.as_tensor(fit_on, device=device)
    if mask.dtype != torch.bool or mask.shape != (n,):
        raise ShapeError(
            f"fit_on must be one boolean per sample, shape ({n},); got {mask.dtype} of shape "
            f"{tuple(mask.shape)}. Write fit_on=(rows['dx'] == 'control')."
        )
    return mask
