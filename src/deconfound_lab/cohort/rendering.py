"""Volumes of simulated people: the template changed and deformed for each, then seen by the site's scanner.

All random numbers are numpy's, drawn for each person from a generator of its own; all arithmetic is torch's, on any
device. So a volume depends on the seed and the person alone, and is the same on a GPU up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from deconfound_lab.cohort.anatomy import EXTENT
from deconfound_lab.cohort.effects import Template, centred_coordinates, mm_to_unit
from deconfound_lab.cohort.strengths import Strengths

CONTROLS = 6  # control points of the random deformation along each axis
BIAS_TERMS = 9
UNITS = 1000  # a scan is stored in whole numbers, white matter near 900
_EDGE = 0.1  # below the darkest tissue (0.2): outside the brain


@dataclass(frozen=True)
class Draws:
    """Standard normal draws of one person, apart from those in the table.

    Attributes:
        modes: For ventricles and cortex, `(2,)`.
        scale: Overall and per axis, `(4,)`.
        warp: Control points of the smooth deformation, `(3, CONTROLS, CONTROLS, CONTROLS)`.
        scanner: Curve and bias field, `(1 + BIAS_TERMS,)`.
        noise: Two channels of noise, `(2, size, size, size)`.
    """

    modes: NDArray[np.float32]
    scale: NDArray[np.float32]
    warp: NDArray[np.float32]
    scanner: NDArray[np.float32]
    noise: NDArray[np.float32]


def draw(seed: tuple[int, ...], size: int) -> Draws:
    """The draws of one person; all but the noise are the same at every size."""
    generator = np.random.default_rng(seed)

    def normal(*shape: int) -> NDArray[np.float32]:
        return generator.standard_normal(shape, np.float32)

    return Draws(normal(2), normal(4), normal(3, *[CONTROLS] * 3), normal(1 + BIAS_TERMS), normal(2, *[size] * 3))


class Renderer:
    """Keeps what all people of one size and device share."""

    def __init__(self, template: Template, strengths: Strengths, size: int, device: torch.device) -> None:
        self.strengths, self.size, self.device = strengths, size, device
        self._template = template.to(device)
        self._places = centred_coordinates(size, device)
        self._to_unit = mm_to_unit().to(device)
        self._spline = _spline_basis(size).to(device)
        x, y, z = self._places
        self._bias = torch.stack(
            [x, y, z, x * x + y * y + z * z - 1, x * y, y * z, x * z, x * x - y * y, y * y - z * z]
        )

    def brain(self, tissue: NDArray[np.float32], motion: NDArray[np.float32], male: bool, draws: Draws) -> Tensor:
        """One person's brain as tissue, before a scanner sees it, `(size, size, size)`."""
        s, template, cube = self.strengths, self._template, (self.size,) * 3
        image = (template.image + self._load(tissue) @ template.tissue).clamp_(min=0)
        image *= template.image > 0
        places = (self._load(motion) @ template.motion.flatten(1)).view(3, -1)
        places += s.person_warp * self._warp(draws.warp)
        places *= self._to_unit[:, None]
        longer = s.sex_scale * (male - 0.5) + s.person_scale * draws.scale[0] + s.person_axes * draws.scale[1:]
        # A brain that is larger by a share reads from places nearer to the middle.
        places += self._places / (1 + self._load(longer)[:, None])
        points = places.flip(0).T.view(1, *cube, 3)
        return grid_sample(image.view(1, 1, *cube), points, align_corners=False)[0, 0]

    def scan(self, brain: Tensor, site: str, draws: Draws) -> Tensor:
        """What the scanner makes of a brain: an intensity curve, a bias field, Rician noise and blur; outside is 0.

        None of it is additive in the site: the curve and the gain act on the tissue that is there.
        """
        s, scanner = self.strengths, self.strengths.acquisition(site)
        head = brain > _EDGE
        gamma = scanner.gamma * float(np.exp(s.person_curve * draws.scanner[0]))
        level = brain.clamp(min=1e-4)
        seen = (1 - scanner.sigmoid) * level**gamma + scanner.sigmoid * (3 - 2 * level) * level * level
        gains = s.person_bias * draws.scanner[1:]
        gains[:4] += np.array(scanner.bias, np.float32)
        seen *= torch.exp(self._load(gains) @ self._bias).view_as(seen)
        first, second = self._load(draws.noise)
        seen = torch.hypot(seen + scanner.noise * first, scanner.noise * second)
        seen = self._blurred(seen * head, scanner.blur)
        return (seen * head * UNITS).round_()

    def _warp(self, control: NDArray[np.float32]) -> Tensor:
        values = self._load(control)
        for _ in range(3):  # each pass refines the first axis and moves it to the end
            values = values.movedim(1, -1) @ self._spline.T
        return values.flatten(1)

    def _blurred(self, seen: Tensor, sd: float) -> Tensor:
        for axis, extent in enumerate(EXTENT):
            width = max(sd * self.size / extent, 1e-3)
            radius = max(1, int(np.ceil(2 * width)))
            weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * width**2))
            sides = [0] * 6
            sides[2 * (2 - axis)] = sides[2 * (2 - axis) + 1] = radius
            padded = pad(seen, sides)
            seen = torch.zeros_like(seen)
            for i, weight in enumerate((weights / weights.sum()).tolist()):
                seen.add_(padded.narrow(axis, i, self.size), alpha=weight)
        return seen

    def _load(self, values: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.float32)).to(self.device)


def _spline_basis(size: int) -> Tensor:
    """Cubic B-splines at the voxels' centres, `(size, CONTROLS)`, scaled so that unit controls give unit variance."""
    knots = torch.arange(CONTROLS, dtype=torch.float32) - 1
    places = (torch.arange(size, dtype=torch.float32) + 0.5) / size * (CONTROLS - 3)
    away = (places[:, None] - knots).abs()
    near = 2 / 3 - away**2 + away**3 / 2
    far = (2 - away).clamp(min=0) ** 3 / 6
    basis = torch.where(away < 1, near, far)
    scaled: Tensor = basis / basis.norm(dim=1).mean()
    return scaled
