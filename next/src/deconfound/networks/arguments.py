"""Checks of the arguments that networks share. All wrong ones are reported together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from deconfound.errors import OptionError

Shape: TypeAlias = tuple[int, ...]

# The shape of a sample with one to four axes.
SHAPES = ("(d,)", "(channels, length)", "(channels, height, width)", "(channels, x, y, z)")


def check_arguments(
    network: str,
    shape: Any,
    axes: Sequence[int],
    counts: Mapping[str, Any],
    widths: Mapping[str, Any] | None = None,
    dropout: Any = 0.0,
) -> None:
    """Raise one error that lists all wrong arguments of a network.

    Args:
        network: The kind of network, as the error names it.
        shape: Shape of one sample.
        axes: The numbers of axes that the network reads.
        counts: Arguments that must be whole numbers, by name.
        widths: Arguments that must be lists of whole numbers, by name.
        dropout: A probability.
    """
    faults = []
    if not _are_whole(shape) or len(shape) not in axes:
        shapes = " or ".join(SHAPES[count - 1] for count in axes)
        advice = "Use an MLP for tables, a ConvNet for signals, images and volumes."
        faults.append(f"{network} reads samples of shape {shapes}; got {shape!r}. {advice}")
    for name, value in counts.items():
        if not _are_whole([value]):
            faults.append(f"{name} must be a whole number from 1; got {value!r}.")
    for name, value in (widths or {}).items():
        if not _are_whole(value):
            faults.append(f"{name} must be a list such as [64, 32]; got {value!r}.")
    if type(dropout) not in (int, float) or not 0 <= dropout < 1:
        faults.append(f"dropout must be a number from 0 to below 1; got {dropout!r}.")
    if faults:
        raise OptionError("\n".join(faults))


def _are_whole(values: Any) -> bool:
    """Return True for a list or tuple of whole numbers of 1 or more."""
    if not isinstance(values, list | tuple):
        return False
    # True would count as 1.
    whole = [isinstance(value, int | np.integer) and value is not True for value in values]
    return all(whole) and all(value >= 1 for value in values)
