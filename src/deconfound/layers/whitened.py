"""Metadata on their way into a layer: checked, moved, and whitened with the design's matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.design import Design
from deconfound.design.table import as_array
from deconfound.errors import ShapeError
from deconfound.layers import torch_private
from deconfound.layers.functional import Moments, cross_products, eigenvalue_bound, positive
from deconfound.layers.tensors import Number, exact_type, number, on_host, processes, sum_over_processes

T = TypeVar("T")
Metadata = Tensor | NDArray[np.floating]


class WhitenedBatch:
    """One batch of metadata in whitened units; the layers of one design share it.

    Attributes:
        confounds: `c`, `(n, q_C)`: what is multiplied by β_C and subtracted.
        regressors: `R = [z_C, z_L, 1]`, `(n, q)`; None in eval.
        weights: `(n,)`, how many samples each row counts for in the fit; None when each counts once.
        weighted: R with each row times its weight, `(n, q)`.
        inputs_want_gradients: Whether the network's inputs require gradients, as for a saliency map.
        on_host: Whether code may look at its numbers; see `tensors.on_host`.
        alone: Whether no other process trains with this one.
        traced: Whether a compiler looks on.
    """

    def __init__(self, confounds: Tensor, regressors: Tensor | None = None, weights: Tensor | None = None) -> None:
        self.confounds = confounds
        self._regressors = regressors
        self.weights = weights
        rows = confounds if regressors is None else regressors
        self.weighted = rows if weights is None else rows * weights.unsqueeze(1)
        self.inputs_want_gradients = False
        self.on_host = on_host(confounds)
        self.alone = processes() == 1
        self.traced = torch.compiler.is_compiling()
        self._made: dict[str, tuple[object, Any]] = {}

    @property
    def fits(self) -> bool:
        """Whether there is anything to fit on: not in eval."""
        return self._regressors is not None

    @property
    def regressors(self) -> Tensor:
        """R, `(n, q)`."""
        assert self._regressors is not None
        return self._regressors

    def white_confounds(self) -> Tensor:
        """`z_C`, `(n, q_C)`: the columns of R that belong to the confounds."""
        return self.once("white confounds", self._white_confounds)

    def gram(self) -> Tensor:
        """`RᵀWR`, `(q, q)`, of the batch of all processes."""
        return self._totals()[0]

    def rows(self) -> Number:
        """`Σw`, how many samples take part in all processes."""
        return self._totals()[1]

    def largest_step(self) -> Number:
        """`1 / λmax` of `RᵀWR / Σw`, by an upper bound: with a longer step coefficients would overshoot."""
        return self.once("step", self._largest_step)

    def gram_norm(self) -> float:
        """`‖RᵀWR‖_F`, on the host only: a bound of λmax that costs less than the one of `largest_step`."""
        return self.once("norm", lambda: float(torch.linalg.vector_norm(self.gram()).item()))

    def moments(self, features: Tensor, exact: bool = False) -> Moments:
        """The moments of these features, `(n, d)`, in all processes; the Gram matrix in double precision if `exact`."""
        gram = self.once("exact", self._exact_gram) if exact else self.gram()
        return Moments(gram, self.cross(features), self.rows())

    def cross(self, features: Tensor) -> Tensor:
        """`RᵀWf`, `(q, d)`, of the batch of all processes."""
        (cross,) = sum_over_processes(cross_products(features, self.weighted))
        return cross

    def once(self, name: str, make: Callable[[], T], key: object = ()) -> T:
        """What a layer made of the metadata, for the next layer, unless that has another key, or None.

        A compiler must not see the dictionary change.
        """
        if key is None or self.traced:
            return make()
        held = self._made.get(name)
        if held is None or held[0] != key:
            held = self._made[name] = (key, make())
        made: T = held[1]
        return made

    def _white_confounds(self) -> Tensor:
        return self.regressors[:, : self.confounds.shape[1]].contiguous()

    def _largest_step(self) -> Number:
        gram, rows = self._totals()
        return 1 / eigenvalue_bound(gram / positive(rows))

    def _totals(self) -> tuple[Tensor, Number]:
        return self.once("totals", self._make_totals)

    def _make_totals(self) -> tuple[Tensor, Number]:
        weights, regressors = self.weights, self.regressors
        gram, n = torch.mm(self.weighted.T, regressors), float(regressors.shape[0])
        if weights is None and self.alone and self.on_host:
            return gram, n
        gram, rows = sum_over_processes(gram, gram.new_full((), n) if weights is None else weights.sum())
        return gram, number(rows)

    def _exact_gram(self) -> Tensor:
        kind = exact_type(self.regressors)
        (gram,) = sum_over_processes(self.weighted.to(kind).T @ self.regressors.to(kind))
        return gram


def as_tensor(metadata: object, design: Design, n: int) -> Tensor:
    """Metadata as a tensor `(n, p)`, or an error that says what to write."""
    if not isinstance(metadata, (Tensor, np.ndarray)):
        raise ShapeError(
            f"metadata must be the array or tensor that design.encode returns; got {type(metadata).__name__}. "
            "Write metadata=design.encode(rows)."
        )
    tensor = _tensor(metadata, "metadata")
    p = design.whitening.shape[0]
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


def _tensor(values: object, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if torch.compiler.is_compiling():  # which knows arrays, and no masked ones
        return torch.as_tensor(values)
    return torch.from_numpy(as_array(values, name))


def refuse_nan(metadata: Tensor, design: Design, training: bool) -> None:
    """Name the columns whose values are not finite where they are read: all in training, the confounds in eval.

    On an accelerator the look would make every step wait; there such batches are skipped and counted (`skipped`).
    """
    if metadata.device.type not in ("cpu", "meta") or torch.compiler.is_compiling():
        return
    if training and metadata.is_cpu and math.isfinite(metadata.sum().item()):  # one number tells for all of them
        return
    if not training and torch_private.in_functorch():  # whose tensors cannot be looked into
        return
    columns = design.columns if training else design.confound_columns
    finite = torch.isfinite(metadata[:, : len(columns)]).all(0).tolist()
    bad = [column for column, is_finite in zip(columns, finite, strict=True) if not is_finite]
    if not bad:
        return
    names = ", ".join(dict.fromkeys(column.name for column in bad))
    what = "NaN" if metadata.isnan().any() else "infinity"
    if all(column.role == "keep" for column in bad):
        raise ShapeError(
            f"training metadata must hold every keep column; got {what} in {names}. Encode a table that has "
            "these columns, or call model.eval() for inference."
        )
    raise ShapeError(f"metadata must be finite; got {what} in {names}. Write metadata=design.encode(rows).")


def as_weights(weight: object, fit_on: object, n: int, device: torch.device) -> Tensor | None:
    """`weight` and `fit_on` as one tensor of weights `(n,)`, or an error that says what to write."""
    weights = None
    if fit_on is not None:
        weights = _tensor(fit_on, "fit_on").to(device)
        if weights.dtype != torch.bool or weights.shape != (n,):
            raise ShapeError(
                f"fit_on must be one boolean per sample, shape ({n},); got {weights.dtype} of shape "
                f"{tuple(weights.shape)}. Write fit_on=(rows['dx'] == 'control')."
            )
    if weight is None:
        return weights
    given = _tensor(weight, "weight").to(device)
    if given.shape != (n,) or given.is_complex():
        raise ShapeError(
            f"weight must be one number per sample, shape ({n},); got {given.dtype} of shape {tuple(given.shape)}."
        )
    look = given.device.type == "cpu" and not torch.compiler.is_compiling()
    if look and given.is_floating_point() and not (torch.isfinite(given).all() and (given >= 0).all()):
        raise ShapeError(f"weight must be finite and not negative; got {given[(given < 0) | ~given.isfinite()][0]}.")
    given = given.detach()
    return given if weights is None else given * weights


def whiten(
    metadata: Tensor, regressor_map: Tensor, confound_map: Tensor, training: bool, weights: Tensor | None = None
) -> WhitenedBatch:
    """Turn standardised metadata into whitened regressors.

    Args:
        metadata: `(n, p)`, `[C | L]`.
        regressor_map: `(p + 1, q)`: the design's matrix with an empty column for the intercept, and below it the
            intercept's row.
        confound_map: `(p_C, q_C)`: the part of the matrix that turns C into `c`.
        training: Without it only C is read.
        weights: `(n,)`; None where each row counts once.
    """
    metadata = metadata.to(confound_map)
    columns = confound_map.shape[0]
    confounds = torch.mm(metadata if metadata.shape[1] == columns else metadata[:, :columns], confound_map)
    if not training:
        return WhitenedBatch(confounds)
    regressors = torch.addmm(regressor_map[-1], metadata, regressor_map[:-1])
    return WhitenedBatch(confounds, regressors, None if weights is None else weights.to(regressors))


def whitening_maps(design: Design, dtype: torch.dtype, device: torch.device | None) -> tuple[Tensor, Tensor]:
    """The two maps of `whiten`, which are constants of a design."""
    matrix = torch.as_tensor(design.whitening, dtype=dtype, device=device)
    p, directions = matrix.shape
    regressor_map = matrix.new_zeros(p + 1, directions + 1)
    regressor_map[:p, :directions] = matrix
    regressor_map[p, directions] = 1
    columns = len(design.confound_columns)
    return regressor_map, matrix[:columns, : design.confound_directions].contiguous()
