"""The anatomical base of the simulated cohort: tissue fractions and regions on one grid in millimetres."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from deconfound.errors import OptionError
from deconfound_lab.cohort.procedural import (
    HIPPOCAMPUS,
    STRIATUM,
    VENTRICLES,
    Field,
    capsules,
    draw_tissues,
    ellipsoid,
    inside,
)

CORNER = (-90.0, -126.0, -72.0)
EXTENT = (182.0, 218.0, 182.0)
"""The box of every volume in mm, that of the 2 mm MNI grid: x to the right, y to the front, z up."""

KINDS = ("procedural", "icbm152")


@dataclass(frozen=True)
class Anatomy:
    """Maps on a grid of `size`³ voxels over the box: shares between 0 and 1, `(size, size, size)` each.

    Attributes:
        size: Edge of the grid.
        maps: `brain`, `csf`, `gray`, `white`; the regions `ventricles`, `hippocampus`, `striatum`, `cortex`.
    """

    size: int
    maps: Mapping[str, Field]


def axes(size: int) -> tuple[Field, Field, Field]:
    """The voxels' centres along each axis, in mm."""
    x, y, z = (
        (corner + (np.arange(size) + 0.5) * extent / size).astype(np.float32)
        for corner, extent in zip(CORNER, EXTENT, strict=True)
    )
    return x, y, z


def grid(size: int) -> tuple[Field, Field, Field]:
    """The coordinates of every voxel, three arrays `(size, size, size)` in mm."""
    x, y, z = np.meshgrid(*axes(size), indexing="ij")
    return x, y, z


def affine(size: int) -> NDArray[np.float64]:
    """From voxel indices to mm, as NIfTI stores it."""
    steps = np.divide(EXTENT, size)
    matrix = np.diag([*steps, 1.0])
    matrix[:3, 3] = np.add(CORNER, steps / 2)
    return matrix


@lru_cache(maxsize=2)
def load_anatomy(kind: str, size: int) -> Anatomy:
    """The base of a kind: `procedural`, drawn from formulas, or `icbm152`, the averaged maps that nilearn ships."""
    if kind == "procedural":
        return Anatomy(size, draw_tissues(*grid(size), softness=max(1.0, 0.5 * EXTENT[0] / size)))
    if kind == "icbm152":
        return _icbm152(size)
    raise OptionError(f"anatomy must be one of {', '.join(KINDS)}; got {kind!r}.")


def _icbm152(size: int) -> Anatomy:
    try:
        from nilearn import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise OptionError(
            "anatomy='icbm152' must find the maps inside nilearn; got no nilearn here. "
            "pip install 'deconfound[atlas]', or take anatomy='procedural'."
        ) from error
    mask, gray, white = (
        _sample(image, size)
        for image in (
            datasets.load_mni152_brain_mask(resolution=1),
            datasets.load_mni152_gm_template(resolution=1),
            datasets.load_mni152_wm_template(resolution=1),
        )
    )
    brain = np.maximum(mask, np.minimum(gray + white, 1))
    total = np.maximum(gray + white, 1e-6)
    filled = np.minimum(total, brain)
    gray, white = gray * filled / total, white * filled / total
    csf = brain - gray - white
    x, y, z = grid(size)
    side = (np.abs(x), y, z)
    # The shared outlines say where a region is; the maps say what is in it.
    ventricles = csf * inside(np.minimum(capsules(side, VENTRICLES), ellipsoid(side, (0, -8, 0), (3, 16, 12))) - 4, 3)
    cerebellum = ellipsoid(side, (19, -64, -36), (34, 29, 25))
    deep = ellipsoid(side, (0, -8, 4), (33, 36, 24))
    return Anatomy(
        size,
        {
            "brain": brain,
            "csf": csf,
            "gray": gray,
            "white": white,
            "ventricles": ventricles,
            "hippocampus": gray * inside(capsules(side, HIPPOCAMPUS) - 2, 2),
            "striatum": gray * inside(capsules(side, STRIATUM) - 2, 2),
            "cortex": gray * inside(-deep, 2) * inside(-cerebellum, 2),
        },
    )


def _sample(image: object, size: int) -> Field:
    """A NIfTI image on the grid of this file, by linear interpolation."""
    import torch
    from torch.nn.functional import grid_sample

    values = np.asarray(image.get_fdata(dtype=np.float32))  # type: ignore[attr-defined]
    inverse = np.linalg.inv(image.affine)  # type: ignore[attr-defined]
    places = np.stack([*grid(size), np.ones((size,) * 3, np.float32)]).reshape(4, -1)
    indices = (inverse @ places)[:3]
    scaled = 2 * indices / (np.array(values.shape)[:, None] - 1) - 1
    points = torch.from_numpy(scaled[::-1].T.copy()).float().reshape(1, size, size, size, 3)
    found = grid_sample(torch.from_numpy(values)[None, None], points, align_corners=True)
    sampled: Field = found[0, 0].clamp(0, 1).numpy()
    return sampled
