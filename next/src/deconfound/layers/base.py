"""What all layers share: shapes, metadata, evaluation, refit, and what a checkpoint holds."""

from __future__ import annotations

import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from operator import index
from typing import Self

import torch
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.errors import DeconfoundWarning, OptionError, ShapeError, TableError
from deconfound.layers.arithmetic import Moments, refit_coefficients, subtract_effect
from deconfound.layers.batch import (
    Metadata,
    WhitenedBatch,
    Whitening,
    check_metadata,
    check_weight,
)
from deconfound.layers.environment import full_precision, is_recomputing


class MetadataLayer(nn.Module, ABC):
    """Base of the layers that return `r = f − C β_C`.

    A subclass defines how β is learned in training. In evaluation β is constant and label columns
    are not read. Everything learned is a buffer or a parameter, does not depend on a batch size,
    and is saved together with the design.

    Args:
        design: A fitted design.
        shape: The shape of one sample's features, and of the coefficients. An axis of size 1 is
            shared: `(84,)` has one coefficient per feature, `(16, 28, 28)` one per pixel,
            `(16, 1, 1)` one per channel of an image, `(1, 768)` one per channel of a sequence.

    Attributes:
        beta: β in whitened coordinates, shape `(q, d)`: confounds, labels, intercept.
        skipped: The number of training batches from which some feature learned nothing, because it
            or the metadata were not finite.
    """

    beta: Tensor
    skipped: Tensor
    to_confounds: Tensor
    to_regressors: Tensor

    def __init__(self, design: Design, shape: int | Sequence[int]) -> None:
        super().__init__()
        if not isinstance(design, Design):
            raise OptionError(
                f"design must be a fitted Design; got a {type(design).__name__}. "
                "Write Design(confounds=[…], keep=[…]).fit(table)."
            )
        try:
            sizes = tuple(map(index, shape if isinstance(shape, Sequence) else [shape]))
        except TypeError:
            sizes = ()
        if not sizes or min(sizes) < 1:
            raise OptionError(f"shape must consist of positive whole numbers; got {shape!r}.")
        # A copy, so that fitting the user's design to another table does not change this layer.
        self.design = copy(design)
        self.shape = sizes
        self.is_updating = True
        self._register_whitening()
        self.register_buffer("skipped", torch.zeros(1, dtype=torch.int64))

    @abstractmethod
    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        """Learn from the features `x (n, …)` and return their residual."""

    def forward(self, x: Tensor, metadata: Metadata, weight: object = None) -> Tensor:
        """Remove the confounds from the features.

        Args:
            x: Features, shape `(n, …)`, which `(n, *shape)` broadcasts to.
            metadata: `design.encode(rows)` for the same n rows.
            weight: How many samples each row counts for when β is learned, shape `(n,)`. Rows of
                weight 0 do not influence β, but their confounds are removed as well. Read in
                training only.
        """
        rows = x.shape[0]
        checked = check_metadata(metadata, self.design, rows, training=self.training)
        if not self.training:
            return self.forward_whitened(x, self.whitening.whiten_confounds(checked))
        weights = None if weight is None else check_weight(weight, rows)
        return self.forward_whitened(x, self.whitening.whiten(checked, weights))

    def forward_whitened(self, x: Tensor, batch: WhitenedBatch | Tensor) -> Tensor:
        """Return the residual of `x`, like `forward`, for metadata that are whitened already.

        Args:
            x: Features, shape `(n, …)`.
            batch: A batch to learn from, or in evaluation the whitened confounds `(n, q_C)` alone.
        """
        self.check_features(x)
        # The residual is computed in the layer's precision and returned in that of the features.
        with full_precision(x.device.type):
            features = x.to(self.beta.dtype)
            if isinstance(batch, WhitenedBatch):
                residual = self._train(features, batch)
            else:
                residual = self.subtract_effect(features, batch)
            return residual.to(x.dtype)

    def subtract_effect(self, x: Tensor, confounds: Tensor) -> Tensor:
        """Return x − C β_C with the present β (Eq. 2)."""
        beta = self.beta[: confounds.shape[1]].detach()
        return subtract_effect(x, confounds, beta, self.shape)

    def pool(self, x: Tensor) -> Tensor:
        """Return features `(n, d)`, averaged over shared axes.

        One coefficient fits the mean of the positions exactly as it fits all positions at once.
        """
        axes = [axis for axis, size in enumerate(self.shape, start=1) if size < x.shape[axis]]
        return (x.mean(axes, keepdim=True) if axes else x).flatten(1)

    def refit(self, moments: Moments, prior: float = 0.0) -> None:
        """Fit β anew to the rows behind these moments, where the old β counts for `prior` rows."""
        with torch.no_grad():
            self.beta.copy_(refit_coefficients(self.beta, moments, prior))

    def coefficients(self) -> dict[str, Tensor]:
        """Return β by confound column, in the user's own units: the effect of one year of age.

        A categorical column has one entry for each level but its reference level.
        """
        columns = self.design.confound_columns
        effects = (self.to_confounds @ self.beta[: self.to_confounds.shape[1]]).detach()
        return {
            column.name: (effect / column.unit).reshape(self.shape)
            for column, effect in zip(columns, effects, strict=True)
            if column.is_used
        }

    @property
    def whitening(self) -> Whitening:
        """The maps from encoded metadata to whitened coordinates."""
        return Whitening(self.to_confounds, self.to_regressors)

    def check_features(self, x: Tensor) -> None:
        """Raise an error if the features have another shape or type than this layer expects."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            given = str(x.dtype) if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise ShapeError(f"features must be a floating-point tensor; got {given}.")
        sizes = x.shape[1:]
        fits = len(sizes) == len(self.shape) and all(
            own in (1, size) for own, size in zip(self.shape, sizes, strict=True)
        )
        if not fits or x.shape[0] == 0:
            expected = ", ".join("any" if size == 1 else str(size) for size in self.shape)
            raise ShapeError(
                f"features must have shape (n, {expected}) with n ≥ 1; got {tuple(x.shape)}."
            )

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        return f"{self.shape}, confounds={[str(term) for term in self.design.confounds]}"

    def get_extra_state(self) -> Tensor:
        """Return the design as bytes of JSON, which `weights_only=True` and safetensors load."""
        text = json.dumps(self.design.to_dict())
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the design of a checkpoint."""
        try:
            data = json.loads(bytes(state.cpu().numpy()).decode())
        except (ValueError, AttributeError) as error:
            raise TableError(
                "The design in this checkpoint cannot be read. Save the model again."
            ) from error
        if data == self.design.to_dict():
            return
        design = Design.from_dict(data)
        if design.whitening.shape != self.design.whitening.shape:
            raise ShapeError(
                f"The design of the checkpoint has the columns {', '.join(design.names)}; that of "
                f"the model has {', '.join(self.design.names)}. Make the model with the former: "
                "save design.to_dict() beside the state, and read it with Design.from_dict."
            )
        warnings.warn(
            "The design of the checkpoint differs from the model's and replaces it. "
            "Encode tables with model.design from now on.",
            DeconfoundWarning,
            stacklevel=2,
        )
        self.design = design
        self._register_whitening()

    @property
    def _may_learn(self) -> bool:
        return self.is_updating and not is_recomputing()

    @property
    def _size(self) -> tuple[int, int]:
        """The shape of β: q regressors, d features."""
        return self.to_regressors.shape[1] + 1, math.prod(self.shape)

    def _count_skip(self, is_finite: Tensor) -> None:
        self.skipped.add_(~is_finite)

    def _register_whitening(self) -> None:
        """Keep the design's maps in the precision and on the device of β."""
        matrix = torch.as_tensor(self.design.whitening)
        directions = self.design.confound_directions
        confounds = matrix[: len(self.design.confound_columns), :directions]
        like = self.beta.detach() if hasattr(self, "beta") else torch.empty(0)
        for name, value in (("to_confounds", confounds), ("to_regressors", matrix)):
            copy = value.to(like, copy=True).contiguous()
            self.register_buffer(name, copy, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and cast the layer, but keep its statistics in float32 at least."""

        def at_least_float32(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            is_half = result.is_floating_point() and result.dtype.itemsize < 4
            return tensor.to(result.device) if is_half else result

        super()._apply(at_least_float32, recurse)
        # The maps come from the design in double precision, not from their cast copies.
        if not self.beta.is_meta:
            self._register_whitening()
        return self


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Run forward passes in training mode without changing what the layers have learned.

    Example:
        >>> import torch, deconfound as dc
        >>> from deconfound.layers import frozen_statistics
        >>> table = {"age": [61.5, 70.2, 78.9, 55.4]}
        >>> design = dc.Design(confounds=["age"]).fit(table)
        >>> layer = dc.PMDN(design, 2)
        >>> with frozen_statistics(layer):
        ...     residual = layer(torch.randn(4, 2), design.encode(table))
        >>> layer.coefficients()["age"]
        tensor([0., 0.])
    """
    layers = [module for module in model.modules() if isinstance(module, MetadataLayer)]
    before = [layer.is_updating for layer in layers]
    for layer in layers:
        layer.is_updating = False
    try:
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.is_updating = value
