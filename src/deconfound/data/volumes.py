"""What is done to a volume once, before it is kept: one shape, one scale, and a compact type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deconfound.errors import OptionError

Fit = Literal["resample", "crop"]
Packing = Literal["uint8", "float16"]
Shape3 = tuple[int, int, int]

CEILING_PERCENTILE = 99.5


def to_shape(
    volume: NDArray[np.float32],
    shape: Shape3,
    fit: Fit = "resample",
    zooms: tuple[float, float, float] | None = None,
    spacing: float | None = None,
) -> NDArray[np.float32]:
    """Bring a volume to a shape, by linear interpolation along each axis.

    Args:
        volume: Three-dimensional.
        shape: Of the result.
        fit: "resample" stretches the whole field of view to the shape; "crop" keeps the voxels as they are (or brings
            them to `spacing`), cuts what is too much on both sides and fills what is missing with zeros.
        zooms: The volume's voxel size in mm; needed for `spacing`.
        spacing: With "crop", the voxel size in mm that volumes are brought to first.

    Example:
        >>> to_shape(np.ones((5, 4, 4), np.float32), (3, 2, 6), "crop").sum().item()
        24.0
    """
    check_shape(shape)
    if fit not in ("resample", "crop"):
        raise OptionError(f"fit must be 'resample' or 'crop'; got {fit!r}.")
    if spacing is not None and (fit == "resample" or zooms is None or spacing <= 0):
        raise OptionError(f"spacing must be positive and go with fit='crop'; got spacing={spacing} with fit={fit!r}.")
    for axis, (have, want) in enumerate(zip(volume.shape, shape, strict=True)):
        if spacing is not None and zooms is not None:
            step = spacing / zooms[axis]
        else:
            step = have / want if fit == "resample" else 1.0
        if step != 1.0 or have != want:
            weights = axis_weights(have, want, step)
            volume = np.moveaxis(np.tensordot(weights, volume, axes=(1, axis)), 0, axis)
    return np.ascontiguousarray(volume, dtype=np.float32)


def axis_weights(have: int, want: int, step: float) -> NDArray[np.float32]:
    """What each of `want` new voxels takes from each of `have` old ones, `step` old voxels apart and centred.

    The kernel is a triangle, as wide as a new voxel where that is larger, so that nothing between two new voxels is
    skipped. New voxels outside the old ones are zero.
    """
    offset = (have - 1) / 2 - (want - 1) / 2 * step
    if step == 1.0:
        offset = float(np.trunc(offset))  # whole voxels are moved, not blurred by half a voxel
    centres = offset + step * np.arange(want)
    width = max(1.0, step)
    weights = np.clip(1 - np.abs(centres[:, None] - np.arange(have)) / width, 0, None)
    weights[(centres < -0.5) | (centres > have - 0.5)] = 0
    total = weights.sum(1, keepdims=True)
    scaled: NDArray[np.float32] = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return scaled.astype(np.float32)


def robust_scale(volume: NDArray[np.float32]) -> NDArray[np.float32]:
    """To 0 … 1: zero stays zero, the 99.5th percentile of the voxels that are not zero becomes one, the rest is cut.

    Where voxels are negative, the 0.5th percentile becomes zero instead.
    """
    filled = volume[volume != 0]
    if not filled.size:
        return np.zeros_like(volume)
    low, high = np.percentile(filled, [100 - CEILING_PERCENTILE, CEILING_PERCENTILE])
    low = min(low, 0.0)
    if high <= low:
        low, high = float(filled.min()), float(filled.max())
        low = min(low, 0.0)
    scaled: NDArray[np.float32] = np.clip((volume - np.float32(low)) / np.float32(max(high - low, 1e-12)), 0, 1)
    return scaled.astype(np.float32)


def pack(scaled: NDArray[np.float32], packing: Packing) -> NDArray[Any]:
    """Values in 0 … 1 as they are kept: in 255 steps (`uint8`), or with 11 bits (`float16`)."""
    if packing == "uint8":
        return np.rint(scaled * 255).astype(np.uint8)
    return scaled.astype(np.float16)


def unpack(stored: NDArray[Any]) -> NDArray[np.float32]:
    """Kept values as float32 in 0 … 1."""
    if stored.dtype == np.uint8:
        values: NDArray[np.float32] = np.multiply(stored, np.float32(1 / 255), dtype=np.float32)
        return values
    return stored.astype(np.float32)


def check_shape(shape: Sequence[int]) -> Shape3:
    """The shape, refused where it is not three positive whole numbers."""
    if len(shape) != 3 or any(not isinstance(edge, int | np.integer) or edge < 1 for edge in shape):
        raise OptionError(f"shape must be three positive whole numbers; got {tuple(shape)}.")
    return int(shape[0]), int(shape[1]), int(shape[2])


def check_packing(packing: str) -> None:
    """Refuse a type that volumes are not kept in."""
    if packing not in ("uint8", "float16"):
        raise OptionError(f"dtype must be 'uint8' or 'float16'; got {packing!r}.")
