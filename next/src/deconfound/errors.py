"""Errors raised by deconfound: one base class, four kinds, and a warning.

Catch `DeconfoundError` for everything that the library refuses. Each kind is also the matching
built-in exception, for code that does not know deconfound.

Every message states what is wrong, what was given, and what to write instead, in this order.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

__all__ = [
    "DeconfoundError",
    "DeconfoundWarning",
    "OptionError",
    "ShapeError",
    "StateError",
    "TableError",
]


class DeconfoundError(Exception):
    """Base class of all errors that deconfound raises on purpose."""


class TableError(DeconfoundError, ValueError):
    """A table cannot be used as asked: an absent column, a missing value, an unseen level.

    Args:
        *faults: All faults of the table, each a sentence or a `deconfound.table.Note`.

    Attributes:
        faults: The same objects, so that code need not parse the message.
    """

    def __init__(self, *faults: object) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


class OptionError(DeconfoundError, ValueError):
    """An argument has a value that it cannot take."""


class ShapeError(DeconfoundError, ValueError):
    """Features, metadata and rows do not fit together."""


class StateError(DeconfoundError, RuntimeError):
    """An object cannot do this now: a design that is not fitted, a model without its layers."""


class DeconfoundWarning(UserWarning):
    """A result should not be used without knowing this."""


def nearest_names(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return the end of a message: the known names closest to `name`, or the first known ones."""
    candidates = list(dict.fromkeys(known))
    # At .6 "site" does not suggest "sex", and "agee" still suggests "age".
    nearest = difflib.get_close_matches(name, candidates, n=count, cutoff=0.6)
    if nearest:
        return f"Did you mean {' or '.join(map(repr, nearest))}?"
    more = ", …" if len(candidates) > 2 * count else ""
    return f"There are {', '.join(map(repr, candidates[: 2 * count]))}{more}."


def import_extra(module: str, extra: str) -> Any:
    """Import an optional package, or raise an error that shows how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise DeconfoundError(
            f"This needs the package {package!r}, which is not installed. "
            f"Run: pip install 'deconfound[{extra}]'"
        ) from error


def import_named(name: str, role: str) -> Any:
    """Return what "package.module:name" names: a network, a method or a reader of the user.

    Modules in the current folder are found, as with `python -m`.

    Args:
        name: The module and what it contains.
        role: What it is for, as messages call it.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise OptionError(f"{role} {name!r} must be written as 'package.module:name'.")
    folder = os.getcwd()
    if folder not in sys.path:
        # It stays there: a module may import another one when it is called.
        sys.path.insert(0, folder)
    try:
        module = import_module(module_name)
    except Exception as error:
        raise OptionError(
            f"{role} {name!r} cannot be imported: {type(error).__name__}: {error}. Modules are "
            f"sought in {folder} and among installed packages."
        ) from error
    if not hasattr(module, attribute):
        public = [key for key in vars(module) if not key.startswith("_")]
        nearest = nearest_names(attribute, public) if public else "It has no names."
        raise OptionError(f"{role} {name!r}: the module has no {attribute!r}. {nearest}")
    return getattr(module, attribute)
