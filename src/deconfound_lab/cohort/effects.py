"""From latents to a brain: where each effect acts on the template, and how strongly for each person."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool3d, conv3d, pad

from deconfound_lab.cohort.anatomy import CORNER, EXTENT, Anatomy, grid, load_anatomy
from deconfound_lab.cohort.strengths import PAPER, Strengths, Variant

CSF, GRAY, WHITE = 0.2, 0.6, 0.9
"""T1 intensities of the tissues, before a scanner changes them."""

TISSUE_MODES = ("cortex", "temporal", "white")
MOTION_MODES = ("ventricles", "hippocampus", "striatum")
REACH = 4.0  # mm: how far beyond a border its motion is felt
AGE_CENTRE = 65.0

# Where impairment thins the cortex: medial temporal, lateral temporal and parietal, right side in mm, with a width.
TEMPORAL = (((26.0, -16.0, -22.0), 18.0), ((54.0, -30.0, -12.0), 22.0), ((44.0, -56.0, 32.0), 22.0))


@dataclass(frozen=True)
class Template:
    """What all people share, on the grid of the volumes.

    Attributes:
        image: Intensities, `(V,)`.
        tissue: Change of the image for one unit of each of `TISSUE_MODES`, `(3, V)`.
        motion: Where a voxel reads from for one mm of each of `MOTION_MODES`, in mm, `(3, 3, V)`.
    """

    image: Tensor
    tissue: Tensor
    motion: Tensor

    def to(self, device: torch.device) -> Template:
        """The same on a device."""
        return Template(self.image.to(device), self.tissue.to(device), self.motion.to(device))


@lru_cache(maxsize=4)
def load_template(kind: str, size: int) -> Template:
    """The template of an anatomy: drawn on a grid at least twice as fine, then averaged into the voxels."""
    fine = size * max(2, -(-96 // size)) if size <= 64 else size
    anatomy = load_anatomy(kind, fine)
    maps = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in anatomy.maps.items()}
    image = CSF * maps["csf"] + GRAY * maps["gray"] + WHITE * maps["white"]
    tissue = torch.stack([
        -(GRAY - CSF) * maps["cortex"],
        -(GRAY - CSF) * maps["cortex"] * torch.from_numpy(_temporal(anatomy)),
        -WHITE * maps["white"] * torch.from_numpy(_depth(anatomy)),
    ])  # fmt: skip
    motion = torch.stack([_outward(maps[name]) for name in MOTION_MODES])

    def pooled(values: Tensor) -> Tensor:
        return adaptive_avg_pool3d(values[None], size)[0].flatten(-3)

    return Template(pooled(image[None])[0], pooled(tissue), pooled(motion.flatten(0, 1)).unflatten(0, (3, 3)))


def coefficients(
    age: NDArray[np.floating], mci: NDArray[np.floating], hiv: NDArray[np.floating],
    person: NDArray[np.floating], strengths: Strengths, variant: Variant = PAPER,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:  # fmt: skip
    """How strongly each mode acts in each person.

    Args:
        age: Years, `(n,)`.
        mci: Severity of cognitive impairment, `(n,)`.
        hiv: Severity of HIV, `(n,)`.
        person: Two standard normal draws per person, for ventricles and cortex, `(n, 2)`.
        strengths: The sizes of the effects.
        variant: Whether age acts along a curve, and with the diseases.

    Returns:
        Of `TISSUE_MODES` and of `MOTION_MODES`, `(n, 3)` each.
    """
    s, decades = strengths, (age - AGE_CENTRE) / 10
    mci, hiv = (severity * (1 + variant.age_disease * decades) for severity in (mci, hiv))
    decades = decades + variant.age_curve * decades**2
    tissue = [
        s.age_cortex * decades + s.person_cortex * person[:, 1],
        s.mci_cortex * mci,
        s.age_white * decades + s.hiv_white * hiv,
    ]
    motion = [
        s.age_ventricles * decades
        + s.mci_ventricles * mci
        + s.hiv_ventricles * hiv
        + s.person_ventricles * person[:, 0],
        -s.age_hippocampus * decades - s.mci_hippocampus * mci,
        -s.hiv_striatum * hiv,
    ]
    return np.stack(tissue, 1).astype(np.float32), np.stack(motion, 1).astype(np.float32)


def _temporal(anatomy: Anatomy) -> NDArray[np.float32]:
    x, y, z = grid(anatomy.size)
    weights = [
        np.exp(-((np.abs(x) - cx) ** 2 + (y - cy) ** 2 + (z - cz) ** 2) / (2 * width**2))
        for (cx, cy, cz), width in TEMPORAL
    ]
    most: NDArray[np.float32] = np.maximum.reduce(weights)
    return most


def _depth(anatomy: Anatomy) -> NDArray[np.float32]:
    """1 in the middle of the cerebrum, falling off towards the cortex: the periventricular white matter."""
    x, y, z = grid(anatomy.size)
    return np.exp(-((np.abs(x) - 20) ** 2 / 400 + (y + 15) ** 2 / 2200 + (z - 22) ** 2 / 500)).astype(np.float32)


def _outward(region: Tensor) -> Tensor:
    """Where to read from so that the region's border moves outward by up to one mm: along the smoothed map's slope."""
    size = region.shape[0]
    steps = [extent / size for extent in EXTENT]
    smooth = region[None, None]
    for axis, step in enumerate(steps):
        smooth = _smoothed(smooth, axis + 2, REACH / step)
    padded = pad(smooth, (1,) * 6, mode="replicate")[0, 0]
    inner = slice(1, -1)
    slopes = []
    for axis, step in enumerate(steps):
        places: list[slice] = [inner, inner, inner]
        places[axis] = slice(2, None)
        ahead = padded[tuple(places)]
        places[axis] = slice(None, -2)
        slopes.append((ahead - padded[tuple(places)]) / (2 * step))
    field = torch.stack(slopes)
    unit: Tensor = field / field.norm(dim=0).max()
    return unit


def _smoothed(volume: Tensor, axis: int, sigma: float) -> Tensor:
    radius = max(1, int(3 * sigma + 0.5))
    offsets = torch.arange(-radius, radius + 1, dtype=volume.dtype)
    kernel = torch.exp(-(offsets**2) / (2 * sigma**2))
    shape, padding = [1] * 5, [0] * 3
    shape[axis], padding[axis - 2] = len(kernel), radius
    return conv3d(volume, (kernel / kernel.sum()).view(shape), padding=padding)


def mm_to_unit() -> Tensor:
    """The factor that turns mm into the units of `grid_sample`, where the box spans −1 to 1."""
    return 2 / torch.tensor(EXTENT)


def centred_coordinates(size: int, device: torch.device) -> Tensor:
    """Voxel centres in units where the box spans −1 to 1, `(3, V)`."""
    middle = np.add(CORNER, np.divide(EXTENT, 2)).astype(np.float32)
    half = np.divide(EXTENT, 2).astype(np.float32)
    places = [(axis - m) / h for axis, m, h in zip(grid(size), middle, half, strict=True)]
    return torch.from_numpy(np.stack(places).reshape(3, -1)).to(device)
