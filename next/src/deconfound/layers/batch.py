"""Metadata on their way into a layer: checked, whitened and summed once for all layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import ShapeError
from deconfound.layers.arithmetic import Moments, identity_like, positive
from deconfound.layers.environment import full_precision, sum_over_processes, widest_float

Metadata = Tensor | NDArray[np.floating]


@dataclass(frozen=True)
class WhitenedBatch:
    """Metadata of one training batch, prepared once per forward pass and shared by all layers.

    Attributes:
        metadata: M = [C, L] as the design encodes it, shape `(n, p)`.
        confounds: C in whitened coordinates, shape `(n, q_C)`: what β_C multiplies.
        regressors: R = [z_C, z_L, 1], shape `(n, q)`: what β is fitted on. z_C is the part of the
            confounds that the labels do not explain.
        weighted: W R, shape `(n, q)`: each row times its weight.
        gram: RᵀWR over all processes, shape `(q, q)`.
        rows: Σw over all processes, the number of samples that β is fitted on. It is the last entry
            of the Gram matrix, because R ends with ones.
        max_step: The largest stable step of gradient descent on the penalty, 1 / λ_max(RᵀWR),
            by an upper bound of λ_max.
        has_weights: Whether rows have weights other than 1.
    """

    metadata: Tensor
    confounds: Tensor
    regressors: Tensor
    weighted: Tensor
    gram: Tensor
    rows: Tensor
    max_step: Tensor
    has_weights: bool

    def cross(self, features: Tensor) -> Tensor:
        """Return RᵀWf over all processes, shape `(q, d)`, for features `(n, d)`."""
        if self.has_weights:
            # A row of weight 0 may hold features that are not finite.
            features = torch.where(self.weighted[:, -1:] == 0, 0.0, features)
        (cross,) = sum_over_processes(self.weighted.T @ features)
        return cross

    def exact_moments(self, features: Tensor) -> Moments:
        """Return the moments of features `(n, d)` with a Gram matrix in double precision."""
        wide = widest_float(self.weighted)
        (gram,) = sum_over_processes(self.weighted.to(wide).T @ self.regressors.to(wide))
        return Moments(gram, self.cross(features))


@dataclass(frozen=True)
class Whitening:
    """The two linear maps of a design, from encoded metadata [C | L] to whitened coordinates.

    Attributes:
        to_confounds: Shape `(p_C, q_C)`.
        to_regressors: Shape `(p, q − 1)`; the column of ones is appended.
    """

    to_confounds: Tensor
    to_regressors: Tensor

    def whiten_confounds(self, metadata: Tensor) -> Tensor:
        """Return C, shape `(n, q_C)`. The label columns are cut off first and not read."""
        metadata = metadata.to(self.to_confounds)
        with full_precision(metadata.device.type):
            return metadata[:, : self.to_confounds.shape[0]] @ self.to_confounds

    def whiten(self, metadata: Tensor, weight: Tensor | None) -> WhitenedBatch:
        """Prepare a training batch from checked metadata `(n, p)` and row weights `(n,)`."""
        confounds = self.whiten_confounds(metadata)
        metadata = metadata.to(self.to_regressors)
        with full_precision(metadata.device.type):
            ones = metadata.new_ones(metadata.shape[0], 1)
            regressors = torch.cat([metadata @ self.to_regressors, ones], dim=1)
            weighted = regressors
            if weight is not None:
                weighted = regressors * weight.to(regressors).unsqueeze(1)
            (gram,) = sum_over_processes(weighted.T @ regressors)
            rows = gram[-1, -1]
            return WhitenedBatch(
                metadata=metadata,
                confounds=confounds,
                regressors=regressors,
                weighted=weighted,
                gram=gram,
                rows=rows,
                max_step=_max_step(gram, rows),
                has_weights=weight is not None,
            )


def _max_step(gram: Tensor, rows: Tensor) -> Tensor:
    """Return 1 / min(‖G‖_F, Σw + ‖G − Σw I‖_F), which is at most 1 / λ_max(G).

    The first bound is exact for one sample, the second for a white batch. An eigenvalue solver
    would synchronise a GPU at each step.
    """
    distance_from_white = torch.linalg.matrix_norm(gram - rows * identity_like(gram))
    bound = torch.minimum(torch.linalg.matrix_norm(gram), rows + distance_from_white)
    return 1 / positive(bound)


def check_metadata(metadata: object, design: Design, rows: int | None, *, training: bool) -> Tensor:
    """Return metadata as a tensor `(n, p)`, or raise an error that shows what to write.

    In training all columns must be finite, in evaluation only the confounds. On an accelerator this
    check would synchronise every step. There the layers skip such batches and count them.

    Args:
        metadata: What the user passed.
        design: The design that should have encoded it.
        rows: The number of samples, or None where it is not known yet.
        training: Whether the label columns are read as well.
    """
    if isinstance(metadata, np.ndarray) and metadata.dtype.kind == "f":
        native = metadata.dtype.newbyteorder("=")
        metadata = torch.from_numpy(np.ascontiguousarray(metadata, dtype=native))
    if not isinstance(metadata, Tensor):
        given = "None" if metadata is None else f"a {type(metadata).__name__}"
        raise ShapeError(
            f"metadata must be the array that design.encode returns; got {given}. "
            "Write metadata=design.encode(rows)."
        )
    columns = design.whitening.shape[0]
    if metadata.ndim != 2 or metadata.shape[1] != columns or not metadata.is_floating_point():
        raise ShapeError(
            f"metadata must be floating-point numbers of shape (n, {columns}), one column for each "
            f"of {', '.join(design.names)}; got {metadata.dtype} of shape "
            f"{tuple(metadata.shape)}. Write metadata=design.encode(rows)."
        )
    if rows is not None and metadata.shape[0] != rows:
        raise ShapeError(
            f"metadata must have one row per sample; got {metadata.shape[0]} rows for {rows} "
            "samples. Encode exactly the table rows of this batch."
        )
    if metadata.is_cpu and not torch.compiler.is_compiling():
        _check_finite(metadata, design, training)
    return metadata


def _check_finite(metadata: Tensor, design: Design, training: bool) -> None:
    columns = design.columns if training else design.confound_columns
    is_finite = metadata[:, : len(columns)].isfinite()
    try:
        if bool(is_finite.all()):
            return
    except RuntimeError:  # torch.func.vmap cannot branch on values.
        return
    bad = [
        column for column, good in zip(columns, is_finite.all(0).tolist(), strict=True) if not good
    ]
    names = ", ".join(column.name for column in bad)
    rows = is_finite.all(1).logical_not().nonzero().flatten().tolist()
    where = f"row {rows[0]}" if len(rows) == 1 else f"{len(rows)} rows, the first is {rows[0]}"
    if all(column.role == "keep" for column in bad):
        raise ShapeError(
            "In training every row needs its labels (keep columns); got NaN or infinity in "
            f"{names} ({where}). Encode a table that has these columns and leave rows without "
            "labels out, or call model.eval() for inference."
        )
    raise ShapeError(
        f"metadata must be finite; got NaN or infinity in {names} ({where}). "
        "Correct the table, or use Design(…, unseen='mean') for missing values."
    )


def check_weight(weight: object, rows: int) -> Tensor:
    """Return row weights as a tensor `(n,)`, or raise an error that shows what to write."""
    try:
        values = torch.as_tensor(weight if isinstance(weight, Tensor) else np.asarray(weight))
    except TypeError:
        raise ShapeError(
            f"weight must be one number per sample, shape ({rows},); got a {type(weight).__name__}."
        ) from None
    values = values.detach()
    if values.shape != (rows,) or values.is_complex():
        raise ShapeError(
            f"weight must be one number per sample, shape ({rows},); got {values.dtype} of shape "
            f"{tuple(values.shape)}."
        )
    if values.is_cpu and not torch.compiler.is_compiling():
        refused = ~(values.isfinite() & (values >= 0))
        if bool(refused.any()):
            first = int(refused.nonzero()[0])
            raise ShapeError(
                f"weight must be 0 or more and finite; got {values[first].item()} in row {first}."
            )
    return values
