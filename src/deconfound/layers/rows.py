"""Metadata on their way into a layer: checked, moved, and turned into white regressors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import ShapeError

Metadata = Tensor | NDArray[np.floating]


@dataclass(frozen=True)
class Rows:
    """One batch of metadata in the units of the arithmetic.

    Attributes:
        removal: `c`, `(n, q_C)`: the confounds in white units, what is multiplied by β_C and subtracted.
        regressors: `R = [z_C, z_L, 1]`, `(n, q)`: what the features are regressed on; None in eval.
        weights: `(n,)`, 1 for rows that take part in the fit and 0 for the others; None when all do.
    """

    removal: Tensor
    regressors: Tensor | None
    weights: Tensor | None


def as_tensor(metadata: object, design: Design, n: int) -> Tensor:
    """Metadata as a tensor `(n, p)`, or an error that says what to write."""
    if not isinstance(metadata, Tensor | np.ndarray):
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
        return Rows(removal, None, None)
    ones = torch.ones_like(metadata[:, :1])
    regressors = torch.cat([metadata @ whitening, ones], dim=1)
    weights = None if fit_on is None else fit_on.to(whitening)
    return Rows(removal, regressors, weights)


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
