"""One inserted layer: a forward hook that normalises what a module returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from deconfound.design import Design
from deconfound.errors import DeconfoundError, ShapeError
from deconfound.layers import MetadataLayer, torch_private
from deconfound.layers.checkpoint import read_state
from deconfound.surgery.carrier import Carrier, Pass
from deconfound.surgery.outputs import features_of, with_features
from deconfound.surgery.plan import Place, shaped


class Insertion:
    """A callable that torch runs as the hook of one module; it copies and pickles with the network."""

    def __init__(
        self,
        place: Place,
        design: Design,
        kind: type[MetadataLayer],
        options: dict[str, Any],
        carrier: Carrier,
    ) -> None:
        self.place = place
        self.design = design
        self.kind = kind
        self.options = options
        self.carrier = carrier
        self.layer: MetadataLayer | None = None
        self.after: Callable[[Tensor], Tensor] | None = None  # what a model adapted to a new site does to residuals
        self._handle: RemovableHandle | None = None

    def build(self) -> MetadataLayer:
        """Make the layer for the shape of this place."""
        place = self.place
        assert place.feature_shape is not None
        share: Any = place.share
        self.layer = self.kind(
            self.design, place.feature_shape, share=share, channel_axis=place.channel_axis, **self.options
        )
        return self.layer

    def build_from(self, state: Tensor) -> MetadataLayer:
        """Make the layer that a checkpoint describes."""
        design, feature_shape, share, channel_axis, *_ = read_state(state)
        self.design = design
        axis = self.place.batch_axis if len(feature_shape) == 2 and channel_axis == -1 else 0
        self.place = replace(
            self.place, feature_shape=feature_shape, share=share, channel_axis=channel_axis, batch_axis=axis
        )
        return self.build()

    def attach(self, module: nn.Module) -> None:
        """Hang the hook on the module."""
        if self.place.where == "after":
            self._handle = module.register_forward_hook(self)
        else:
            self._handle = module.register_forward_pre_hook(self)

    def detach(self) -> None:
        """Take the hook off again."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def __call__(self, module: nn.Module, inputs: Any, *output: Any) -> Any:
        """The hook: with `output` it follows a module, without it precedes one."""
        value = output[0] if output else inputs
        current = self.carrier.current(self.place.path)
        features = features_of(value, self.place.path, self.place.where)
        self._once(current)
        normalised = self._normalise(module, features, current)
        return with_features(value, normalised)

    def _once(self, current: Pass) -> None:
        if current.traced or torch_private.in_backward():
            return
        if self.place.path in current.called:
            raise DeconfoundError(
                f"module {self.place.path!r} must be called once per forward; got a second call of "
                f"{self.place.module}. A layer there would mix different features: choose modules that are called once."
            )
        current.called.add(self.place.path)

    def _ready(self, module: nn.Module, features: Tensor, training: bool) -> MetadataLayer:
        """The layer, built now if this is its first forward."""
        if self.layer is None:
            if torch.compiler.is_compiling():
                raise DeconfoundError(
                    f"the layer at {self.place.path!r} must exist before the model is compiled or exported; got none "
                    "yet. Pass example= to normalize, or call the model once before."
                )
            # Tensors that inference mode makes could never be trained.
            with self.carrier.building, torch.inference_mode(False):
                if self.layer is None:
                    self.place = shaped(self.place, module, features)
                    self.build().to(features.device, features.dtype).train(training)
        assert self.layer is not None
        return self.layer

    def _normalise(self, module: nn.Module, features: Tensor, current: Pass) -> Tensor:
        layer = self._ready(module, features, current.training)
        axis = self.place.batch_axis
        x = features.movedim(axis, 0) if axis else features
        if current.metadata is not None and x.shape[0] != current.metadata.shape[0]:
            raise ShapeError(
                f"metadata must have one row per sample; got {current.metadata.shape[0]} rows for {x.shape[0]} samples "
                f"at {self.place.path!r}. Encode the table rows of exactly this batch; if they are, axis {axis} of the "
                "features there is not the samples: choose another module."
            )
        layer.shape.check(x)
        x = layer.normalise(x, None if current.metadata is None else current.whitened(layer, x.device))
        if current.metadata is not None and layer.training and not current.traced:
            current.may_be_recomputed = current.may_be_recomputed or torch_private.keeps_for_recomputation()
            if current.may_be_recomputed:
                self.carrier.keep_for_backward(current, x)
        x = x if self.after is None else self.after(x)
        return x.movedim(0, axis) if axis else x
