"""Which modules of a network the argument `at` means."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from deconfound.errors import OptionError, nearest_names

Selector = str | type[nn.Module]


def select_modules(network: nn.Module, at: Selector | Iterable[Selector]) -> dict[str, nn.Module]:
    """Return the selected modules by name, in the network's own order.

    Args:
        network: Any module.
        at: A module name, a glob such as `"layer4.*"`, a module type, or a list of these.
    """
    modules = dict(network.named_modules(remove_duplicate=False))
    modules.pop("")
    selectors: list[Any] = list(at) if isinstance(at, list | tuple | set) else [at]
    if not selectors:
        raise OptionError("at must name at least one module; got an empty list.")
    # Selectors may overlap; a module that two of them match gets one layer.
    selected: set[str] = set()
    faults = []
    for selector in selectors:
        names = [name for name, module in modules.items() if _matches(selector, name, module)]
        selected.update(names)
        if not names:
            faults.append(_describe_mismatch(selector, modules))
    if faults:
        raise OptionError("\n".join(faults))
    # A module that is registered under two names is one module and gets one layer.
    name_of_module = {modules[name]: name for name in reversed(modules) if name in selected}
    names_in_order = sorted(name_of_module.values(), key=list(modules).index)
    return {name: modules[name] for name in names_in_order}


def _matches(selector: Selector, name: str, module: nn.Module) -> bool:
    if isinstance(selector, str):
        return name == selector or fnmatchcase(name, selector)
    return isinstance(selector, type) and isinstance(module, selector)


def _describe_mismatch(selector: object, modules: dict[str, nn.Module]) -> str:
    if isinstance(selector, str):
        return f"at={selector!r} matches no module. {nearest_names(selector, modules)}"
    if isinstance(selector, type):
        types = sorted({type(module).__name__ for module in modules.values()})
        return f"No module is a {selector.__name__}. The network has {', '.join(types)}."
    return (
        f"at must consist of module names, globs or module types; got {selector!r}. "
        "Write at=['fc1', 'fc2'], at='layer4.*' or at=torch.nn.Linear."
    )
