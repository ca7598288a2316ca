"""What the options of a network estimator must be, checked together when `fit` starts."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from deconfound.errors import OptionError
from deconfound.surgery.attach import LAYERS

_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "epochs": ("a whole number of at least 1", lambda value: _whole(value)),
    "batch_size": ("a whole number of at least 1", lambda value: _whole(value)),
    "patience": ("a whole number of at least 1", lambda value: _whole(value)),
    "lr": ("a number above 0", lambda value: _real(value) and value > 0),
    "weight_decay": ("a number of at least 0", lambda value: _real(value) and value >= 0),
    "validation_fraction": ("a number between 0 and 1", lambda value: _real(value) and 0 < value < 1),
    "hidden": ("a sequence of sizes", lambda value: not isinstance(value, str) and all(map(_whole, value))),
    "refit": ("True or False", lambda value: isinstance(value, bool | np.bool_)),
    "layer": (f"None or one of {', '.join(map(repr, LAYERS))}", lambda value: value is None or value in LAYERS),
}


def check_options(estimator: Any) -> None:
    """Refuse options outside their range, all in one error."""
    faults = []
    for name, (rule, holds) in _RULES.items():
        value = getattr(estimator, name)
        try:
            fine = holds(value)
        except TypeError:
            fine = False
        if not fine:
            near = difflib.get_close_matches(value, LAYERS, n=1) if name == "layer" and isinstance(value, str) else []
            faults.append(f"{name} must be {rule}; got {value!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
    if faults:
        raise OptionError("\n".join(faults))


def as_device(name: str) -> torch.device:
    """A device by its name; "auto" is a GPU, or the CPU where there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=torch.device(name)).device
    except (RuntimeError, TypeError, AssertionError) as fault:  # torch without CUDA says so by an assertion
        raise OptionError(
            f"device must be 'auto' or a device of torch that is here ('cpu', 'cuda:0'); got {name!r}."
        ) from fault


def _whole(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 1


def _real(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real)
