"""Networks of the user's own, named `package.module:callable`: where they are found, and which code they are."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from deconfound.errors import OptionError
from deconfound.networks.packages import from_package

_searched: list[str] = []


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
