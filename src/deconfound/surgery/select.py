"""Which modules of a network are meant by `at`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from torch import nn

from deconfound.errors import OptionError

Predicate = Callable[[str, nn.Module], bool]
Selector = str | type[nn.Module] | Predicate


def select(network: nn.Module, at: Selector | Iterable[Selector], option: str = "at") -> dict[str, nn.Module]:
    """The chosen modules by path, in the network's own order.

    Args:
        network: Any module.
        at: A module name, a glob (`"layer4.*"`), a module type, a predicate of path and module, or several.
        option: What the user calls `at`, for errors.

    Raises:
        OptionError: If a selector matches nothing; the text shows the nearest names.
    """
    modules = {path: module for path, module in network.named_modules(remove_duplicate=False) if path}
    selectors = list(at) if isinstance(at, Iterable) and not isinstance(at, str | type) else [at]
    if not selectors:
        raise OptionError(f"{option} must name at least one module; got an empty list.")
    chosen: set[str] = set()
    faults = []
    for selector in selectors:
        found = [path for path, module in modules.items() if _matches(selector, path, module, option)]
        chosen.update(found)
        if not found:
            faults.append(_no_match(selector, modules, option))
    if faults:
        raise OptionError("\n".join(faults))
    # A module registered under two names is one module, and takes one layer.
    first = {module: path for path, module in reversed(modules.items()) if path in chosen}
    return {path: module for path, module in modules.items() if first.get(module) == path}


def _matches(selector: object, path: str, module: nn.Module, option: str) -> bool:
    if isinstance(selector, str):
        return path == selector or fnmatchcase(path, selector)
    if isinstance(selector, type):
        return isinstance(module, selector)
    if callable(selector):
        return bool(selector(path, module))
    raise OptionError(
        f"{option} must hold module names, globs, module types or predicates; got {selector!r}. "
        f"Write {option}=['fc1'], {option}='layer4.*' or {option}=nn.Linear."
    )


def _no_match(selector: object, modules: dict[str, nn.Module], option: str) -> str:
    if isinstance(selector, str):
        near = difflib.get_close_matches(selector, modules, n=3, cutoff=0.3) or list(modules)[:5]
        return f"{option} must match modules of the network; got {selector!r}. Nearest: {', '.join(near)}."
    what = selector.__name__ if isinstance(selector, type) else "a predicate"
    kinds = sorted({type(module).__name__ for module in modules.values()})
    return f"{option} must match modules of the network; got {what}, which none is. It has: {', '.join(kinds)}."
