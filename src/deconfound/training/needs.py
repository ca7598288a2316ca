"""Packages that a run needs beside the base (`deconfound.errors.need`), and faults in a list."""

from __future__ import annotations

from collections.abc import Sequence

from deconfound.errors import need

__all__ = ["listed_faults", "need"]


def listed_faults(what: str, faults: Sequence[str]) -> str:
    """One fault in a sentence, several in a list."""
    if len(faults) == 1:
        return f"{what}: {faults[0]}"
    return f"{what} has {len(faults)} faults:\n" + "\n".join(f"- {fault}" for fault in faults)
