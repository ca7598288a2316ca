"""A brain drawn from formulas: hemispheres with a folded cortex, ventricles and deep nuclei, in mm.

A body is a signed distance in mm, negative inside. Coordinates are those of the MNI space: x to the
right, y to the front and z up. The brain is symmetric, so that bodies are given for |x|.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float64]
Point = tuple[float, float, float]
# Three coordinates that broadcast to the whole grid.
Grid = tuple[Field, Field, Field]
# From, to, and the radius at each end.
Capsule = tuple[Point, Point, float, float]

# The box of every volume in mm, that of the 2 mm MNI grid.
CORNER, EXTENT = (-90.0, -126.0, -72.0), (182.0, 218.0, 182.0)
FOLD_SEED, FOLD_WAVES = 20220918, 48
# In mm: the distance of neighbouring gyri, the thickness of the cortex, half the width of a sulcus,
# and its depth.
FOLD_LENGTH, CORTEX, SULCUS, SULCUS_DEPTH = 23.0, 3.4, 0.9, 15.0

VENTRICLES: tuple[Capsule, ...] = (
    ((11, 32, 3), (11, 8, 17), 4.6, 5.2),
    ((11, 8, 17), (14, -22, 22), 5.2, 5.0),
    ((14, -22, 22), (26, -44, 12), 5.0, 6.4),
    ((26, -44, 12), (23, -66, 8), 6.0, 2.6),
    ((26, -44, 10), (35, -26, -10), 4.0, 2.2),
    ((35, -26, -10), (32, -10, -18), 2.2, 2.0),
)
HIPPOCAMPUS: tuple[Capsule, ...] = (
    ((22, -7, -20), (28, -22, -15), 6.4, 5.2),
    ((28, -22, -15), (25, -38, -4), 5.2, 3.6),
)
# Head and tail of the caudate nucleus, and the putamen.
STRIATUM: tuple[Capsule, ...] = (
    ((13, 19, 2), (14, 6, 14), 6.2, 5.2),
    ((14, 6, 14), (18, -18, 22), 4.6, 2.4),
    ((24, 14, -1), (30, -14, 2), 6.6, 5.0),
    ((24, 8, 6), (28, -8, 7), 5.0, 4.4),
)
CALLOSUM: tuple[Capsule, ...] = (
    ((0, 27, 2), (0, 22, 18), 4.8, 3.8),
    ((0, 22, 18), (0, -8, 28), 3.8, 3.4),
    ((0, -8, 28), (0, -36, 20), 3.4, 4.0),
    ((0, -36, 20), (0, -39, 11), 4.0, 5.0),
)
STEM: tuple[Capsule, ...] = (
    ((0, -24, -8), (0, -34, -32), 15, 13),
    ((0, -34, -32), (0, -42, -68), 13, 9),
)


def make_grid(size: int) -> Grid:
    """Return the voxel centres of a volume of size³ voxels, in mm."""
    shapes = ((-1, 1, 1), (1, -1, 1), (1, 1, -1))
    axes = zip(CORNER, EXTENT, shapes, strict=True)
    steps = (np.arange(size) + 0.5) / size
    x, y, z = ((corner + steps * extent).reshape(shape) for corner, extent, shape in axes)
    return x, y, z


def make_affine(size: int) -> Field:
    """Return the matrix from voxel numbers to mm, as NIfTI stores it."""
    steps = np.divide(EXTENT, size)
    affine = np.diag([*steps, 1.0])
    affine[:3, 3] = CORNER + steps / 2
    return affine


def draw_brain(size: int) -> dict[str, Field]:
    """Return shares of each voxel, from 0 to 1, each of shape `(size, size, size)`.

    Args:
        size: The number of voxels along each axis.

    Returns:
        The tissues `csf`, `gray` and `white`, and the regions `ventricles`, `hippocampus`,
        `striatum` and `cortex`.
    """
    x, y, z = make_grid(size)
    grid = (np.abs(x), y, z)
    softness = max(1.0, 0.5 * EXTENT[0] / size)

    # Low under the temporal lobes, raised by the tentorium behind and the orbits in front.
    base = -31 + 25 / (1 + np.exp((y + 52) / 6)) + 10 / (1 + np.exp((36 - y) / 6))
    whole = ellipsoid(grid, (0, -18, 17), (67, 87, 57))
    temporal = ellipsoid(grid, (45, -14, -19), (23, 43, 23))
    cerebrum = join_smoothly(np.maximum(whole, 0.9 * (base - z)), temporal, 10)
    callosum = chain(grid, CALLOSUM)
    pial = pial_surface(grid, cerebrum, callosum)
    in_cerebrum = fill(cerebrum, softness)
    gyri = fill(-pial, softness) * in_cerebrum
    core = fill(CORTEX - pial, softness) * in_cerebrum

    # The cerebellum has thin leaves around a white core.
    cerebellum = ellipsoid(grid, (19, -64, -33), (34, 29, 25))
    leaf = np.sin(2 * np.pi * (np.hypot(z + 24, y + 48) + 0.1 * grid[0]) / 8.5)
    in_cerebellum = fill(cerebellum, softness) * (1 - in_cerebrum)
    arbor = fill(cerebellum + 11 + 4 * leaf, 2.0) * in_cerebellum
    furrow = np.clip(leaf - 0.55, 0, 1) * fill(-cerebellum - 6, 2.0) * in_cerebellum
    in_stem = fill(chain(grid, STEM), softness) * (1 - in_cerebrum) * (1 - in_cerebellum)
    brain = maximum((in_cerebrum, in_cerebellum, in_stem))

    third = ellipsoid(grid, (0, -10, 0), (2.4, 15, 11))
    fourth = ellipsoid(grid, (0, -44, -33), (5, 5, 9))
    ventricles = fill(minimum((chain(grid, VENTRICLES), third, fourth)), softness)
    hippocampus, striatum, thalamus = (
        fill(body, softness) * (1 - ventricles)
        for body in (
            chain(grid, HIPPOCAMPUS),
            chain(grid, STRIATUM),
            ellipsoid(grid, (11, -18, 8), (9.5, 15, 9)),
        )
    )
    nuclei = maximum((hippocampus, striatum, 0.6 * thalamus)) * in_cerebrum

    white = np.maximum(core, fill(callosum, softness) * in_cerebrum) + arbor + in_stem
    ribbon = np.clip(gyri - core, 0, 1)
    gray = ribbon + in_cerebellum - arbor - furrow
    white = white * (1 - nuclei) * (1 - ventricles)
    gray = np.maximum(gray * (1 - nuclei), nuclei) * (1 - ventricles)
    # Where both claim a voxel, gray matter is drawn first.
    white = np.minimum(np.clip(white, 0, 1), brain - np.minimum(gray, brain))
    gray = np.clip(np.minimum(gray, brain - white), 0, 1)
    return {
        "csf": brain - gray - white,
        "gray": gray,
        "white": white,
        "ventricles": ventricles * brain,
        "hippocampus": hippocampus * brain,
        "striatum": striatum * brain,
        "cortex": np.minimum(ribbon * (1 - nuclei), gray),
    }


def pial_surface(grid: Grid, cerebrum: Field, callosum: Field) -> Field:
    """Return the distance to the outline, the fissures and the sulci, positive inside the brain."""
    x, y, z = grid
    centre = ellipsoid(grid, (0, -8, 2), (34, 40, 27))
    between = np.maximum(x - 0.8, -np.minimum(callosum - 1.5, centre + 6))
    line = z - (-10 - 0.55 * (y - 8)) - 0.25 * (x - 45)
    sylvian = maximum((np.abs(line) - 0.8, 36 - x, y - 20, -38 - y))
    sheet = np.maximum(fold_sheets(grid), -cerebrum - SULCUS_DEPTH)
    return minimum((-cerebrum, between, sylvian, np.maximum(sheet - SULCUS, 4 - centre)))


def fold_sheets(grid: Grid) -> Field:
    """Return the distance in mm to the nearest winding sheet, where a sulcus runs.

    The sheets are zeros of a sum of plane waves of nearly one length. The waves are fixed, so that
    all people share them.
    """
    random = np.random.default_rng(FOLD_SEED)
    directions = random.normal(size=(FOLD_WAVES, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    waves = directions * (2 * np.pi / FOLD_LENGTH) * random.uniform(0.85, 1.15, (FOLD_WAVES, 1))
    phases = random.uniform(0, 2 * np.pi, FOLD_WAVES)
    # A plane wave is a product of three waves along the axes, so that the sum is a matrix product.
    axes = [np.exp(1j * np.outer(axis, wave)) for axis, wave in zip(grid, waves.T, strict=True)]
    planes = (axes[0] * np.exp(1j * phases))[:, None] * axes[1]
    value = (planes @ axes[2].T).real
    slopes = [((planes * wave) @ axes[2].T).imag for wave in waves.T]
    steepness = np.sqrt(sum(slope**2 for slope in slopes))
    # The floor keeps flat places from being far from everything.
    floor = 0.15 * np.sqrt(FOLD_WAVES) * 2 * np.pi / FOLD_LENGTH
    return np.asarray(np.abs(value) / (steepness + floor))


def ellipsoid(grid: Grid, centre: Point, radii: Point) -> Field:
    """Return the distance to an ellipsoid, exact on its surface to first order."""
    axes = zip(grid, centre, radii, strict=True)
    scaled = [(axis - middle) / radius for axis, middle, radius in axes]
    length = np.sqrt(sum(axis**2 for axis in scaled)) + 1e-6
    slopes = [(axis / radius) ** 2 for axis, radius in zip(scaled, radii, strict=True)]
    return np.asarray(length * (length - 1) / (np.sqrt(sum(slopes)) + 1e-6))


def chain(grid: Grid, capsules: Sequence[Capsule]) -> Field:
    """Return the distance to a chain of tapered capsules."""
    distances = []
    for start, end, first, last in capsules:
        along = np.subtract(end, start)
        offsets = [axis - place for axis, place in zip(grid, start, strict=True)]
        share = sum(offset * step for offset, step in zip(offsets, along, strict=True))
        share = np.clip(share / (along @ along), 0, 1)
        squares = [
            (offset - share * step) ** 2 for offset, step in zip(offsets, along, strict=True)
        ]
        distances.append(np.sqrt(sum(squares)) - (first + share * (last - first)))
    return minimum(distances)


def join_smoothly(first: Field, second: Field, blend: float) -> Field:
    """Return the union of two bodies, rounded over `blend` mm."""
    share = np.clip(0.5 + 0.5 * (second - first) / blend, 0, 1)
    return second + (first - second) * share - blend * share * (1 - share)


def fill(distance: Field, softness: float) -> Field:
    """Return the share of each voxel that a body fills, with an edge of `softness` mm."""
    return np.clip(0.5 - distance / (2 * softness), 0, 1)


def minimum(fields: Iterable[Field]) -> Field:
    """Return the least of several fields that broadcast."""
    return reduce(np.minimum, fields)


def maximum(fields: Iterable[Field]) -> Field:
    """Return the largest of several fields that broadcast."""
    return reduce(np.maximum, fields)
