"""A network by its name or by `package.module:callable`, and what can be wrong with what a config says of one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from deconfound.design import Design
from deconfound.errors import DeconfoundError, OptionError, did_you_mean
from deconfound.networks.convolutional import ConvNet, SyntheticCNN
from deconfound.networks.mlp import MLP
from deconfound.networks.packages import build_from_package, from_package, imported, package_faults
from deconfound.networks.pretrained import freeze, load_weights
from deconfound.networks.resnet3d import ResNet3D
from deconfound.networks.resnet18 import ResNet18
from deconfound.surgery import Collector, collect, last_linear, normalize


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


def _cnn(dims: int) -> Callable[..., nn.Module]:
    def make(shape: tuple[int, ...], outputs: int, **options: Any) -> nn.Module:
        _check_axes(f"cnn{dims}d", shape, dims + 1)
        return ConvNet(dims, shape[0], outputs, **options)

    return make


def _resnet18(shape: tuple[int, ...], outputs: int, **options: Any) -> nn.Module:
    _check_axes("resnet18", shape, 3)
    return ResNet18(shape[0], outputs, **options)


def _check_axes(name: str, shape: tuple[int, ...], axes: int) -> None:
    if len(shape) != axes:
        wanted = ", ".join(("channels", "height", "width")[:axes] if axes == 3 else ("channels", "length"))
        raise OptionError(f"{name!r} must have samples of shape ({wanted}); got {shape}.")


def _resnet3d(shape: tuple[int, ...], outputs: int, **options: Any) -> nn.Module:
    if len(shape) != 4 or len({*shape[1:]}) != 1 or shape[1] % 16:
        raise OptionError(
            f"'resnet3d' must have images of shape (channels, e, e, e) with e a multiple of 16; got {shape}. Resample "
            "them when they are read."
        )
    return ResNet3D(size=shape[1], outputs=outputs, channels=shape[0], **options)


# For each name what builds it for a shape, and the class whose arguments are its options.
NETWORKS: dict[str, tuple[Callable[..., nn.Module], Callable[..., nn.Module]]] = {
    "mlp": (_mlp, MLP),
    "cnn1d": (_cnn(1), ConvNet),
    "cnn2d": (_cnn(2), ConvNet),
    "resnet18": (_resnet18, ResNet18),
    "resnet3d": (_resnet3d, ResNet3D),
    "synthetic_cnn": (_synthetic, SyntheticCNN),
}


def network_faults(name: str, options: dict[str, Any]) -> list[str]:
    """What is wrong with `network.name` and `network.options`, without building anything."""
    if from_package(name):
        return package_faults(name)
    if ":" in name:
        try:
            imported(name)
        except OptionError as fault:
            return [str(fault)]
        return []
    if name not in NETWORKS:
        hint = did_you_mean(name, NETWORKS)
        return [
            f"network.name must be {', '.join(NETWORKS)}, monai:NAME, hf:NAME or package.module:callable; got "
            f"{name!r}.{hint}"
        ]
    set_here = ("self", "inputs", "outputs", "size", "channels", "dims")
    known = [key for key in inspect.signature(NETWORKS[name][1]).parameters if key not in set_here]
    faults = []
    for key in options:
        if key not in known:
            hint = did_you_mean(key, known)
            faults.append(
                f"network.options of {name!r} must be among: {', '.join(known) or 'none'}; got {key!r}.{hint}"
            )
    return faults


def build_network(
    name: str,
    shape: tuple[int, ...],
    outputs: int,
    options: dict[str, Any],
    weights: str | None = None,
    frozen: Sequence[str] = (),
) -> nn.Module:
    """Build a network for samples of this shape.

    A callable of the user's is called with `outputs=`, its options, and `shape=` where it takes it.

    Args:
        name: One of `NETWORKS`, `monai:NAME`, `hf:NAME`, or `package.module:callable`.
        shape: Of a sample.
        outputs: Number of logits.
        options: Its arguments.
        weights: A safetensors file to go on from; see `load_weights`.
        frozen: Modules or globs that stay as they are; see `freeze`.
    """
    faults = network_faults(name, options)
    if faults:
        raise OptionError("\n".join(faults))
    if name in NETWORKS:
        network = NETWORKS[name][0](shape, outputs, **options)
    elif from_package(name):
        network = build_from_package(name, shape, outputs, options)
    else:
        make = imported(name)
        takes = inspect.signature(make).parameters
        network = make(outputs=outputs, **({"shape": shape} if "shape" in takes else {}), **options)
        if not isinstance(network, nn.Module):
            raise OptionError(f"{name} must return a torch module; got {type(network).__name__}.")
    if weights is not None:
        load_weights(network, weights)
    if frozen:
        freeze(network, frozen)
    return network


def place_faults(network: nn.Module, shape: tuple[int, ...], design: Design, at: Sequence[str] | None) -> list[str]:
    """What is wrong with the places that `method.at` names, as an example of this shape shows it."""
    if at is None:
        return []
    try:
        normalize(network, design, at, example=torch.zeros(2, *shape), dry_run=True)
    except DeconfoundError as fault:
        return [f"method.at: {line}" for line in str(fault).split("\n")]
    except Exception:  # a network that cannot read these samples: its fold says so, with the traceback
        return []
    return []


def feature_faults(network: nn.Module, name: str | None) -> list[str]:
    """What is wrong with `network.features`."""
    modules = dict(network.named_modules())
    if name is None or name in modules:
        return []
    hint = did_you_mean(name, modules, f"It has: {', '.join(filter(None, modules))}.")
    return [f"network.features must be a module of the network; got {name!r}.{hint}"]


def hidden_features(network: nn.Module, name: str | None = "") -> AbstractContextManager[Collector | None]:
    """Collect the hidden features of the forward passes inside the block, `(n, d)` on the CPU.

    Args:
        network: Whose forward passes.
        name: A module, whose output is collected; "" for what the last linear layer reads, None for nothing.

    Returns:
        A context with a `Collector`, or with None where there is nothing to collect.
    """
    if name is None or (not name and last_linear(network) is None):
        return nullcontext()
    if faults := feature_faults(network, name or None):
        raise OptionError(faults[0])
    return collect(network, name or None, device="cpu", flat=True)
