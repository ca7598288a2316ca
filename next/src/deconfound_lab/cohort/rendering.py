"""Volumes of people: the template changed and deformed for each, then seen by the site's scanner.

The random numbers of a person come from numpy and a generator of their own; the arithmetic is
torch's. A volume therefore depends on the seed and the person alone, in any order and, up to
rounding, on any device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import conv3d, grid_sample

from deconfound_lab.cohort.brain import CORNER, EXTENT, make_grid
from deconfound_lab.cohort.effects import MOTION_EFFECTS, TISSUE_EFFECTS, make_template

# Sd of the smooth deformation in mm, and its control points along each axis.
WARP, CONTROLS = 1.5, 6
# By how much a man's brain is longer along each axis; sd of that share between people, for all axes
# together and for each.
SEX_SCALE, PERSON_SCALE, AXIS_SCALE = 0.03, 0.02, 0.01
# Sd between scans of one site, of the log of the exponent and of the log-gain.
CURVE_SD, GAIN_SD = 0.05, 0.03
GAIN_TERMS = 9
# Between the air around a brain and its darkest tissue.
EDGE = 0.1
# A scan holds whole numbers, with white matter near 900.
UNITS = 1000


@dataclass(frozen=True)
class Scanner:
    """How the scanner of a site turns tissue into intensities. No part of it is additive.

    Attributes:
        gamma: The exponent of the intensity curve.
        sigmoid: The share of an S-shaped curve, which stretches gray against white matter.
        gain: The log-gain along x, y and z at the edge of the box, and that of the squared radius.
        noise: The sd of each channel of Rician noise.
        blur: The sd of the point spread in mm.
    """

    gamma: float
    sigmoid: float
    gain: tuple[float, float, float, float]
    noise: float
    blur: float


SCANNERS = {
    "UCSF": Scanner(0.85, 0.0, (0.0, -0.08, 0.04, 0.04), 0.03, 1.4),
    "ADNI": Scanner(1.05, 0.1, (0.03, 0.06, 0.0, -0.06), 0.05, 2.2),
    "SRI": Scanner(1.2, 0.35, (-0.03, 0.0, -0.08, 0.0), 0.025, 0.9),
}


@dataclass(frozen=True, eq=False)
class Draws:
    """Standard normal numbers of one person; all but the noise are the same at every size.

    Attributes:
        borders: For ventricles and cortex, shape `(2,)`.
        scale: For all axes and for each, shape `(4,)`.
        warp: Control points of the deformation, shape `(3, CONTROLS, CONTROLS, CONTROLS)`.
        scanner: For curve and gain, shape `(1 + GAIN_TERMS,)`.
        noise: Two channels, shape `(2, size, size, size)`.
    """

    borders: NDArray[np.float32]
    scale: NDArray[np.float32]
    warp: NDArray[np.float32]
    scanner: NDArray[np.float32]
    noise: NDArray[np.float32]

    @classmethod
    def of_person(cls, seed: tuple[int, ...], size: int) -> Draws:
        """Draw the numbers of one person."""
        random = np.random.default_rng(seed)
        shapes = ((2,), (4,), (3, *[CONTROLS] * 3), (1 + GAIN_TERMS,), (2, *[size] * 3))
        return cls(*(random.standard_normal(shape, np.float32) for shape in shapes))


class Renderer:
    """Makes volumes of one size on one device.

    Args:
        size: The number of voxels along each axis.
        device: Where volumes are computed.
    """

    def __init__(self, size: int, device: str | torch.device = "cpu") -> None:
        self.size = size
        self.device = torch.device(device)
        self._template = make_template(size).to(self.device)
        self._spline = self._load(spline_basis(size))
        self._units_per_mm = self._load(np.divide(2, EXTENT))[:, None]
        # Voxel centres, where the box spans −1 to 1.
        axes = zip(make_grid(size), CORNER, EXTENT, strict=True)
        scaled = [(axis - corner) / (extent / 2) - 1 for axis, corner, extent in axes]
        x, y, z = self._places = self._load(np.stack(np.broadcast_arrays(*scaled))).flatten(1)
        radius = x * x + y * y + z * z - 1
        others = (x * y, y * z, x * z, x * x - y * y, y * y - z * z)
        self._gains = torch.stack([x, y, z, radius, *others])

    def brain(
        self, age: float, severity: tuple[float, float], *, is_man: bool, draws: Draws
    ) -> Tensor:
        """Return a person's brain as tissue, before a scanner sees it, `(size, size, size)`.

        Args:
            age: Years.
            severity: Of HIV and of cognitive impairment.
            is_man: Whether the person is a man.
            draws: The person's random numbers.
        """
        hiv, mci = severity
        causes = np.array([(age - 65) / 10, mci, hiv, *draws.borders], dtype=np.float32)
        tissue = self._load(TISSUE_EFFECTS @ causes) @ self._template.tissue
        image = (self._template.image + tissue).clamp(min=0) * (self._template.image > 0)
        motion = self._load(MOTION_EFFECTS @ causes) @ self._template.motion
        places = (motion.view(3, -1) + WARP * self._deform(draws.warp)) * self._units_per_mm
        longer = SEX_SCALE * (is_man - 0.5) + PERSON_SCALE * draws.scale[0]
        scale = 1 + self._load(longer + AXIS_SCALE * draws.scale[1:])
        # A larger brain takes its values from places nearer to the middle.
        places = places + self._places / scale[:, None]
        cube = [self.size] * 3
        points = places.flip(0).T.reshape(1, *cube, 3)
        return grid_sample(image.view(1, 1, *cube), points, align_corners=False)[0, 0]

    def scan(self, brain: Tensor, scanner: Scanner, draws: Draws) -> Tensor:
        """Return whole numbers that the scanner makes of a brain; 0 outside of it.

        An intensity curve, a smooth gain, Rician noise, then blur.
        """
        is_brain = brain > EDGE
        gamma = scanner.gamma * float(np.exp(CURVE_SD * draws.scanner[0]))
        level = brain.clamp(min=1e-4)
        curve = (3 - 2 * level) * level * level
        seen = (1 - scanner.sigmoid) * level**gamma + scanner.sigmoid * curve
        gains = GAIN_SD * draws.scanner[1:]
        gains[:4] += np.array(scanner.gain, dtype=np.float32)
        seen = seen * torch.exp(self._load(gains) @ self._gains).view_as(seen)
        real, imaginary = scanner.noise * self._load(draws.noise)
        seen = torch.hypot(seen + real, imaginary) * is_brain
        return (self._blur(seen, scanner.blur) * is_brain * UNITS).round()

    def _deform(self, controls: NDArray[np.float32]) -> Tensor:
        """Return a smooth deformation with sd 1, shape `(3, V)`."""
        values = self._load(controls)
        for _ in range(3):
            # Each product refines the first axis of space and moves it to the end.
            values = values.movedim(1, -1) @ self._spline.T
        return values.flatten(1)

    def _blur(self, volume: Tensor, sd: float) -> Tensor:
        values = volume[None, None]
        for axis, extent in enumerate(EXTENT):
            width = sd * self.size / extent
            reach = max(1, int(np.ceil(2 * width)))
            weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * width**2))
            shape, padding = [1, 1, 1], [0, 0, 0]
            shape[axis], padding[axis] = len(weights), reach
            kernel = self._load(weights / weights.sum()).view(1, 1, *shape)
            values = conv3d(values, kernel, padding=padding)
        return values[0, 0]

    def _load(self, values: NDArray[np.floating]) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(self.device)


def spline_basis(size: int) -> NDArray[np.float64]:
    """Return cubic B-splines at the voxel centres, shape `(size, CONTROLS)`.

    They are scaled so that controls of sd 1 give values of sd 1.
    """
    places = (np.arange(size) + 0.5) / size * (CONTROLS - 3)
    distance = np.abs(places[:, None] - (np.arange(CONTROLS) - 1))
    near = 2 / 3 - distance**2 + distance**3 / 2
    far = (2 - distance).clip(min=0) ** 3 / 6
    basis = np.where(distance < 1, near, far)
    return np.asarray(basis / np.linalg.norm(basis, axis=1).mean())
