"""Training-mode forwards in which the layers learn nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from deconfound.layers.base import MetadataLayer


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
