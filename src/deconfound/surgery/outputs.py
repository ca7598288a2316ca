"""The features in what a module returns: a tensor, or the first tensor of a tuple, mapping or dataclass."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import MutableMapping
from typing import Any

from torch import Tensor, nn

from deconfound.errors import ShapeError


def features_of(output: object, path: str) -> Tensor:
    """The tensor that is normalised."""
    if isinstance(output, Tensor):
        return output
    key = _key(output)
    if key is None:
        raise ShapeError(
            f"module {path!r} must return a tensor, or a tuple, mapping or dataclass that holds one; "
            f"got {type(output).__name__}. Choose a module inside it."
        )
    if dataclasses.is_dataclass(output) and not isinstance(output, MutableMapping):
        found: Tensor = getattr(output, key)
    else:
        found = output[key]  # type: ignore[index]
    return found


def with_features(output: Any, features: Tensor) -> Any:
    """The same output with other features; what a module returned is never changed in place."""
    if isinstance(output, Tensor):
        return features
    key = _key(output)
    if isinstance(output, MutableMapping):
        twin = copy.copy(output)
        twin[key] = features
        return twin
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return dataclasses.replace(output, **{str(key): features})
    values = list(output)
    values[key] = features
    return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)


def _key(output: object) -> Any:
    """Where the first tensor is, or None."""
    if isinstance(output, MutableMapping):
        items: Any = output.items()
    elif dataclasses.is_dataclass(output):
        items = ((field.name, getattr(output, field.name)) for field in dataclasses.fields(output))
    elif isinstance(output, tuple | list):
        items = enumerate(output)
    else:
        return None
    return next((key for key, value in items if isinstance(value, Tensor)), None)


def batch_axis(module: nn.Module, features: Tensor) -> int:
    """Where the samples are: axis 1 for sequence modules with `batch_first=False`, axis 0 otherwise."""
    if features.ndim != 3:
        return 0
    inner = getattr(module, "self_attn", module)
    layers = getattr(module, "layers", None)
    if isinstance(layers, nn.ModuleList) and len(layers):
        inner = getattr(layers[0], "self_attn", inner)
    return 1 if getattr(inner, "batch_first", True) is False else 0


def is_sequence(module: nn.Module, features: Tensor) -> bool:
    """Whether the features are `(n, length, channels)` rather than an image `(n, channels, …)`."""
    name = type(module).__name__
    return features.ndim == 3 and not any(word in name for word in ("Conv", "Pool", "BatchNorm", "InstanceNorm"))
