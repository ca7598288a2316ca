"""Let the layers of a model refit on held-out rows, one after the other in the order in which features reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from deconfound.errors import OptionError
from deconfound.layers import MetadataLayer
from deconfound.layers.refit import ROWS_PER_DIRECTION, refitting
from deconfound.layers.whitened import as_tensor, refuse_nan

if TYPE_CHECKING:
    from deconfound.surgery.model import NormalizedModel

Batches = Iterable[tuple[Any, ...]] | Callable[[], Iterable[tuple[Any, ...]]]


@torch.no_grad()
def refit(model: NormalizedModel, batches: Batches, prior: float | None) -> None:
    """Fit every layer's β to held-out rows; see `NormalizedModel.refit`."""
    if prior is None:
        prior = ROWS_PER_DIRECTION * model.design.confound_directions
    if prior < 0:
        raise OptionError(f"prior must be a number of rows, 0 or more; got {prior}.")
    single = _build_layers(model, batches) == 1
    with eval_mode(model):
        with refitting(_layers(model), prior, at_once=single) as reached:
            _forward(model, batches)
        if single:
            return
        # A layer's features are right once all before it have refitted.
        reached[0].finish()
        for later in reached[1:]:
            with refitting([later.layer], prior, at_once=False) as again:
                _forward(model, batches)
            again[0].finish()


@contextmanager
def refitted(model: NormalizedModel, batches: Batches, prior: float | None) -> Iterator[None]:
    """A context in which the layers are refitted, and after which they are as before."""
    _build_layers(model, batches)
    layers = _layers(model)
    held = [tensor for layer in layers for tensor in (*layer.parameters(), *layer.buffers())]
    before = [tensor.detach().clone() for tensor in held]
    try:
        refit(model, batches, prior)
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(held, before, strict=True):
                tensor.copy_(value)


@torch.no_grad()
def _build_layers(model: NormalizedModel, batches: Batches) -> int:
    """Build the layers that wait for their first forward; 0, 1 or 2 for no, one or several batches."""
    if not callable(batches) and iter(batches) is batches:
        raise OptionError(
            "batches must be there to be read again; got an iterator. Pass a list, a loader, or a function that "
            "returns an iterator."
        )
    first = list(islice(batches() if callable(batches) else batches, 2))
    if first and len(model.layers) < len(model.plan.places):
        with eval_mode(model):
            _forward(model, first[:1])
    return len(first)


def read_batches(batches: Batches) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], Any, Any]]:
    """Of each batch the positional and keyword arguments of the network, the metadata, and the weights or None."""
    read = False
    for batch in batches() if callable(batches) else batches:
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise OptionError(
                f"batches must hold pairs of inputs and metadata, or these and weights; got {type(batch).__name__}."
            )
        inputs, metadata, *weight = batch
        read = True
        many = isinstance(inputs, tuple | list | dict)
        arguments = () if isinstance(inputs, dict) else tuple(inputs) if many else (inputs,)
        yield arguments, inputs if isinstance(inputs, dict) else {}, metadata, weight[0] if weight else None
    if not read:
        raise OptionError("batches must hold at least one; got none.")


def _forward(model: NormalizedModel, batches: Batches) -> None:
    for arguments, keywords, metadata, weight in read_batches(batches):
        checked = as_tensor(metadata, model.design, len(metadata))
        refuse_nan(checked, model.design, training=True)
        model(*arguments, metadata=checked, weight=weight, **keywords)


def _layers(model: NormalizedModel) -> list[MetadataLayer]:
    return [layer for layer in model.layers.values() if isinstance(layer, MetadataLayer)]


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """A context in which the model is in eval mode, each module coming back to its own."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
