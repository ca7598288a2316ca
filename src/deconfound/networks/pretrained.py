"""Going on from weights of a file, and stages that stay as they are."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from deconfound.errors import DeconfoundWarning, OptionError, need
from deconfound.networks.packages import SAVED_WEIGHTS
from deconfound.surgery import last_linear
from deconfound.surgery.select import select

# So many names are shown, the others counted.
SHOWN = 5


def load_weights(network: nn.Module, path: str | Path) -> None:
    """Load weights of a safetensors file into a network; of its last linear layer only where they fit.

    The names of the file may be those of the network or of one module in it, as where it was saved without its head.

    Args:
        network: Changed in place.
        path: The file. Weights that the network has no place for are named in a warning.

    Raises:
        OptionError: The file cannot be read, or weights below the head are absent or have another shape.
    """
    found, state = _read(Path(path)), network.state_dict()
    prefix = _prefix(list(found), list(state))
    fitting = {prefix + name: values for name, values in found.items() if prefix + name in state}
    head = f"{last_linear(network)}."
    wrong = {
        name: f"{name} {tuple(fitting[name].shape)} for {tuple(values.shape)}" if name in fitting else f"no {name}"
        for name, values in state.items()
        if (name not in fitting or fitting[name].shape != values.shape) and not name.endswith("num_batches_tracked")
    }
    faults = [text for name, text in wrong.items() if not name.startswith(head)]
    if faults:
        raise OptionError(
            f"network.weights must fit the network below its last linear layer; got {_listed(faults)} in {path}. Set "
            "network.options or data.options so that the shapes are equal, or choose another file."
        )
    # A bias of the old head does not belong to a new weight.
    loaded = {name: values for name, values in fitting.items() if not (wrong and name.startswith(head))}
    network.load_state_dict(loaded, strict=False)
    unused = [name for name in found if prefix + name not in state]
    notes = [f"{head[:-1]} is left new ({_listed(list(wrong.values()))})"] if wrong else []
    notes += [f"the network has no place for {_listed(unused)}"] if unused else []
    if notes:
        warnings.warn(f"{Path(path).name}: {'; '.join(notes)}", DeconfoundWarning, stacklevel=2)


def weights_digest(name: str, weights: str | None) -> str | None:
    """SHA-256 of the weights that a network starts from; None where it starts afresh."""
    saved = Path(name.removeprefix("hf:")) / SAVED_WEIGHTS
    path = Path(weights) if weights is not None else saved if name.startswith("hf:") else None
    if path is None or (path == saved and not saved.is_file()):
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def freeze(network: nn.Module, names: Sequence[str]) -> None:
    """Keep stages as they are: no parameter learns, and batch normalisation uses the statistics that it has.

    Args:
        network: Changed in place.
        names: Modules or globs, such as `layer1` or `blocks.*`.
    """
    for module in select(network, names, "network.freeze").values():
        module.requires_grad_(False)
        for inner in module.modules():
            if isinstance(inner, _BatchNorm):
                inner.register_forward_pre_hook(_stay_in_eval)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise OptionError(f"network.freeze must leave something to train; got {list(names)}, which is all of it.")


def _stay_in_eval(module: nn.Module, inputs: Any) -> None:
    """A hook, because every epoch puts the whole network back into training mode."""
    module.eval()


def _read(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise OptionError(f"network.weights must be a file; got {str(path)!r}, where there is none. Check the path.")
    broken = need("safetensors", "weights").SafetensorError
    try:
        tensors: Mapping[str, Tensor] = need("safetensors.torch", "weights").load_file(path)
    except (OSError, ValueError, broken) as error:
        raise OptionError(
            f"network.weights must be a safetensors file; got {path}, and {error}. Other formats can hold code: "
            "convert the file with safetensors.torch.save_file."
        ) from error
    return tensors


def _prefix(names: Sequence[str], state: Sequence[str]) -> str:
    """Below which module of the network most names of the file fit."""
    known = set(state)
    hits = Counter(
        place[: -len(name)] for name in names for place in known if place.endswith(f".{name}") or place == name
    )
    return max(hits, key=lambda prefix: (hits[prefix], -len(prefix)), default="")


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more
