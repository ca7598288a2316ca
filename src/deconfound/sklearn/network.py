"""The network of an estimator: a small perceptron, a module of the user's, or what the user's function builds."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from deconfound.errors import OptionError

Builder = Callable[[Any, int], nn.Module]


def perceptron(shape: tuple[int, ...], hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Linear layers `hidden1`, `hidden2`, …, `output` with a ReLU between each two."""
    network = nn.Sequential()
    if len(shape) > 1:
        network.add_module("flatten", nn.Flatten())
    width = math.prod(shape)
    for number, size in enumerate(hidden, start=1):
        network.add_module(f"hidden{number}", nn.Linear(width, size))
        network.add_module(f"relu{number}", nn.ReLU())
        width = size
    network.add_module("output", nn.Linear(width, outputs))
    return network


def make_network(
    network: nn.Module | Builder | None,
    hidden: Sequence[int],
    shape: tuple[int, ...],
    outputs: int,
    device: torch.device,
) -> nn.Module:
    """A network that nobody else holds, on the device.

    Args:
        network: A module, which is copied; a function or class called as `network(inputs, outputs)`; or None.
        hidden: Sizes of the hidden layers of the perceptron.
        shape: The shape of one sample. A function is given its one size, or the whole shape if it has several.
        outputs: How many numbers per sample the network returns.
        device: Where it goes.
    """
    if network is None:
        made: nn.Module = perceptron(shape, hidden, outputs)
        # Double precision, as scikit-learn's own: one row at a time and all at once then agree.
        made = made if device.type == "mps" else made.double()
    elif isinstance(network, nn.Module):
        made = copy.deepcopy(network)
    elif callable(network):
        made = network(shape[0] if len(shape) == 1 else shape, outputs)
        if not isinstance(made, nn.Module):
            raise OptionError(f"network must build a torch.nn.Module; got {type(made).__name__}.")
    else:
        raise OptionError(f"network must be a torch.nn.Module or a function that builds one; got {network!r}.")
    return made.to(device)


def precision(network: nn.Module) -> torch.dtype:
    """The floating point type that the network computes in."""
    found = [parameter.dtype for parameter in network.parameters() if parameter.is_floating_point()]
    return found[0] if found else torch.get_default_dtype()


def home(network: nn.Module) -> torch.device:
    """Where the network is."""
    return next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
