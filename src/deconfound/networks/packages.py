"""Networks of other packages, `monai:NAME` and `hf:NAME`, built without any download; and the user's own code."""

from __future__ import annotations

import hashlib
import inspect
import sys
import typing
import warnings
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError, did_you_mean, need
from deconfound.surgery import last_linear

PACKAGES = ("monai", "hf")
SAVED_WEIGHTS = "model.safetensors"
_searched: list[str] = []


def from_package(name: str) -> bool:
    """Whether a name is that of another package's network."""
    return name.partition(":")[0] in PACKAGES and ":" in name


def package_faults(name: str) -> list[str]:
    """What is wrong with such a name, without building anything."""
    package, _, wanted = name.partition(":")
    try:
        if package == "monai":
            _monai_network(wanted)
        else:
            _check_kind(wanted)
    except DeconfoundError as fault:
        return [str(fault)]
    return []


def build_from_package(name: str, shape: tuple[int, ...], outputs: int, options: dict[str, Any]) -> nn.Module:
    """The network, after a look at what it returns for two samples of nothing."""
    package, _, wanted = name.partition(":")
    network = (_build_monai if package == "monai" else _build_hf)(wanted, shape, outputs, options)
    with torch.no_grad(), torch.random.fork_rng():
        try:
            found = network.eval()(torch.zeros(2, *shape))
        except Exception as error:  # whatever the package raises
            raise OptionError(f"{name} must read samples of shape {shape}; got {error}") from error
    if not isinstance(found, Tensor) or found.shape != (2, outputs):
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise OptionError(f"{name} must return one row of {outputs} logits for each sample; got {got} for two samples.")
    return network.train()


class HuggingFaceClassifier(nn.Module):
    """An image classifier of transformers as a module from images to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Logits `(n, outputs)` of images `(n, channels, height, width)`."""
        logits: Tensor = self.model(pixel_values=images).logits
        return logits


def _monai_network(wanted: str) -> Callable[..., Any]:
    nets = need("monai.networks.nets", "monai")
    found = getattr(nets, wanted, None)
    if not callable(found):
        raise _unknown(f"monai:{wanted}", wanted, [name for name in dir(nets) if callable(getattr(nets, name))])
    return typing.cast(Callable[..., Any], found)


def _build_monai(wanted: str, shape: tuple[int, ...], outputs: int, options: dict[str, Any]) -> nn.Module:
    """What MONAI's networks call the shape of a sample and the number of logits is filled in."""
    make = _monai_network(wanted)
    takes = set(inspect.signature(make).parameters)
    if not isinstance(make, type):  # `resnet18(**kwargs) -> ResNet` takes what the class takes
        takes |= set(inspect.signature(typing.get_type_hints(make).get("return", make)).parameters)
    known = dict.fromkeys(("in_channels", "n_input_channels"), shape[0])
    known |= dict.fromkeys(("out_channels", "num_classes", "classes"), outputs)
    given: dict[str, Any] = {**known, "spatial_dims": len(shape) - 1, "img_size": shape[1:], "in_shape": shape}
    arguments = {key: value for key, value in given.items() if key in takes} | options
    try:
        network = make(**arguments)
    except Exception as error:  # whatever the network says about its options
        raise OptionError(f"network.options must build 'monai:{wanted}'; got {arguments}, and {error}.") from error
    if not isinstance(network, nn.Module):
        raise OptionError(f"monai:{wanted} must be a network; got {type(network).__name__}.")
    return network


def _check_kind(wanted: str) -> None:
    kinds = list(need("transformers", "hf").CONFIG_MAPPING)
    if wanted not in kinds and not Path(wanted).is_dir():
        raise _unknown(f"hf:{wanted}", wanted, kinds, "Nothing is downloaded: give a kind such as vit, or a folder.")


def _build_hf(wanted: str, shape: tuple[int, ...], outputs: int, options: dict[str, Any]) -> nn.Module:
    """A kind of model with fresh weights, or a folder of `save_pretrained` with those that lie there."""
    transformers = need("transformers", "hf")
    if len(shape) != 3:
        raise OptionError(f"'hf:{wanted}' must have images of shape (channels, height, width); got {shape}.")
    size = shape[1] if shape[1] == shape[2] else list(shape[1:])
    given = {"num_channels": shape[0], "image_size": size} | options
    saved, classifier = Path(wanted).is_dir(), transformers.AutoModelForImageClassification
    info: dict[str, Any] = {}
    try:
        from_folder, of_kind = transformers.AutoConfig.from_pretrained, transformers.AutoConfig.for_model
        config = from_folder(wanted, local_files_only=True, **given) if saved else of_kind(wanted, **given)
        config.num_labels = outputs
        if saved and (Path(wanted) / SAVED_WEIGHTS).is_file():
            options = {"local_files_only": True, "use_safetensors": True, "ignore_mismatched_sizes": True}
            model, info = classifier.from_pretrained(wanted, config=config, output_loading_info=True, **options)
        else:
            model = classifier.from_config(config)
    except Exception as error:  # a kind that does not classify images, or options that it refuses
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(f"network.options must build 'hf:{wanted}'; got {given}, and {first}") from error
    _check_loaded(wanted, model, info)
    return HuggingFaceClassifier(model)


def _check_loaded(wanted: str, model: nn.Module, info: dict[str, Any]) -> None:
    """Tell of a head that is left new, and refuse anything else that is."""
    new = sorted({*info.get("missing_keys", ()), *(item[0] for item in info.get("mismatched_keys", ()))})
    head = f"{last_linear(model)}."
    faults = [name for name in new if not name.startswith(head)]
    if faults:
        raise OptionError(
            f"hf:{wanted} must fit its weights below the head; got {', '.join(faults[:3])} (of {len(faults)}) absent "
            "or of another shape. Leave out the network.options that change shapes."
        )
    if new:
        warnings.warn(f"hf:{wanted}: left new: {', '.join(new)}", DeconfoundWarning, stacklevel=2)


def _unknown(name: str, wanted: str, known: Collection[str], advice: str = "") -> OptionError:
    hint = did_you_mean(wanted, known)
    return OptionError(f"network.name must be one that the package has; got {name!r}.{hint} {advice}".rstrip())


def is_own(name: str) -> bool:
    """Whether a network is code of the user's, `package.module:callable`."""
    return ":" in name and not from_package(name)


def imported(name: str) -> Callable[..., Any]:
    """The callable that `package.module:callable` names."""
    module, _, attribute = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"network.name must be importable as package.module:callable; got {name!r} ({error})."
        ) from error
    return found


def search_modules_in(folder: str | Path) -> None:
    """Also find such modules in this folder."""
    place = str(Path(folder).resolve())
    if place not in _searched:
        _searched.append(place)
    if place not in sys.path:
        sys.path.append(place)


def searched_folders() -> tuple[str, ...]:
    """The folders of `search_modules_in`, for a process that is to find the same modules."""
    return tuple(_searched)


def source_digest(name: str) -> str | None:
    """SHA-256 of the file that defines a network of the user's own; None for a built-in one, or without a file."""
    if not is_own(name):
        return None
    try:
        file = inspect.getsourcefile(inspect.unwrap(imported(name)))
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None
    except (TypeError, OSError):
        return None


def module_folder(name: str) -> str | None:
    """The folder from which the module of a network of the user's own was imported; None for a built-in one."""
    module = name.partition(":")[0]
    file = getattr(sys.modules.get(module), "__file__", None)
    return None if not is_own(name) or file is None else str(Path(file).resolve().parents[module.count(".")])
