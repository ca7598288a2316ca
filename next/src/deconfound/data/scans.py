"""Scans: NIfTI and MGH volumes, in one orientation and in 8 bits."""

from __future__ import annotations

import gzip
import io
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.images import reading
from deconfound.data.intensity import read_size, resample, to_bytes
from deconfound.errors import TableError, import_extra

SCAN_ENDINGS = (".nii", ".nii.gz", ".mgh", ".mgz")
# A small damaged or forged file may claim any number of voxels, and would take all memory.
LARGEST_VOXELS = 500_000_000
# gzip cannot pack better than this.
LARGEST_RATIO = 1032


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
    _, lengths = read_size(size, 3)
    nibabel = import_extra("nibabel", "mri")
    with reading(path):
        image = nibabel.load(path)
        _check_header(image, path)
        if _is_gzip(path):
            image = type(image).from_stream(io.BytesIO(_unpack(path)))
        voxels = np.asarray(image.dataobj, dtype=np.float32).reshape(image.shape[:3])
        orientation = nibabel.io_orientation(image.affine)
        voxels = nibabel.apply_orientation(voxels, orientation)
        return to_bytes(resample(voxels, lengths or voxels.shape))[None]


def measure_scan(path: Path) -> tuple[int, ...]:
    """Return the shape that `read_scan` gives, from the header of the file alone."""
    nibabel = import_extra("nibabel", "mri")
    with reading(path):
        image = nibabel.load(path)
        _check_header(image, path)
        # Entry i of the first column is the axis that axis i of the file becomes.
        axes = np.argsort(nibabel.io_orientation(image.affine)[:, 0])
        return (1, *(int(image.shape[axis]) for axis in axes))


def _check_header(image: Any, path: str | os.PathLike[str]) -> None:
    """Refuse a header before memory is taken for what it claims."""
    shape, dtype = tuple(map(int, image.shape)), np.dtype(image.get_data_dtype())
    if len(shape) < 3 or set(shape[3:]) - {1}:
        raise TableError(f"has shape {shape} instead of three axes. Save one volume of it")
    if dtype.kind not in "biuf":
        raise TableError(f"holds voxels of type {dtype} instead of numbers")
    if min(shape) < 1 or math.prod(shape) > LARGEST_VOXELS:
        raise TableError(f"claims the shape {shape}; 1 to {LARGEST_VOXELS:,} voxels are read")
    bytes_on_disk = os.path.getsize(path)
    room = bytes_on_disk * (LARGEST_RATIO if _is_gzip(path) else 1)
    if math.prod(shape) * dtype.itemsize > room:
        raise TableError(f"is cut short: {bytes_on_disk:,} bytes cannot hold the shape {shape}")


def _is_gzip(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith((".gz", ".mgz"))


def _unpack(path: str | os.PathLike[str]) -> bytes:
    """Return the whole content, because the checksum stands behind the voxels."""
    limit = 8 * LARGEST_VOXELS
    with gzip.open(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise TableError(f"unpacks to more than {limit:,} bytes")
    return content
