"""Methods by name: make one, and list its options."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from deconfound.errors import OptionError, import_named, nearest_names
from deconfound.methods.adversarial import AdversarialMethod
from deconfound.methods.base import Method, Setting
from deconfound.methods.layered import MDNMethod, PMDNMethod, RMDNMethod
from deconfound.methods.residualized import ResidualizedInputs

# The first line of each class's docstring is the summary of the method.
METHODS: dict[str, type[Method]] = {
    "none": Method,
    "mdn": MDNMethod,
    "rmdn": RMDNMethod,
    "pmdn": PMDNMethod,
    "adversarial": AdversarialMethod,
    "residualized-inputs": ResidualizedInputs,
}


def make_method(
    name: str, network: nn.Module, setting: Setting, options: Mapping[str, Any] | None = None
) -> Method:
    """Put a network under a method.

    Args:
        name: A name of `METHODS`, or "package.module:Class" for a subclass of `Method` of your own.
        network: The network. Layered methods register hooks at its modules.
        setting: The problem.
        options: Options of the method; see `method_options`.

    Raises:
        OptionError: The method or an option is unknown, or options have values that they cannot
            take. All faults of the options are reported together.

    Example:
        >>> import torch, deconfound as dc
        >>> from deconfound.methods import Setting, make_method
        >>> features, target, people = dc.example("heart")
        >>> design = dc.Design(["age", "hospital"], keep=["ill"]).fit(people)
        >>> network = torch.nn.Linear(4, 1)
        >>> setting = Setting(design, features[:2])
        >>> method = make_method("residualized-inputs", network, setting)
        >>> method.needs_confounds
        True
    """
    kind, options = find_method(name), dict(options or {})
    faults = _option_faults(name, kind, options)
    if not faults:
        return kind(network, setting, **options)
    others = {option: value for option, value in options.items() if option not in faults}
    sentences = list(faults.values())
    try:
        # The method judges the values of the others, on a copy, because layers stay in a network.
        kind(copy.deepcopy(network), setting, **others)
    except (OptionError, TypeError) as error:
        sentences.append(str(error))
    raise OptionError("\n".join(sentences))


def method_options(name: str) -> dict[str, Any]:
    """Return the options of a method with their defaults, `inspect.Parameter.empty` for none.

    Example:
        >>> from deconfound.methods import method_options
        >>> method_options("adversarial")
        {'weight': 0.2, 'warmup': 0, 'hidden': 32}
    """
    return {
        option: parameter.default
        for option, parameter in _parameters(find_method(name)).items()
        if parameter.kind != parameter.VAR_KEYWORD
    }


def find_method(name: str) -> type[Method]:
    """Return the class of a method.

    Example:
        >>> from deconfound.methods import find_method
        >>> find_method("adversarial").needs_confounds
        False
    """
    if name in METHODS:
        return METHODS[name]
    if ":" not in str(name):
        raise OptionError(
            f"method {name!r} is unknown. {nearest_names(str(name), METHODS)} "
            "Write 'package.module:Class' for a method of your own."
        )
    kind = import_named(name, "Method")
    if not isinstance(kind, type) or not issubclass(kind, Method):
        raise OptionError(
            f"Method {name!r} must be a subclass of deconfound.methods.Method; got {kind!r}."
        )
    return kind


def _parameters(kind: type[Method]) -> dict[str, inspect.Parameter]:
    """Return the options that a method's constructor takes after the network and the setting."""
    # A class with a constructor of its own does not have the signature that its base shows.
    owner = next(base for base in kind.__mro__ if {"__init__", "__signature__"} & vars(base).keys())
    signature = vars(owner).get("__signature__") or inspect.signature(vars(owner)["__init__"])
    own = ("self", "network", "setting")
    return {key: value for key, value in signature.parameters.items() if key not in own}


def _option_faults(name: str, kind: type[Method], options: Mapping[str, Any]) -> dict[str, str]:
    """Return a sentence for each option that is unknown, or text in place of a number."""
    parameters = _parameters(kind)
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
        return {}
    faults = {}
    for option, value in options.items():
        if option not in parameters:
            advice = nearest_names(option, parameters) if parameters else "It has no options."
            faults[option] = f"{option}= is no option of method {name!r}. {advice}"
            continue
        # A number in quotes in a config file is text. Own methods may take both.
        is_text = isinstance(parameters[option].default, str)
        if name in METHODS and isinstance(value, str) != is_text:
            expected = "text" if is_text else "a number"
            faults[option] = f"{option}= must be {expected}; got {value!r}."
    return faults
