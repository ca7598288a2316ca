"""One volume: read from its file, brought to one orientation, shape and scale, and packed into a compact type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deconfound.data.cache import VolumeFault
from deconfound.errors import DeconfoundError, OptionError, need

Fit = Literal["resample", "crop"]
Packing = Literal["uint8", "float16"]
Shape3 = tuple[int, int, int]

PERCENTILES = (0.5, 99.5)
# As a share of the 99.5th percentile: more than ten times half a step of 16 bits.
NEXT_TO_NOTHING = 1e-4
# Deflate cannot pack better than this.
_BEST_COMPRESSION = 1032
_CHUNK = 1 << 20


def need_nibabel() -> None:
    """Refuse to go on without nibabel, and say how to get it."""
    need("nibabel", "mri")


def read_scan(path: Path, max_gb: float = 1.0) -> tuple[NDArray[np.float32], tuple[float, float, float]]:
    """A volume with its axes to the right, to the front and up, and its voxel size in mm.

    A header that claims more than `max_gb` of float32 is refused: a small broken or forged file would otherwise take
    all memory. Any other fault of the file is a `VolumeFault` too.
    """
    import nibabel

    with reading(path), ExitStack() as opened:
        image: Any = nibabel.load(path)
        shape = tuple(int(edge) for edge in image.shape)
        kind = np.dtype(image.get_data_dtype()).kind
        _check_claim(shape, np.dtype(image.get_data_dtype()).itemsize, path.stat().st_size, max_gb)
        image, streams = _from_streams(image, opened)
        if len(shape) > 3 and all(edge == 1 for edge in shape[3:]):
            image, shape = image.slicer[(slice(None),) * 3 + (0,) * (len(shape) - 3)], shape[:3]
        if len(shape) == 3 and kind in "biuf" and min(shape) > 0:
            image = nibabel.as_closest_canonical(image)
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # what does not fit float32 is infinite, and refused below
                volume = np.asarray(image.dataobj, dtype=np.float32)
            _read_to_end(streams)
            zooms = tuple(float(edge) for edge in image.header.get_zooms()[:3])
    if len(shape) != 3 or min(shape) <= 0:
        raise VolumeFault(f"must have three dimensions; got shape {shape}")
    if kind not in "biuf":
        raise VolumeFault(f"must hold numbers; got voxels of type {image.get_data_dtype()}")
    check_contrast(volume, "voxel")
    return volume, (zooms[0], zooms[1], zooms[2])


def _from_streams(image: Any, opened: ExitStack) -> tuple[Any, list[Any]]:
    """The image, to be read from the streams of its compressed files, and these streams, which `opened` closes."""
    from nibabel.openers import ImageOpener

    endings = tuple(ending for ending in ImageOpener.compress_ext_map if ending)
    packed = [file for file in image.file_map.values() if str(file.filename).lower().endswith(endings)]
    for file in packed:
        file.fileobj = opened.enter_context(ImageOpener(file.filename)).fobj
    return (type(image).from_file_map(image.file_map) if packed else image), [file.fileobj for file in packed]


def _read_to_end(streams: Sequence[Any]) -> None:
    """Read what is behind the voxels: the checksum of a compressed file stands at its end, and is compared there."""
    for stream in streams:
        while stream.read(_CHUNK):
            pass


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a package raises while it reads a file is a fault of this file alone."""
    if not path.is_file():
        raise VolumeFault("there is no such file")
    try:
        yield
    except (VolumeFault, DeconfoundError):
        raise
    except Exception as error:  # each format and each way of being broken has a kind of its own
        first = str(error).splitlines()[0] if str(error) else ""
        raise VolumeFault(f"cannot be read ({type(error).__name__}: {first})", lasting=False) from error


def check_contrast(values: NDArray[np.float32], what: str) -> None:
    """Refuse values that are not finite or all the same; `what` is what one is called."""
    if wrong := int(values.size - np.isfinite(values).sum()):
        raise VolumeFault(f"has {wrong} {what}s that are NaN or infinite")
    if values.min() == values.max():
        raise VolumeFault(f"is empty: every {what} is {values.flat[0]:g}")


def _check_claim(shape: Sequence[int], itemsize: int, on_disk: int, max_gb: float) -> None:
    """Refuse what a header claims before memory is taken for it."""
    voxels = float(np.prod([max(edge, 0) for edge in shape], dtype=np.float64))
    if voxels * itemsize > _BEST_COMPRESSION * on_disk:
        raise VolumeFault(f"is cut short: {on_disk:,} bytes cannot hold the shape {tuple(shape)} of its header")
    if voxels * 4 > max_gb * 1e9:
        raise VolumeFault(
            f"claims {voxels * 4 / 1e9:.3g} GB, shape {tuple(shape)}, which is above the limit; raise it with max_gb=…",
            lasting=False,
        )


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

    Where voxels are negative, the 0.5th percentile becomes zero instead. What is next to nothing beside the 99.5th
    percentile counts as zero: a file of whole numbers with an offset has no exact zero, and a scan must not become
    brighter by how it was stored.
    """
    filled = volume[volume != 0]
    if not filled.size:
        return np.zeros_like(volume)
    low, high = np.percentile(filled, PERCENTILES)
    seen = np.abs(filled) > NEXT_TO_NOTHING * max(high, -low)
    if seen.any() and not seen.all():
        low, high = np.percentile(filled[seen], PERCENTILES)
    low = min(low, 0.0)
    if high <= low:
        low, high = float(filled.min()), float(filled.max())
        low = min(low, 0.0)
    scaled: NDArray[np.float32] = np.clip((volume - np.float32(low)) / np.float32(max(high - low, 1e-12)), 0, 1)
    return scaled.astype(np.float32)


def pack(scaled: NDArray[np.float32], packing: Packing) -> NDArray[Any]:
    """Values in 0 … 1 as they are stored: in 255 steps (`uint8`), or with 11 bits (`float16`)."""
    if packing == "uint8":
        return np.rint(scaled * 255).astype(np.uint8)
    return scaled.astype(np.float16)


def check_shape(shape: Sequence[int]) -> Shape3:
    """The shape, refused where it is not three positive whole numbers."""
    edges = tuple(shape) if isinstance(shape, Sequence | np.ndarray) else ()
    if len(edges) != 3 or any(not isinstance(e, int | np.integer) or isinstance(e, bool) or e < 1 for e in edges):
        raise OptionError(f"shape must be three positive whole numbers; got {edges or shape!r}.")
    return int(edges[0]), int(edges[1]), int(edges[2])


def check_packing(packing: str) -> None:
    """Refuse a type that volumes are not stored in."""
    if packing not in ("uint8", "float16"):
        raise OptionError(f"dtype must be 'uint8' or 'float16'; got {packing!r}.")
