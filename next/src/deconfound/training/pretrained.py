"""Networks that start from weights in a file, or of which parts are not trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deconfound.attach import select_modules
from deconfound.errors import OptionError, StateError


def load_weights(network: nn.Module, path: str | Path) -> None:
    """Load those weights of a file that have the name and shape of a weight of the network.

    Args:
        network: The network, which is changed.
        path: A state dict, written by `torch.save` or as .safetensors. No code in it is run.

    Raises:
        OptionError: The file cannot be read, or none of its weights fits.
    """
    try:
        stored = _read_state(Path(path))
    except Exception as error:
        raise OptionError(
            f"network.weights: {str(path)!r} cannot be read as a state dict "
            f"({type(error).__name__}). Write torch.save(network.state_dict(), path)."
        ) from None
    own = network.state_dict()
    fitting = {
        name: value
        for name, value in stored.items()
        if name in own and getattr(own[name], "shape", None) == value.shape
    }
    if not fitting:
        first, other = next(iter(stored), "none"), next(iter(own), "none")
        raise OptionError(
            f"network.weights: no weight in {str(path)!r} has the name and shape of a weight of "
            f"the network; the first ones are {first!r} and {other!r}. Check network.options."
        )
    network.load_state_dict(fitting, strict=False)


def freeze(network: nn.Module, names: Sequence[str]) -> None:
    """Keep the parameters of some modules as they are.

    Args:
        network: The network, which is changed.
        names: Names or globs of modules, such as `"blocks.*"`.
    """
    if not names:
        return
    for module in select_modules(network, names).values():
        module.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise StateError(
            f"network.freeze: {list(names)!r} leaves no parameter to be trained. Freeze less."
        )


def _read_state(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    state = torch.load(path, map_location="cpu", weights_only=True)
    return dict(state.items())
