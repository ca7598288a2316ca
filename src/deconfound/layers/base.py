"""What every layer shares: the shapes, the metadata, eval, and the rules about when state may change."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Self, final

import torch
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.errors import OptionError, ShapeError
from deconfound.layers.functional import residualize
from deconfound.layers.memory import in_memory, like_memory
from deconfound.layers.pmdn import kernels
from deconfound.layers.pmdn.kernels.order import in_memory_order
from deconfound.layers.precision import full_precision
from deconfound.layers.rows import Metadata, Rows, as_mask, as_tensor, prepare, refuse_nan

Share = Literal["positions"]


class MetadataLayer(nn.Module, ABC):
    """Base of the layers that subtract from features what the confounds explain: `r = f − c β_C`.

    Subclasses say how β is estimated in training; eval, shapes, types and state are here. β is kept in white
    units with shape `(q, *coefficient_shape)`: rows for the confounds, for keep, and the intercept, which is
    never subtracted. Everything learned is a buffer or a parameter, none of it depends on a batch size, and
    the design travels in the state dict.

    Args:
        design: A fitted design.
        feature_shape: The shape of one sample's features. With `share="positions"` the shared sizes may be
            None: they may vary from batch to batch.
        share: None gives every feature its own coefficients, as in the paper. "positions" gives one per
            channel: needed for inputs of varying size, and much smaller.
        channel_axis: Where the channels are, counting the batch as axis 0; read only with `share`. 1 for
            images, -1 for sequences.
    """

    beta: Tensor
    whitening: Tensor
    skipped: Tensor

    def __init__(
        self,
        design: Design,
        feature_shape: int | Sequence[int | None],
        *,
        share: Share | None = None,
        channel_axis: int = 1,
    ) -> None:
        super().__init__()
        self.design = design
        self.feature_shape = (feature_shape,) if isinstance(feature_shape, int) else tuple(feature_shape)
        self.share = share
        self.channel_axis = channel_axis
        self.coefficient_shape = self._coefficient_shape()
        self.updating = True
        self.refitter: Callable[[Tensor, Rows], Tensor] | None = None
        self._read_design()
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64))

    @abstractmethod
    def _train(self, x: Tensor, rows: Rows) -> Tensor:
        """The residual of `x`, `(n, d)` or `(n, d, positions)`, while learning β from it."""

    @abstractmethod
    def _beta(self) -> Tensor:
        """β in white units, `(q, d)`, as eval uses it."""

    @final
    @torch.no_grad()
    def set_beta(self, beta: Tensor) -> None:
        """Let eval use these coefficients, `(q, d)` in white units; training goes on from them."""
        if beta.numel() != self.beta.numel():
            raise ShapeError(f"beta must have shape {tuple(self._beta().shape)}; got {tuple(beta.shape)}.")
        self.beta.copy_(beta.reshape(self.beta.shape))

    def forward(self, x: Tensor, metadata: Metadata | None, fit_on: Any = None) -> Tensor:
        """Subtract the confounds' part from the features.

        Args:
            x: `(n, *feature_shape)`.
            metadata: What `design.encode` returns for these rows. None is allowed in eval and means the
                population mean, for which nothing is subtracted.
            fit_on: One boolean per row: which rows β is learned from (controls only, say). All rows are
                normalised. Read in training only.
        """
        self._check_features(x)
        if metadata is None:
            if self.training:
                raise ShapeError("metadata must be given in training; got None. Write metadata=design.encode(rows).")
            return x
        tensor = as_tensor(metadata, self.design, x.shape[0])
        refuse_nan(tensor, self.design, self.training)
        mask = as_mask(fit_on, x.shape[0], x.device) if self.training else None
        return self.normalise(x, self.prepare(tensor.to(x.device), mask))

    @final
    def prepare(self, metadata: Tensor, fit_on: Tensor | None = None) -> Rows:
        """Checked metadata in the units of the arithmetic; layers of one design can share the result."""
        with full_precision(metadata.device):
            return prepare(
                metadata,
                self.whitening,
                len(self.design.confound_columns),
                self.design.confound_directions,
                self.training,
                fit_on,
            )

    @final
    def normalise(self, x: Tensor, rows: Rows) -> Tensor:
        """`forward` after the checks."""
        with full_precision(x.device):
            if self.refitter is None and kernels.usable(x, self.beta):
                fused = self._fused(x, rows)
                if fused is not None:
                    return fused
            flat = self._flatten(x)
            wide = flat.to(torch.promote_types(flat.dtype, self.whitening.dtype))
            if rows.fit is None:
                confound_part = self._beta()[: rows.removal.shape[1]]
                out = residualize(wide, rows.removal, confound_part)
            else:
                out = (self.refitter or self._train)(wide, rows)
            return self._unflatten(out.to(x.dtype), x)

    def _fused(self, x: Tensor, rows: Rows) -> Tensor | None:
        """The same residual on features as they are in type and memory, where kernels do it in one pass."""
        if rows.fit is not None or self.share is not None:
            return None
        flat, channels = in_memory(x)
        beta = in_memory_order(self._beta()[: rows.removal.shape[1]], channels)
        return like_memory(residualize(flat, rows.removal, beta), x, channels)

    def coefficients(self) -> dict[str, Tensor]:
        """β per confound column, in the user's own units: what one year of age adds to each feature.

        A categorical column has one entry per level, the difference from its reference level.
        """
        columns = self.design.confound_columns
        directions = self.design.confound_directions
        white = self._beta()[:directions].detach()
        standardised = self.whitening[: len(columns), :directions] @ white
        return {
            column.name: (standardised[index] / column.unit).reshape(self.coefficient_shape)
            for index, column in enumerate(columns)
            if column.used
        }

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        shape = "×".join("?" if size is None else str(size) for size in self.feature_shape)
        shared = ", share='positions'" if self.share else ""
        return f"{shape}, confounds={[str(term) for term in self.design.confounds]}{shared}"

    def get_extra_state(self) -> Tensor:
        """The design and the shapes, as the bytes of their JSON: a tensor, so that any checkpoint format carries it."""
        spec = {
            "design": self.design.to_dict(),
            "feature_shape": self.feature_shape,
            "share": self.share,
            "channel_axis": self.channel_axis,
        }
        return torch.frombuffer(bytearray(json.dumps(spec).encode()), dtype=torch.uint8).clone()

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the design of the checkpoint."""
        self.design = read_state(state).design
        self._read_design()

    def _read_design(self) -> None:
        device = self.whitening.device if "whitening" in self._buffers else torch.get_default_device()
        dtype = self.whitening.dtype if "whitening" in self._buffers else torch.get_default_dtype()
        matrix = torch.as_tensor(self.design.whitening, dtype=dtype, device=device)
        self.register_buffer("whitening", matrix, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and cast, but keep statistics in float32 at least: small steps vanish in half precision.

        And one row after the other, whatever order a network's images are asked for: they are looked at as `(q, d)`.
        """

        def careful(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            half = result.is_floating_point() and result.dtype.itemsize < 4
            return (tensor.to(result.device) if half else result).contiguous()

        super()._apply(careful, recurse)
        self._read_design()
        return self

    @property
    def _directions(self) -> int:
        """The number q of regressors: white directions and the intercept."""
        return int(self.design.whitening.shape[1]) + 1

    @property
    def _features(self) -> int:
        """The number d of features that have coefficients of their own."""
        return math.prod(self.coefficient_shape)

    def _may_update(self) -> bool:
        """Whether this forward may change state: not when frozen, nor when backward recomputes activations."""
        if torch.compiler.is_compiling():
            return self.updating
        return self.updating and torch._C._current_graph_task_id() == -1

    def _count_skip(self, finite: Tensor) -> None:
        self.skipped.add_((~finite).to(self.skipped.dtype))

    def _coefficient_shape(self) -> tuple[int, ...]:
        if self.share not in (None, "positions"):
            raise OptionError(f"share must be None or 'positions'; got {self.share!r}.")
        if self.share == "positions":
            rank = len(self.feature_shape) + 1
            if not (1 <= self.channel_axis < rank or -rank < self.channel_axis <= -1):
                raise OptionError(
                    f"channel_axis must be an axis of the features, 1 to {rank - 1}; got {self.channel_axis}."
                )
            sizes: tuple[int | None, ...] = (self.feature_shape[self.channel_axis % rank - 1],)
        else:
            sizes = self.feature_shape
        known = tuple(size for size in sizes if size is not None)
        if len(known) < len(sizes) or any(size < 1 for size in known):
            raise OptionError(
                f"feature_shape must be positive numbers; got {self.feature_shape}. "
                "Only sizes shared by share='positions' may be None."
            )
        return known

    def _check_features(self, x: Tensor) -> None:
        if not x.is_floating_point():
            raise ShapeError(f"features must be floating point; got {x.dtype}.")
        agrees = x.ndim == len(self.feature_shape) + 1 and all(
            expected in (None, actual) for expected, actual in zip(self.feature_shape, x.shape[1:], strict=True)
        )
        if not agrees:
            wanted = ", ".join("any" if size is None else str(size) for size in self.feature_shape)
            raise ShapeError(f"features must have shape (n, {wanted}); got {tuple(x.shape)}.")
        if x.shape[0] == 0:  # len() would fix the batch size of an exported model
            raise ShapeError("features must have at least one row; got none.")

    def _flatten(self, x: Tensor) -> Tensor:
        if self.share is None:
            return x.flatten(1)
        return x.movedim(self.channel_axis, 1).flatten(2) if x.ndim > 2 else x

    def _unflatten(self, flat: Tensor, like: Tensor) -> Tensor:
        if self.share is None or like.ndim == 2:
            return flat.reshape(like.shape)
        moved = like.movedim(self.channel_axis, 1)
        return flat.reshape(moved.shape).movedim(1, self.channel_axis)


class LayerState(NamedTuple):
    """What a checkpoint says about a layer besides its numbers."""

    design: Design
    feature_shape: tuple[int | None, ...]
    share: Share | None
    channel_axis: int


def read_state(state: Tensor) -> LayerState:
    """What `get_extra_state` wrote."""
    spec = json.loads(bytes(state.cpu().tolist()))
    design = Design.from_dict(spec["design"])
    return LayerState(design, tuple(spec["feature_shape"]), spec["share"], spec["channel_axis"])


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Run training-mode forwards of `model` without changing what its metadata layers have learned.

    Example:
        >>> import torch, deconfound as dc
        >>> design = dc.Design(confounds=["age"]).fit({"age": [61.0, 70.0, 78.0, 55.0]})
        >>> layer = dc.PMDN(design, 2)
        >>> with dc.frozen_statistics(layer):
        ...     _ = layer(torch.randn(4, 2), design.encode({"age": [61.0, 70.0, 78.0, 55.0]}))
        >>> layer.coefficients()["age"]
        tensor([0., 0.])
    """
    layers = [module for module in model.modules() if isinstance(module, MetadataLayer)]
    before = [layer.updating for layer in layers]
    for layer in layers:
        layer.updating = False
    try:
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.updating = value
