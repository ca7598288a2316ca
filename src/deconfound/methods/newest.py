"""The newest rows at a place of the network, for methods whose measure needs more rows than a small batch has."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from deconfound.layers.functional import pool_positions
from deconfound.surgery import Place


def flat_width(place: Place) -> int:
    """How many numbers `flat_features` has for each row."""
    assert place.feature_shape is not None
    return math.prod(size or 1 for size in place.feature_shape)


def flat_features(features: Tensor, place: Place) -> Tensor:
    """`(n, width)`: the features of each row in one line, averaged over positions where their number varies."""
    assert place.feature_shape is not None
    if None not in place.feature_shape:
        return features.flatten(1)
    return pool_positions(features.movedim(place.channel_axis, 1).flatten(2))


def join_newest(new: Sequence[Tensor], kept: Sequence[Tensor]) -> list[Tensor]:
    """The rows of a batch, with their graph, and as many before as the window lacks; the buffers keep the newest."""
    missing = max(len(kept[0]) - len(new[0]), 0)
    joined = [torch.cat([now, before[:missing]]) for now, before in zip(new, kept, strict=True)]
    with torch.no_grad():
        for buffer, values in zip(kept, joined, strict=True):
            buffer.copy_(values[: len(buffer)])
    return joined
