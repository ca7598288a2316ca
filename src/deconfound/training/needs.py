"""Packages that a run needs beside the base, and what to install where one is absent."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from deconfound.errors import DeconfoundError


def need(module: str, extra: str) -> Any:
    """An optional package, or an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        raise DeconfoundError(
            f"{name} must be installed for this; got {error}. Run: pip install 'deconfound[{extra}]'"
        ) from error
