"""The features in what a module returns or receives: a tensor, or the first of several."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from deconfound.errors import ShapeError


def find_features(value: object, name: str) -> Tensor:
    """Return the first tensor of a module's output or inputs."""
    if isinstance(value, Tensor):
        return value
    items = _items(value)
    features = next((item for _, item in items if isinstance(item, Tensor)), None)
    if features is None:
        raise ShapeError(
            f"Module {name!r} must return or receive a tensor, or a tuple, mapping or dataclass "
            f"with one; got a {type(value).__name__}. Choose another module, and pad sequences "
            "instead of packing them."
        )
    return features


def replace_features(value: Any, features: Tensor) -> Any:
    """Return a copy of an output in which `features` stand in place of the first tensor.

    The module's own output stays as it is, because the module may have kept it.
    """
    if isinstance(value, Tensor):
        return features
    key = next(key for key, item in _items(value) if isinstance(item, Tensor))
    if isinstance(value, MutableMapping):
        twin = copy.copy(value)
        twin[key] = features
        return twin
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{key: features})
    items = [*value]
    items[key] = features
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def describe_part(value: object) -> str:
    """Return how to write the normalised part of an output: "", "[0]" or ".last_hidden_state"."""
    if isinstance(value, Tensor):
        return ""
    key = next(key for key, item in _items(value) if isinstance(item, Tensor))
    return f"[{key}]" if isinstance(key, int) else f".{key}"


def all_tensors(value: object) -> Iterator[Tensor]:
    """Iterate over all tensors of an output, however nested."""
    if isinstance(value, Tensor):
        yield value
    else:
        for _, item in _items(value):
            yield from all_tensors(item)


def set_nested_tensors(encoders: Iterable[torch.nn.Module], is_enabled: bool) -> None:
    """Let transformer encoders pack masked sequences in evaluation mode, or keep them from it."""
    for encoder in encoders:
        encoder.use_nested_tensor = is_enabled  # type: ignore[assignment]


def nesting_encoders(network: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the transformer encoders that may pack masked sequences into nested tensors.

    Such a tensor has no shape that coefficients could have.
    """
    return [part for part in network.modules() if getattr(part, "use_nested_tensor", False)]


@contextmanager
def evaluation_mode(*modules: torch.nn.Module) -> Iterator[None]:
    """Put modules into evaluation mode, and each of their parts back into its own mode."""
    modes = {part: part.training for module in modules for part in module.modules()}
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _items(value: object) -> list[tuple[Any, Any]]:
    if isinstance(value, MutableMapping):
        return list(value.items())
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    return []


def call_network(network: torch.nn.Module, inputs: object, **keywords: Any) -> Any:
    """Call a network on one tensor, a tuple of inputs, or a mapping of keyword inputs."""
    if isinstance(inputs, MutableMapping):
        return network(**inputs, **keywords)
    if isinstance(inputs, tuple | list):
        return network(*inputs, **keywords)
    return network(inputs, **keywords)
