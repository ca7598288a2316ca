"""Scans: NIfTI and MGH volumes, in one orientation and in 8 bits."""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.images import read_size, reading, to_bytes
from deconfound.errors import TableError, import_extra

SCAN_ENDINGS = (".nii", ".nii.gz", ".mgh", ".mgz")
# A small damaged or forged file may claim any number of voxels, and would take all memory.
LARGEST_VOXELS = 500_000_000
# This many bytes may stand behind the voxels. A packed file may unpack to any number.
LARGEST_FOOTER = 2**24


def read_scan(path: str | os.PathLike[str], size: Any = None) -> NDArray[np.uint8]:
    """Return a scan, shape `(1, x, y, z)`, with its axes to the right, to the front and up.

    Slope and intercept of the file are applied. Axes are swapped and reversed, but voxels are not
    interpolated, so an oblique scan keeps its angle. Each scan is scaled for itself: 0 stays 0, and
    the 99.5th percentile of the voxels that are not 0 becomes 255. If voxels are negative, their
    0.5th percentile becomes 0 instead. Voxels next to nothing (below 1e-4 of the 99.5th percentile)
    are 0, so that a scan does not become brighter by how it was stored.

    Args:
        path: A .nii, .nii.gz, .mgh or .mgz file.
        size: None keeps the voxels. 64, or (64, 72, 64), or (1, 64, 72, 64): the whole field of
            view is stretched to this size before it is scaled; larger voxels are averages.

    Raises:
        TableError: The file is absent, damaged or cut short, claims more voxels than it can
            hold, or is empty.

    Example:
        >>> import tempfile, nibabel, numpy as np
        >>> voxels = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nibabel.Nifti1Image(voxels, np.eye(4)).to_filename(f"{folder}/scan.nii.gz")
        ...     read_scan(f"{folder}/scan.nii.gz").shape
        (1, 2, 3, 4)
    """
    nibabel = import_extra("nibabel", "mri")
    _, lengths = read_size(size, 3)
    with reading(path):
        image = _open(path)
        # The whole file, because the checksum of gzip stands behind the voxels.
        image = type(image).from_bytes(_read_content(path, image))
        voxels = np.asarray(image.dataobj, dtype=np.float32).reshape(image.shape[:3])
        voxels = nibabel.apply_orientation(voxels, nibabel.io_orientation(image.affine))
        return to_bytes(_resample(voxels, lengths or voxels.shape))[None]


def measure_scan(path: Path) -> tuple[int, ...]:
    """Return the shape that `read_scan` gives, from the header of the file alone."""
    nibabel = import_extra("nibabel", "mri")
    with reading(path):
        image = _open(path)
        # Entry i of the first column is the axis that axis i of the file becomes.
        axes = np.argsort(nibabel.io_orientation(image.affine)[:, 0])
        return (1, *(int(image.shape[axis]) for axis in axes))


def _resample(volume: NDArray[np.float32], lengths: Sequence[int]) -> NDArray[np.float32]:
    """Return a volume with these lengths, by linear interpolation along each axis.

    Where a new voxel is larger than an old one, it is the weighted mean of all that it covers.
    """
    from PIL import Image

    for axis, length in enumerate(lengths):
        moved = np.moveaxis(volume, axis, 0)
        # As a picture whose lines are the planes of the volume. Only its height changes.
        picture = Image.fromarray(moved.reshape(len(moved), -1))
        picture = picture.resize((picture.width, length), Image.Resampling.BILINEAR)
        volume = np.moveaxis(np.asarray(picture).reshape(length, *moved.shape[1:]), 0, axis)
    return volume


def _open(path: str | os.PathLike[str]) -> Any:
    """Return a scan of which only the header is read, and refuse one that claims too much."""
    image = import_extra("nibabel", "mri").load(path)
    shape, dtype = image.shape, image.get_data_dtype()
    if len(shape) < 3 or set(shape[3:]) - {1}:
        raise TableError(f"has shape {shape} instead of three axes. Save one volume of it")
    if dtype.kind not in "biuf":
        raise TableError(f"holds voxels of type {dtype} instead of numbers")
    if min(shape) < 1 or math.prod(map(int, shape)) > LARGEST_VOXELS:
        raise TableError(f"claims the shape {shape}; 1 to {LARGEST_VOXELS:,} voxels are read")
    return image


def _read_content(path: str | os.PathLike[str], image: Any) -> bytes:
    is_packed = os.fspath(path).lower().endswith((".gz", ".mgz"))
    claim = image.get_data_dtype().itemsize * math.prod(map(int, image.shape))
    limit = image.dataobj.offset + claim + LARGEST_FOOTER
    with gzip.open(path) if is_packed else open(path, "rb") as file:
        content = file.read(limit + 1)
    if not claim <= len(content) <= limit:
        raise TableError(f"is cut short or too long: its header claims {claim:,} bytes of voxels")
    return content
