"""Readers: tables, arrays and scans."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from deconfound.renamed import no_attribute

if TYPE_CHECKING:
    from deconfound.data.scans import Scans, open_scans

_HOMES = {"Scans": "scans", "open_scans": "scans"}

__all__ = ["Scans", "open_scans"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise no_attribute("deconfound.data", name)
    value = getattr(import_module(f"deconfound.data.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
