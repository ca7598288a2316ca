"""One scan from its file: in one orientation, as float32, or the reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.cache import Fault
from deconfound.errors import DeconfoundError


def read_scan(path: Path) -> tuple[NDArray[np.float32], tuple[float, float, float]]:
    """A volume with its axes to the right, to the front and up, and its voxel size in mm.

    Raises:
        Fault: The file is absent, broken, not three-dimensional, without contrast, or has voxels that are no numbers.
    """
    import nibabel

    if not path.is_file():
        raise Fault("there is no such file")
    try:
        image: Any = nibabel.load(path)
        shape = image.shape
        kind = np.dtype(image.get_data_dtype()).kind
        if len(shape) > 3 and all(edge == 1 for edge in shape[3:]):
            image, shape = image.slicer[(slice(None),) * 3 + (0,) * (len(shape) - 3)], shape[:3]
        if len(shape) == 3 and kind in "biuf" and min(shape) > 0:
            image = nibabel.as_closest_canonical(image)
            volume = np.asarray(image.dataobj, dtype=np.float32)
            zooms = tuple(float(edge) for edge in image.header.get_zooms()[:3])
    except Exception as error:  # each format and each way of being broken has a kind of its own
        first = str(error).splitlines()[0] if str(error) else ""
        raise Fault(f"cannot be read ({type(error).__name__}: {first})", lasting=False) from error
    if len(shape) != 3 or min(shape) == 0:
        raise Fault(f"must have three dimensions; got shape {tuple(shape)}")
    if kind not in "biuf":
        raise Fault(f"must hold numbers; got voxels of type {image.get_data_dtype()}")
    wrong = int(volume.size - np.isfinite(volume).sum())
    if wrong:
        raise Fault(f"has {wrong} voxels that are NaN or infinite")
    if volume.min() == volume.max():
        raise Fault(f"is empty: every voxel is {volume.flat[0]:g}")
    return volume, (zooms[0], zooms[1], zooms[2])


def need_nibabel() -> None:
    """Refuse to go on without nibabel, and say how to get it."""
    try:
        import nibabel  # noqa: F401
    except ImportError as error:
        raise DeconfoundError("nibabel must be installed to read scans. Run: pip install 'deconfound[mri]'") from error
