"""One inserted layer: a forward hook that normalises what a module returns or receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from deconfound.attach.current_batch import CurrentBatch
from deconfound.attach.features import find_features, replace_features
from deconfound.attach.plan import InsertionPoint, register_hook
from deconfound.errors import ShapeError
from deconfound.layers import MetadataLayer, WhitenedBatch

Observer = Callable[["Insertion", Tensor, WhitenedBatch], None]


def has_insertion(network: nn.Module) -> bool:
    """Return True if a layer is inserted at any module of the network."""
    for module in network.modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if any(isinstance(hook, Insertion) for hook in hooks):
            return True
    return False


class Insertion:
    """The hook of one module. It is an object, not a closure, so that models copy and pickle.

    Attributes:
        point: Where the layer stands.
        layer: The layer.
        handle: Removes the hook.
        observer: Called with features `(n, d)` and their batch before the layer subtracts anything,
            while a refit or a report collects them; otherwise None.
    """

    def __init__(
        self, module: nn.Module, point: InsertionPoint, layer: MetadataLayer, current: CurrentBatch
    ) -> None:
        self.point = point
        self.layer = layer
        self.current = current
        self.observer: Observer | None = None
        self.handle = register_hook(module, point.where, self)

    def __call__(self, module: nn.Module, inputs: Any, *output: Any) -> Any:
        """Run as torch calls hooks: with an output after a module, without one before it."""
        value = output[0] if output else inputs
        features = find_features(value, self.point.name)
        batch = self.current.get(self.point.name)
        confounds = batch.confounds if isinstance(batch, WhitenedBatch) else batch
        # Checked before this layer learns. In most networks it is the first one.
        if features.shape[0] != confounds.shape[0]:
            raise ShapeError(
                f"metadata must have one row per sample; got {confounds.shape[0]} rows for "
                f"{features.shape[0]} samples at {self.point.name!r}. "
                "Encode exactly the table rows of this batch."
            )
        if self.observer is not None and isinstance(batch, WhitenedBatch):
            wide = features.detach().to(self.layer.beta.dtype)
            if not bool(wide.isfinite().all()):
                raise ShapeError(
                    f"The features at {self.point.name!r} must be finite; got NaN or infinity. "
                    "Correct the inputs, or the training that made the network diverge."
                )
            self.observer(self, self.layer.pool(wide), batch)
        is_training = self.layer.training and isinstance(batch, WhitenedBatch)
        residual = self.layer.forward_whitened(features, batch if is_training else confounds)
        return replace_features(value, residual)
