"""How labels, age and chance change a brain: where each effect acts, and how strongly.

The sizes were fixed before any method was trained on the cohort.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from deconfound_lab.cohort.brain import EXTENT, Field, draw_brain, make_grid, maximum

# T1 intensities of the tissues, before a scanner changes them.
CSF, GRAY, WHITE = 0.2, 0.6, 0.9
# The border of a structure moves. How far beyond it that is felt, in mm.
MOVING, REACH = ("ventricles", "hippocampus", "striatum"), 4.0
# Where impairment thins the cortex, on the right side in mm, with a width: medial temporal, lateral
# temporal and parietal.
THINNING = (((26, -16, -22), 18), ((54, -30, -12), 22), ((44, -56, 32), 22))
# Brains are drawn on a grid of at least this size, then averaged into the voxels.
FINEST = 96

# One row for each effect on the brain, one column for its causes: decades from 65 years, severity
# of impairment, severity of HIV, and two draws of the person.
TISSUE_EFFECTS = np.array(
    [
        [0.05, 0.0, 0.0, 0.0, 0.04],  # share of the cortex lost
        [0.0, 0.1, 0.0, 0.0, 0.0],  # share of the temporal and parietal cortex lost
        [0.02, 0.0, 0.04, 0.0, 0.0],  # share of the signal of deep white matter lost
    ],
    dtype=np.float32,
)
MOTION_EFFECTS = np.array(
    [
        [0.8, 0.3, 0.3, 0.6, 0.0],  # outward motion of the ventricles' border in mm
        [-0.25, -1.0, 0.0, 0.0, 0.0],  # the same for the hippocampus
        [0.0, 0.0, -1.0, 0.0, 0.0],  # the same for caudate nucleus and putamen
    ],
    dtype=np.float32,
)


@dataclass(frozen=True, eq=False)
class Template:
    """What all brains share, for V voxels.

    Attributes:
        image: Intensities, shape `(V,)`.
        tissue: The change of the image by one unit of each tissue effect, shape `(3, V)`.
        motion: From where in mm a voxel takes its value if a border moves by one mm, for each
            structure of `MOVING`, shape `(3, 3 · V)`.
    """

    image: Tensor
    tissue: Tensor
    motion: Tensor

    def to(self, device: torch.device) -> Template:
        """Return the template on a device."""
        return Template(self.image.to(device), self.tissue.to(device), self.motion.to(device))


@lru_cache(maxsize=4)
def make_template(size: int) -> Template:
    """Return the template of volumes of size³ voxels."""
    factor = max(2, -(-FINEST // size))
    fine = factor * size
    maps = draw_brain(fine)
    x, y, z = make_grid(fine)
    distances = [
        ((np.abs(x) - place[0]) ** 2 + (y - place[1]) ** 2 + (z - place[2]) ** 2) / (2 * width**2)
        for place, width in THINNING
    ]
    deep = np.exp(-((np.abs(x) - 20) ** 2 / 400 + (y + 15) ** 2 / 2200 + (z - 22) ** 2 / 500))
    cortex = -(GRAY - CSF) * maps["cortex"]
    fields = [
        CSF * maps["csf"] + GRAY * maps["gray"] + WHITE * maps["white"],
        cortex,
        cortex * maximum(np.exp(-distance) for distance in distances),
        -WHITE * maps["white"] * deep,
        *[axis for name in MOVING for axis in outward_motion(maps[name])],
    ]
    blocks = [field.reshape(size, factor, size, factor, size, factor) for field in fields]
    voxels = np.stack([block.mean((1, 3, 5)).ravel() for block in blocks])
    values = torch.from_numpy(voxels.astype(np.float32))
    return Template(values[0], values[1:4], values[4:].reshape(len(MOVING), -1))


def outward_motion(region: Field) -> list[Field]:
    """Return from where values are taken if a region's border moves outward by one mm.

    It is the slope of the smoothed region, scaled so that the largest motion is one mm.

    Args:
        region: The share of each voxel, shape `(size, size, size)`.

    Returns:
        The motion in mm along each axis.
    """
    steps = np.divide(EXTENT, len(region))
    smooth = gaussian_filter(region, REACH / steps, mode="constant", truncate=3)
    slopes = np.gradient(smooth, *steps)
    steepest = np.sqrt(sum(slope**2 for slope in slopes)).max()
    return [slope / steepest for slope in slopes]
