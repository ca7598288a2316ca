"""The features in what a module returns or is given: a tensor, or the first tensor of a tuple, mapping or dataclass."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import Tensor, nn

from deconfound.errors import ShapeError


def features_of(output: object, path: str, where: str = "after") -> Tensor:
    """The tensor that is normalised."""
    if isinstance(output, Tensor):
        return output
    key = _key(output)
    if key is None and where == "before":
        raise ShapeError(
            f"module {path!r} must be given a tensor as a positional argument for a layer before it; got none. "
            "Choose where='after' on the module that makes its input."
        )
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
    elif isinstance(output, (tuple, list)):
        items = enumerate(output)
    else:
        return None
    return next((key for key, value in items if isinstance(value, Tensor)), None)


def part_of(output: object) -> str:
    """Which part of an output is normalised, as one would write it: "", "[0]" or ".last_hidden_state"."""
    key = None if isinstance(output, Tensor) else _key(output)
    return "" if key is None else f"[{key}]" if isinstance(key, int) else f".{key}"


def tensors_in(output: object) -> Iterator[Tensor]:
    """Every tensor of an output, however deep."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, MutableMapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            yield from tensors_in(getattr(output, field.name))


def sequence_axis(network: nn.Module, path: str) -> int:
    """Where sequences have their samples at a module: axis 1 if it or a module around it has `batch_first=False`."""
    names = path.split(".")
    for depth in range(len(names), -1, -1):
        found = _batch_first(network.get_submodule(".".join(names[:depth])))
        if found is not None:
            return 0 if found else 1
    return 0


def _batch_first(module: nn.Module) -> bool | None:
    layers = getattr(module, "layers", None)
    first = layers[0] if isinstance(layers, nn.ModuleList) and len(layers) else None
    for holder in (module, getattr(module, "self_attn", None), getattr(first, "self_attn", None)):
        found = getattr(holder, "batch_first", None)
        if isinstance(found, bool):
            return found
    return None


def is_sequence(module: nn.Module, features: Tensor) -> bool:
    """Whether the features are `(n, length, channels)` rather than an image `(n, channels, …)`."""
    if features.ndim != 3:
        return False
    words = ("Conv", "Pool", "BatchNorm", "InstanceNorm")
    of_images = [any(word in type(part).__name__ for word in words) for part in module.modules()]
    return not (of_images[0] or (any(of_images) and not any(isinstance(m, nn.Linear) for m in module.modules())))
