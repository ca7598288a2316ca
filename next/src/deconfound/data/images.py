"""Pictures: decoded, turned, brought to one size and to 8 bits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.errors import DeconfoundError, OptionError, TableError

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".gif")
# A file of some kB may claim any number of pixels, and would take all memory.
LARGEST_PIXELS = 80_000_000
_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)
# As shares of the values that are not zero. A few hot voxels must not darken the others.
PERCENTILES = (0.5, 99.5)
# A file of whole numbers with an offset has no exact zero. Values below this share of the 99.5th
# percentile, which is six steps of 16 bits, are zero.
NEXT_TO_NOTHING = 1e-4


def read_image(path: str | os.PathLike[str], size: Any = None) -> NDArray[np.uint8]:
    """Return a picture, shape `(channels, height, width)`: 1 channel if it is grey, else 3.

    It is turned as the camera noted. Palettes are colours, and transparent parts are white. 8-bit
    values stay as they are; grey values of 16 bits or more are scaled per picture: 0 stays 0, the
    99.5th percentile of the values that are not 0 becomes 255.

    Args:
        path: A .png, .jpg, .tif, .bmp, .webp or .gif file with one frame.
        size: None keeps the size of the file. 64, (64, 48) for height and width, or
            (3, 64, 48) also for the channels. The picture is stretched; where pixels become larger,
            they are averages.

    Raises:
        TableError: The file is absent, damaged, has several frames, or claims too many pixels.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (4, 2), (255, 128, 0)).save(f"{folder}/orange.png")
        ...     read_image(f"{folder}/orange.png", size=1).ravel().tolist()
        [255, 128, 0]
    """
    with reading(path), _open(path) as picture:
        return to_pixels(picture, size)


def measure_image(path: Path) -> tuple[int, ...]:
    """Return the shape that `read_image` gives, from the header of the file alone."""
    with reading(path), _open(path) as picture:
        width, height = picture.size
        if picture.getexif().get(_ORIENTATION) in _SIDEWAYS:
            width, height = height, width
        return (1 if _is_grey(picture) else 3, height, width)


def to_pixels(picture: Any, size: Any = None) -> NDArray[np.uint8]:
    """Return a picture of Pillow as `read_image` does."""
    from PIL import Image, ImageOps

    channels, lengths = read_size(size, 2)
    picture = ImageOps.exif_transpose(picture)
    channels = channels or (1 if _is_grey(picture) else 3)
    if _is_deep(picture):
        picture = Image.fromarray(np.asarray(picture, dtype=np.float32))
    else:
        if picture.has_transparency_data:
            white = Image.new("RGBA", picture.size, "white")
            picture = Image.alpha_composite(white, picture.convert("RGBA"))
        picture = picture.convert("L" if channels == 1 else "RGB")
    if lengths is not None and picture.size != lengths[::-1]:
        picture = picture.resize(lengths[::-1], Image.Resampling.BILINEAR)
    pixels = np.asarray(picture)
    if _is_deep(picture):
        pixels = to_bytes(pixels)
    if pixels.ndim == 2:
        return np.repeat(pixels[None], channels, axis=0)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


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
    is_filled = size > NEXT_TO_NOTHING * np.percentile(size[size > 0], PERCENTILES[1])
    low, high = np.percentile(values[is_filled], PERCENTILES)
    # Values that are all negative end at 0, which is then the brightest one.
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    shares = (np.where(is_filled, values, 0) - low) / (high - low)
    steps: NDArray[np.uint8] = np.rint(255 * np.clip(shares, 0, 1)).astype(np.uint8)
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
    lengths = np.array(size)
    lengths = lengths.repeat(axes) if lengths.ndim == 0 else lengths
    is_whole = lengths.dtype.kind in "iu" and lengths.ndim == 1 and lengths.min(initial=1) > 0
    channels = lengths[:-axes].tolist()
    choices = [[], [1], [3]] if axes == 2 else [[], [1]]
    if not is_whole or len(lengths) < axes or channels not in choices:
        shape = (3, 64, 64) if axes == 2 else (1, 64, 64, 64)
        raise OptionError(
            f"size={size!r} is no size. Write size=64, or the length of each axis, or the shape of "
            f"other samples: size={shape}."
        )
    return channels[0] if channels else None, tuple(lengths[-axes:].tolist())


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in each error, whatever a package raises while it reads the file."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # Each format and each way of being damaged has another type.
        reason = " ".join(str(error).split()).rstrip(".")
        if not isinstance(error, DeconfoundError):
            kind = type(error).__name__
            reason = f"cannot be read ({kind}: {reason[:80]}). Check that it is complete"
        raise TableError(f"{os.fspath(path)!r} {reason}.") from error


@contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[Any]:
    from PIL import Image

    with Image.open(path) as picture:
        width, height = picture.size
        if width * height > LARGEST_PIXELS:
            raise TableError(
                f"claims {width:,} × {height:,} pixels, more than {LARGEST_PIXELS:,}. Shrink it"
            )
        frames = getattr(picture, "n_frames", 1)
        # A telephone writes a small copy behind the picture (MPO).
        if frames > 1 and picture.format != "MPO":
            raise TableError(f"has {frames} frames. Save one of them")
        yield picture


def _is_deep(picture: Any) -> bool:
    """Return True for grey values of 16 bits or more, or floats."""
    return str(picture.mode).startswith(("F", "I"))


def _is_grey(picture: Any) -> bool:
    return picture.mode in ("1", "L", "LA", "La") or _is_deep(picture)
