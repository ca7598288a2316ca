"""The one place that inserts plain normalisations (LayerNorm, BatchNorm), which read no metadata."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from deconfound.surgery.outputs import features_of, with_features
from deconfound.surgery.plan import Place


class InsertedNorm:
    """A normalisation that torch runs as the hook of one module; it copies and pickles with the network."""

    def __init__(self, place: Place, norm: nn.Module) -> None:
        self.place = place
        self.norm = norm
        self._handle: RemovableHandle | None = None

    def attach(self, module: nn.Module) -> None:
        """Hang the hook on the module."""
        after = self.place.where == "after"
        self._handle = module.register_forward_hook(self) if after else module.register_forward_pre_hook(self)

    def detach(self) -> None:
        """Take the hook off again."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def __call__(self, module: nn.Module, inputs: Any, *output: Any) -> Any:
        """The hook: with `output` it follows a module, without it precedes one."""
        value, axis = (output or (inputs,))[0], self.place.batch_axis
        features = features_of(value, self.place.path, self.place.where).movedim(axis, 0)
        return with_features(value, self.norm(features).movedim(0, axis))


def layer_norm_for(place: Place) -> nn.LayerNorm | None:
    """LayerNorm over one sample's features; None for a single feature, which it would make a constant."""
    assert place.feature_shape is not None
    sizes = [size for size in place.feature_shape if size is not None]
    return nn.LayerNorm(sizes) if math.prod(sizes) > 1 else None


def insert_norms(
    network: nn.Module, places: Sequence[Place], make: Callable[[Place], nn.Module | None] = layer_norm_for
) -> nn.ModuleDict:
    """Hang a normalisation after (or before) each place, and return them by path, with "/" for ".".

    Args:
        network: Any module; its code is not touched. What is returned must be registered where an optimiser finds it.
        places: Where, with known feature shapes: `normalize(…, example=…, dry_run=True).places`.
        make: The normalisation for a place, called with samples on axis 0; None for nothing. LayerNorm by default.
    """
    made = hooks_for(places, make)
    attach_all(network, made)
    return nn.ModuleDict({hook.place.path.replace(".", "/"): hook.norm for hook in made})


def hooks_for(places: Sequence[Place], make: Callable[[Place], nn.Module | None]) -> list[InsertedNorm]:
    """The hooks, not yet attached."""
    made = ((place, make(place)) for place in places)
    return [InsertedNorm(place, norm) for place, norm in made if norm is not None]


def attach_all(network: nn.Module, hooks: Sequence[InsertedNorm]) -> None:
    """Hang each hook on its module."""
    modules: Mapping[str, nn.Module] = dict(network.named_modules(remove_duplicate=False))
    for hook in hooks:
        hook.attach(modules[hook.place.path])
