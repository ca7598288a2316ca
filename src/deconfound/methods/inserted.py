"""Plain normalisations, which read no metadata, hung after modules of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from deconfound.surgery.outputs import features_of, with_features
from deconfound.surgery.plan import Place


class After(nn.Module):
    """A normalisation that torch runs as the forward hook of one module; it copies and pickles with the network."""

    def __init__(self, path: str, batch_axis: int, norm: nn.Module) -> None:
        super().__init__()
        self.path = path
        self.batch_axis = batch_axis
        self.norm = norm

    def forward(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        features = features_of(output, self.path).movedim(self.batch_axis, 0)
        return with_features(output, self.norm(features).movedim(0, self.batch_axis))


def insert(network: nn.Module, places: Sequence[Place], make: Callable[[Place], nn.Module | None]) -> nn.ModuleList:
    """Hang what `make` returns after each place; the list holds its parameters and buffers.

    Args:
        network: Any module; its code is not touched.
        places: Where.
        make: The normalisation for a place, called with samples on axis 0; None for nothing.
    """
    made = [(place, make(place)) for place in places]
    hooks = [After(place.path, place.batch_axis, norm) for place, norm in made if norm is not None]
    for hook in hooks:
        network.get_submodule(hook.path).register_forward_hook(hook)
    return nn.ModuleList(hooks)


def layer_norm_at(place: Place) -> nn.LayerNorm | None:
    """LayerNorm over one sample's features; None for a single feature, which it would make a constant."""
    assert place.feature_shape is not None
    sizes = [size for size in place.feature_shape if size is not None]
    return nn.LayerNorm(sizes) if math.prod(sizes) > 1 else None
