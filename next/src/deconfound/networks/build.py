"""Build a network by its name: one of ours, or what a callable of the user returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from torch import nn

from deconfound.errors import OptionError, import_named, nearest_names
from deconfound.networks.convnet import ConvNet
from deconfound.networks.huggingface import HuggingFaceClassifier
from deconfound.networks.mlp import MLP

BUILTINS: dict[str, type[nn.Module]] = {
    "mlp": MLP,
    "convnet": ConvNet,
    "huggingface": HuggingFaceClassifier,
}
Parameters: TypeAlias = Mapping[str, inspect.Parameter]
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def is_builtin(name: str) -> bool:
    """Return True for the name of one of our networks.

    Example:
        >>> from deconfound.networks import is_builtin
        >>> is_builtin("mlp"), is_builtin("my_networks:make_network")
        (True, False)
    """
    return name in BUILTINS


def is_estimator(value: object) -> bool:
    """Return True for a scikit-learn estimator, which is fitted and not trained by gradients.

    Example:
        >>> from sklearn.linear_model import Ridge
        >>> from deconfound.networks import MLP, is_estimator
        >>> is_estimator(Ridge()), is_estimator(Ridge), is_estimator(MLP((3,), 1))
        (True, False, False)
    """
    has_methods = callable(getattr(value, "fit", None)) and hasattr(value, "get_params")
    return has_methods and not inspect.isclass(value)


def build(
    name: str, shape: tuple[int, ...], outputs: int, options: Mapping[str, Any] | None = None
) -> Any:
    """Return the network of this name for samples of this shape.

    Args:
        name: "mlp", "convnet", "huggingface", or "package.module:callable" for your own. Modules in
            the current folder are found, as with `python -m`. The callable is called with the
            options, and with `shape` and `outputs` where its signature names them. It returns a
            torch module or a scikit-learn estimator.
        shape: Shape of one sample: `(d,)`, `(channels, length)`, `(channels, height, width)` or
            `(channels, x, y, z)`.
        outputs: Number of logits.
        options: Further arguments of the network.

    Raises:
        OptionError: Lists all faults of the name, the shape and the options.

    Example:
        >>> from deconfound.networks import build
        >>> build("mlp", (4,), 1, {"hidden": [8]}).out
        Linear(in_features=8, out_features=1, bias=True)
        >>> build("sklearn.linear_model:Ridge", (4,), 1, {"alpha": 2.0})
        Ridge(alpha=2.0)
    """
    make = BUILTINS[name] if is_builtin(name) else _import_callable(name)
    parameters = inspect.signature(make).parameters
    given = {"shape": shape, "outputs": outputs}
    given = {key: value for key, value in given.items() if key in parameters}
    arguments, faults = _match_options(name, parameters, given, options or {})
    network, cause = None, None
    # Our own constructors check values, whose faults a misspelt option must not hide.
    if not faults or is_builtin(name):
        try:
            network = make(**arguments)
        except OptionError as error:
            faults.append(str(error))
        except Exception as error:
            text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
            faults.append(f"{name} fails with {text}: {type(error).__name__}: {error}.")
            cause = error
    if faults:
        bare = [part.replace(annotation=part.empty) for part in parameters.values()]
        faults.append(f"Its arguments are {inspect.Signature(bare)}.")
        raise OptionError("\n".join(faults)) from cause
    if not isinstance(network, nn.Module) and not is_estimator(network):
        raise OptionError(
            f"{name} must return a torch module or a scikit-learn estimator; it returned a "
            f"{type(network).__name__}. Return the network itself."
        )
    return network


def _match_options(
    name: str, parameters: Parameters, given: dict[str, Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return all arguments of the call, and a sentence for each option that it does not take."""
    takes_any = any(part.kind is part.VAR_KEYWORD for part in parameters.values())
    names = [key for key, part in parameters.items() if key not in given and part.kind in BY_NAME]
    arguments, faults = dict(given), []
    for key, value in options.items():
        if key in names or (takes_any and key not in given):
            arguments[key] = value
        else:
            nearest = nearest_names(str(key), names) if names else "It has no options."
            faults.append(f"{key}= is no option of {name}. {nearest}")
    return arguments, faults


def _import_callable(name: str) -> Callable[..., Any]:
    """Return the callable that "package.module:callable" names."""
    if ":" not in name:
        raise OptionError(
            f"There is no network {name!r}. {nearest_names(name, BUILTINS)} "
            "Write 'package.module:callable' for your own."
        )
    make = import_named(name, "Network")
    if not callable(make):
        raise OptionError(f"Network {name!r} must be a callable; got a {type(make).__name__}.")
    return cast(Callable[..., Any], make)
