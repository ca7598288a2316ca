"""What every layer shares: the shapes, the metadata, eval, and the rules about when state may change."""

from __future__ import annotations

import json
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.errors import DeconfoundError, ShapeError
from deconfound.layers import torch_private
from deconfound.layers.checkpoint import FORMAT, Share, read_state, upgrade, warn_of_old_format, write_state
from deconfound.layers.functional import residualize
from deconfound.layers.pmdn import kernels
from deconfound.layers.shapes import FeatureShape, sizes_of
from deconfound.layers.tensors import (
    full_precision,
    gather_over_processes,
    in_memory_order,
    in_rows,
    like_memory,
    rows_in_memory,
)
from deconfound.layers.whitened import (
    Metadata,
    WhitenedBatch,
    as_tensor,
    as_weights,
    refuse_nan,
    whiten,
    whitening_maps,
)


class MetadataLayer(nn.Module, ABC):
    """Base of the layers that subtract from features what the confounds explain: `r = f − c β_C`.

    Subclasses say how β is estimated in training; eval, shapes, types and state are here. β is kept in whitened
    units with shape `(q, *coefficient_shape)`: rows for the confounds, for keep, and the intercept, which is
    never subtracted. Everything learned is a buffer or a parameter, none of it depends on a batch size, and
    the design travels in the state dict. `skipped` counts batches that taught nothing because features or metadata
    were not finite.

    Args:
        design: A fitted design.
        feature_shape: The shape of one sample's features. With `share="positions"` the shared sizes may be
            None: they may vary from batch to batch.
        share: None gives every feature its own coefficients, as in the paper. "positions" gives one per
            channel: needed for inputs of varying size, and much smaller.
        channel_axis: Where the channels are, counting the batch as axis 0; read only with `share`. 1 for
            images, -1 for sequences.
    """

    # Whether eval reads the confounds; without them such a layer leaves features as they are.
    reads_confounds: ClassVar[bool] = True
    beta: Tensor
    regressor_map: Tensor
    confound_map: Tensor
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
        self.feature_shape = sizes_of(feature_shape)
        self.share = share
        self.channel_axis = channel_axis
        self.shape = FeatureShape(self.feature_shape, share, channel_axis)
        self.coefficient_shape = self.shape.coefficients()
        self.updating = True
        self.refitter: Callable[[Tensor, WhitenedBatch], Tensor] | None = None
        self.reports_old_format = True
        self._agreed = False  # the processes of a distributed run, on design and shape
        self._read_design()
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64))

    @abstractmethod
    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        """The residual of `x`, `(n, d)` or `(n, d, positions)`, while learning β from it."""

    @final
    def _beta(self) -> Tensor:
        """β in whitened units, `(q, d)`, as eval uses it."""
        return in_rows(self.beta)

    @final
    @torch.no_grad()
    def set_beta(self, beta: Tensor) -> None:
        """Let eval use these coefficients, `(q, d)` in whitened units; training goes on from them."""
        if beta.numel() != self.beta.numel():
            raise ShapeError(f"beta must have shape {tuple(self._beta().shape)}; got {tuple(beta.shape)}.")
        self.beta.copy_(beta.reshape(self.beta.shape))

    def forward(self, x: Tensor, metadata: Metadata | None, fit_on: Any = None, weight: Any = None) -> Tensor:
        """Subtract the confounds' part from the features.

        Args:
            x: `(n, *feature_shape)`.
            metadata: What `design.encode` returns for these rows. None is allowed in eval and means the
                population mean, for which nothing is subtracted.
            fit_on: One boolean per row: which rows β is learned from (controls only, say). All rows are
                normalised. Read in training only.
            weight: One number of 0 or more per row: how many samples it counts for when β is learned; 2 counts like
                two such rows. Weights of mean 1 leave steps, ridge and priors what they are. Read in training only.
        """
        self.shape.check(x)
        if metadata is None:
            if self.training:
                raise ShapeError("metadata must be given in training; got None. Write metadata=design.encode(rows).")
            return self.normalise(x, None)
        tensor = as_tensor(metadata, self.design, x.shape[0])
        refuse_nan(tensor, self.design, self.training)
        weights = as_weights(weight, fit_on, x.shape[0], x.device) if self.training else None
        return self.normalise(x, self.whiten(tensor.to(x.device), weights))

    @final
    def whiten(self, metadata: Tensor, weights: Tensor | None = None) -> WhitenedBatch:
        """Checked metadata in the units of the arithmetic; layers of one design can share the result."""
        with full_precision(metadata.device):
            return whiten(metadata, self.regressor_map, self.confound_map, self.training, weights)

    @final
    def normalise(self, x: Tensor, batch: WhitenedBatch | None) -> Tensor:
        """`forward` after the checks; None stands for the population mean."""
        if batch is None and self.reads_confounds:
            return x
        if self.training and batch is not None and not batch.traced and torch_private.in_functorch():
            raise DeconfoundError(
                "a layer in training must run outside of torch.func transforms (vmap, grad, jvp…), which cannot keep "
                "what it learns; got one inside. Call model.eval() first, or use torch.autograd."
            )
        if self.training and not self._agreed and batch is not None and not batch.alone:
            self._check_processes()
        if torch.is_autocast_enabled(x.device.type):
            with full_precision(x.device):
                return self._normalised(x, batch)
        return self._normalised(x, batch)

    def _normalised(self, x: Tensor, batch: WhitenedBatch | None) -> Tensor:
        if kernels.possible(x) and batch is not None and self.reads_confounds and self.refitter is None:
            fused = self._fused(x, batch) if kernels.usable(x, self.beta) else None
            if fused is not None:
                return fused
        kind = self.confound_map.dtype
        flat = x if x.ndim == 2 else self.shape.flatten(x)
        flat = flat if flat.dtype == kind else flat.to(kind)
        if batch is not None and batch.fits:
            out = (self.refitter or self._train)(flat, batch)
        else:
            out = self._infer(flat, batch)
        out = out if out.dtype == x.dtype else out.to(x.dtype)
        return out if x.ndim == 2 else self.shape.unflatten(out, x)

    def _infer(self, x: Tensor, batch: WhitenedBatch | None) -> Tensor:
        """The residual of `x` in eval."""
        assert batch is not None
        return residualize(x, batch.confounds, self._beta()[: batch.confounds.shape[1]])

    def _fused(self, x: Tensor, batch: WhitenedBatch) -> Tensor | None:
        """The same residual on features as they are in type and memory, where kernels do it in one pass."""
        if batch.fits or self.share is not None:
            return None
        flat, channels = rows_in_memory(x)
        beta = in_memory_order(self._beta()[: batch.confounds.shape[1]], channels)
        return like_memory(residualize(flat, batch.confounds, beta), x, channels)

    def coefficients(self) -> dict[str, Tensor]:
        """β per confound column, in the user's own units: what one year of age adds to each feature.

        A categorical column has one entry per level, the difference from its reference level.
        """
        columns = self.design.confound_columns
        directions = self.design.confound_directions
        white = self._beta()[:directions].detach()
        standardised = self.confound_map @ white
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
        """Format, design and shapes; see `checkpoint`."""
        spec = {
            "design": self.design.to_dict(),
            "feature_shape": self.feature_shape,
            "share": self.share,
            "channel_axis": self.channel_axis,
        }
        return write_state(spec)

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the design of the checkpoint."""
        self.design = read_state(state).design
        self._read_design()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take over a checkpoint; one of an older format keeps its coefficients, and the rest begins anew."""
        if prefix + "_extra_state" in state_dict:
            found = read_state(state_dict[prefix + "_extra_state"])
            if found.format < FORMAT:
                self._upgrade(state_dict, prefix)
                if self.reports_old_format:
                    warn_of_old_format()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _upgrade(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Turn what an older release saved for this layer into what is saved now."""
        upgrade(state_dict, prefix, self.state_dict(prefix=prefix))

    def _read_design(self) -> None:
        """Keep the constants of the design; in their old place, which a captured CUDA graph goes on reading."""
        like = self.regressor_map if "regressor_map" in self._buffers else torch.empty(0)
        maps = zip(("regressor_map", "confound_map"), whitening_maps(self.design, like.dtype, like.device), strict=True)
        for name, value in (*maps, *self._constants(like).items()):
            held = self._buffers.get(name)
            if held is not None and held.shape == value.shape and held.device == value.device:
                held.copy_(value)
            else:
                self.register_buffer(name, value, persistent=False)

    def _constants(self, like: Tensor) -> dict[str, Tensor]:
        """Further constants of the design that a kind of layer reads, in the type and on the device of `like`."""
        return {}

    @classmethod
    def coefficient_rows(cls, design: Design) -> int:
        """How many numbers eval keeps for each feature."""
        return int(design.whitening.shape[1]) + 1

    @classmethod
    def least_features(cls, design: Design) -> int:
        """How many features a place must have for this kind of layer to leave any."""
        return 1

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and cast, but keep statistics in float32 at least: small steps vanish in half precision.

        And one row after the other, whatever order a network's images are asked for: they are looked at as `(q, d)`.
        """

        def careful(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            half = result.is_floating_point() and result.dtype.itemsize < 4  # small steps vanish in half precision
            return (tensor.to(result.device) if half else result).contiguous()

        super()._apply(careful, recurse)
        self._read_design()
        return self

    @property
    def _directions(self) -> int:
        """The number q of regressors: white directions and the intercept."""
        return self.regressor_map.shape[1]

    @property
    def _features(self) -> int:
        """The number d of features that have coefficients of their own."""
        return math.prod(self.coefficient_shape)

    def _may_update(self, batch: WhitenedBatch) -> bool:
        """Whether this forward may change state: not when frozen, nor when backward recomputes activations."""
        return self.updating and (batch.traced or not torch_private.in_backward())

    def _count_skip(self, finite: Tensor | bool) -> None:
        if finite is not True:
            self.skipped.add_(1 if finite is False else (~finite).to(self.skipped.dtype))

    def _check_processes(self) -> None:
        """One error on every process if they do not hold the same layer: their sums would be of different things."""
        spec = json.dumps([self.design.to_dict(), type(self).__name__, list(self.beta.shape)], sort_keys=True)
        mine = torch.tensor([zlib.crc32(spec.encode()), self.beta.numel()], device=self.beta.device)
        if any(not torch.equal(mine, theirs) for theirs in gather_over_processes(mine)):
            raise DeconfoundError(
                "the processes of a distributed run must hold the same layer; got different designs or feature shapes. "
                "Fit the design once, on all training rows, and build the network from the same options everywhere."
            )
        self._agreed = True
