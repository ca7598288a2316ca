"""Grey values of any range, and volumes of any size, brought to a common form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from deconfound.errors import OptionError, TableError

# As shares of the values that are not zero. A few hot voxels must not darken the others.
PERCENTILES = (0.5, 99.5)
# A file of whole numbers with an offset has no exact zero. Values below this share of the 99.5th
# percentile, which is six steps of 16 bits, are zero.
NEXT_TO_NOTHING = 1e-4
_WRITE_SIZE = "Write size=64, or the length of each axis, or the shape of other samples"


def to_bytes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return grey values of one sample in 255 steps, independent of their unit.

    0 stays 0, and the 99.5th percentile of the values that are not 0 becomes 255. Where values are
    negative, their 0.5th percentile becomes 0 instead. What lies beyond is cut.

    Raises:
        TableError: A value is not finite, or all are equal.
    """
    wrong = values.size - int(np.isfinite(values).sum())
    if wrong:
        raise TableError(f"has {wrong:,} values that are NaN or infinite")
    if values.min() == values.max():
        raise TableError(f"is empty: each value is {values.flat[0]:g}")
    size = np.abs(values)
    largest = np.percentile(size[size > 0], PERCENTILES[1])
    is_filled = size > NEXT_TO_NOTHING * largest
    low, high = np.percentile(values[is_filled], PERCENTILES)
    low = min(float(low), 0.0)
    # Values that are all negative end at 0, which is then the brightest one.
    high = max(float(high), 0.0)
    filled = np.where(is_filled, values, np.float32(0))
    shares = np.clip((filled - np.float32(low)) / np.float32(high - low), 0, 1)
    steps: NDArray[np.uint8] = np.rint(255 * shares).astype(np.uint8)
    return steps


def read_size(size: Any, axes: int) -> tuple[int | None, tuple[int, ...] | None]:
    """Return the number of channels and the length of each axis; None where it is not given.

    Args:
        size: None, one length for all axes, one length per axis, or these after the channels.
        axes: The number of axes without that of channels.

    Raises:
        OptionError: It is none of these.
    """
    if size is None:
        return None, None
    lengths = (size,) * axes if isinstance(size, (int, np.integer)) else size
    is_list = isinstance(lengths, (Sequence, np.ndarray)) and not isinstance(lengths, str)
    lengths = tuple(lengths) if is_list else ()
    is_whole = all(isinstance(x, (int, np.integer)) and x > 0 for x in lengths)
    if isinstance(size, bool) or len(lengths) not in (axes, axes + 1) or not is_whole:
        shape = (3, 64, 64) if axes == 2 else (1, 64, 64, 64)
        raise OptionError(f"size={size!r} is no size. {_WRITE_SIZE}: size={shape}.")
    channels = int(lengths[0]) if len(lengths) > axes else None
    if channels not in ((None, 1, 3) if axes == 2 else (None, 1)):
        raise OptionError(f"size={size!r} asks for {channels} channels. {_WRITE_SIZE}.")
    return channels, tuple(int(length) for length in lengths[-axes:])


def choose_shape(
    shapes: Sequence[tuple[int, ...]], size: Any, what: str
) -> tuple[tuple[int, ...], str]:
    """Return the shape `(channels, …)` of all samples, and a note if some are resized.

    Args:
        shapes: The shape `(channels, …)` of each file. Grey ones get the channels of the others.
        size: The size to bring them to; None keeps theirs, if it is the same for all.
        what: What a file holds, for messages.

    Raises:
        OptionError: Lists the sizes that there are, with a size to write.
    """
    channels, lengths = read_size(size, len(shapes[0]) - 1)
    counts = Counter(shape[1:] for shape in shapes)
    if lengths is None:
        lengths = counts.most_common(1)[0][0]
        if len(counts) > 1:
            raise OptionError(_sizes_message(counts, what))
    others = len(shapes) - counts[lengths]
    note = f"{others:,} {what}s of other sizes were resized to {_format_size(lengths)}."
    return (channels or max(shape[0] for shape in shapes), *lengths), note if others else ""


def _sizes_message(counts: Counter[tuple[int, ...]], what: str) -> str:
    listed = [f"{_format_size(size)} ({count:,})" for size, count in counts.most_common(5)]
    more = ", …" if len(counts) > 5 else ""
    usual = counts.most_common(1)[0][0]
    size = usual[0] if len(set(usual)) == 1 else usual
    return (
        f"The {what}s have {len(counts)} sizes: {', '.join(listed)}{more}. "
        f"Write size={size} to bring all of them to one size."
    )


def _format_size(lengths: Sequence[int]) -> str:
    return " × ".join(map(str, lengths))


def resample(volume: NDArray[np.float32], lengths: Sequence[int]) -> NDArray[np.float32]:
    """Return a volume with these lengths, by linear interpolation along each axis.

    Where a new voxel is larger than an old one, it is the weighted mean of all that it covers.
    """
    for axis, length in enumerate(lengths):
        if volume.shape[axis] != length:
            moved = np.moveaxis(volume, axis, 0)
            # A sparse product runs in this thread alone. Those of dense arrays would start threads
            # in each of the threads that decode.
            weights = csr_array(_axis_weights(volume.shape[axis], length))
            resized = weights @ moved.reshape(len(moved), -1)
            volume = np.moveaxis(resized.reshape(length, *moved.shape[1:]), 0, axis)
    return volume


def _axis_weights(old: int, new: int) -> NDArray[np.float32]:
    """Return the share of each old voxel in each new one, shape `(new, old)`; rows sum to 1."""
    step = old / new
    centres = (np.arange(new) + 0.5) * step - 0.5
    distances = np.abs(centres[:, None] - np.arange(old))
    # A triangle as wide as a new voxel. At the border it is cut, so that rows are divided.
    weights = np.clip(1 - distances / max(1.0, step), 0, None)
    shares: NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares
