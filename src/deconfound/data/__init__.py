"""Readers: tables, arrays and scans."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deconfound.data.scans import Scans, open_scans

_HOMES = {"Scans": "scans", "open_scans": "scans"}

__all__ = ["Scans", "open_scans"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'deconfound.data' has no attribute {name!r}")
    value = getattr(import_module(f"deconfound.data.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
