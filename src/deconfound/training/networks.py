"""The network of a run, by name or by `package.module:callable`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.errors import DeconfoundError, OptionError
from deconfound.networks import ResNet3D, SyntheticCNN
from deconfound.surgery import normalize


class MLP(nn.Sequential):
    """Linear layers with ReLU and dropout between: the network for tables.

    Args:
        inputs: Width of a sample.
        outputs: Number of logits.
        hidden: Widths of the hidden layers, `fc1`, `fc2`, …
        dropout: Share of hidden features that each training step leaves out.
    """

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (64, 32), dropout: float = 0.2) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        for number, (a, b) in enumerate(pairwise(widths), start=1):
            self.add_module(f"fc{number}", nn.Linear(a, b))
            self.add_module(f"relu{number}", nn.ReLU())
            if dropout:
                self.add_module(f"dropout{number}", nn.Dropout(dropout))
        self.add_module("out", nn.Linear(widths[-1], outputs))


def _mlp(shape: tuple[int, ...], outputs: int, **options: Any) -> nn.Module:
    if len(shape) != 1:
        raise OptionError(f"network.name must read samples of shape {shape}; got 'mlp', which reads tables.")
    return MLP(shape[0], outputs, **options)


def _synthetic(shape: tuple[int, ...], outputs: int) -> nn.Module:
    if shape != (1, 32, 32) or outputs != 1:
        raise OptionError(
            f"'synthetic_cnn' must have images of shape (1, 32, 32) and one output; got {shape} and {outputs}."
        )
    return SyntheticCNN()


def _resnet(shape: tuple[int, ...], outputs: int, **options: Any) -> nn.Module:
    if len(shape) != 4 or len({*shape[1:]}) != 1 or shape[1] % 16:
        raise OptionError(
            f"'resnet3d' must have images of shape (channels, e, e, e) with e a multiple of 16; got {shape}. Resample "
            "them when they are read."
        )
    return ResNet3D(size=shape[1], outputs=outputs, channels=shape[0], **options)


NETWORKS: dict[str, tuple[Callable[..., nn.Module], Callable[..., nn.Module]]] = {
    "mlp": (_mlp, MLP),
    "synthetic_cnn": (_synthetic, SyntheticCNN),
    "resnet3d": (_resnet, ResNet3D),
}


def network_faults(name: str, options: dict[str, Any]) -> list[str]:
    """What is wrong with `network.name` and `network.options`, without building anything."""
    if ":" in name:
        try:
            _imported(name)
        except OptionError as fault:
            return [str(fault)]
        return []
    if name not in NETWORKS:
        near = difflib.get_close_matches(name, NETWORKS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return [f"network.name must be {', '.join(NETWORKS)} or package.module:callable; got {name!r}.{hint}"]
    set_here = ("self", "inputs", "outputs", "size", "channels")
    known = [key for key in inspect.signature(NETWORKS[name][1]).parameters if key not in set_here]
    faults = []
    for key in options:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            faults.append(
                f"network.options of {name!r} must be among: {', '.join(known) or 'none'}; got {key!r}.{hint}"
            )
    return faults


def build_network(name: str, shape: tuple[int, ...], outputs: int, options: dict[str, Any]) -> nn.Module:
    """Build a network for samples of this shape.

    A callable of the user's is called with `outputs=`, its options, and `shape=` where it takes it.
    """
    faults = network_faults(name, options)
    if faults:
        raise OptionError("\n".join(faults))
    if name in NETWORKS:
        return NETWORKS[name][0](shape, outputs, **options)
    make = _imported(name)
    takes = inspect.signature(make).parameters
    network = make(outputs=outputs, **({"shape": shape} if "shape" in takes else {}), **options)
    if not isinstance(network, nn.Module):
        raise OptionError(f"{name} must return a torch module; got {type(network).__name__}.")
    return network


def _imported(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"network.name must be importable as package.module:callable; got {name!r} ({error})."
        ) from error
    return found


def place_faults(network: nn.Module, shape: tuple[int, ...], design: Design, at: Sequence[str] | None) -> list[str]:
    """What is wrong with the places that `method.at` names, as an example of this shape shows it."""
    if at is None:
        return []
    try:
        normalize(network, design, at, example=torch.zeros(2, *shape), dry_run=True)
    except DeconfoundError as fault:
        lines = str(fault).split("\n")
        return [f"method.{line}" if line.startswith("at must") else f"method.at: {line}" for line in lines]
    except Exception:  # a network that cannot read these samples: its fold says so, with the traceback
        return []
    return []


def feature_faults(network: nn.Module, name: str | None) -> list[str]:
    """What is wrong with `network.features`."""
    modules = dict(network.named_modules())
    if name is None or name in modules:
        return []
    near = difflib.get_close_matches(name, modules, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(filter(None, modules))}."
    return [f"network.features must be a module of the network; got {name!r}. {hint}"]


def last_linear(network: nn.Module) -> nn.Linear | None:
    """The last linear layer, whose input is what the network has made of a sample."""
    found = [module for module in network.modules() if isinstance(module, nn.Linear)]
    return found[-1] if found else None


class Watch:
    """Keeps the hidden features of forward passes: the output of a named module, or the last linear layer's input."""

    def __init__(self, network: nn.Module, name: str | None) -> None:
        self.features: Tensor | None = None
        faults = feature_faults(network, name)
        if faults:
            raise OptionError(faults[0])
        module = network.get_submodule(name) if name is not None else last_linear(network)
        if module is None:
            self._handle = None
        elif name is None:
            self._handle = module.register_forward_pre_hook(lambda _, inputs: self._keep(inputs[0]))
        else:
            self._handle = module.register_forward_hook(lambda _, inputs, output: self._keep(output))

    def _keep(self, value: Any) -> None:
        self.features = value.detach().flatten(1).to(torch.float32).cpu() if isinstance(value, Tensor) else None

    def close(self) -> None:
        """Stop watching."""
        if self._handle is not None:
            self._handle.remove()
