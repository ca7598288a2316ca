"""A brain drawn from formulas: hemispheres, folded cortex, ventricles and deep nuclei, in millimetres."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]
Point = tuple[float, float, float]

FOLD_SEED = 20220918
FOLD_WAVES = 48
FOLD_LENGTH = 23.0  # mm between neighbouring gyri, about that of an adult cortex
CORTEX = 3.4  # mm
SULCUS = 0.9  # mm, half the width of a sulcus
SULCUS_DEPTH = 15.0  # mm

VENTRICLES: tuple[tuple[Point, Point, float, float], ...] = (
    ((11, 32, 3), (11, 8, 17), 4.6, 5.2),
    ((11, 8, 17), (14, -22, 22), 5.2, 5.0),
    ((14, -22, 22), (26, -44, 12), 5.0, 6.4),
    ((26, -44, 12), (23, -66, 8), 6.0, 2.6),
    ((26, -44, 10), (35, -26, -10), 4.0, 2.2),
    ((35, -26, -10), (32, -10, -18), 2.2, 2.0),
)
"""Lateral ventricles of the right side, as capsules: from, to, and the radius at each end."""

HIPPOCAMPUS: tuple[tuple[Point, Point, float, float], ...] = (
    ((22, -7, -20), (28, -22, -15), 6.4, 5.2),
    ((28, -22, -15), (25, -38, -4), 5.2, 3.6),
)
STRIATUM: tuple[tuple[Point, Point, float, float], ...] = (
    ((13, 19, 2), (14, 6, 14), 6.2, 5.2),
    ((14, 6, 14), (18, -18, 22), 4.6, 2.4),
    ((24, 14, -1), (30, -14, 2), 6.6, 5.0),
    ((24, 8, 6), (28, -8, 7), 5.0, 4.4),
)
"""The caudate nucleus (head and tail) and the putamen."""

CALLOSUM: tuple[tuple[Point, Point, float, float], ...] = (
    ((0, 27, 2), (0, 22, 18), 4.8, 3.8),
    ((0, 22, 18), (0, -8, 28), 3.8, 3.4),
    ((0, -8, 28), (0, -36, 20), 3.4, 4.0),
    ((0, -36, 20), (0, -39, 11), 4.0, 5.0),
)


def ellipsoid(at: Sequence[Field], centre: Point, radii: Point) -> Field:
    """Signed distance to an ellipsoid in mm, negative inside, exact on its surface to first order."""
    scaled = [(axis - c) / r for axis, c, r in zip(at, centre, radii, strict=True)]
    length = np.sqrt(sum(axis * axis for axis in scaled)) + 1e-6
    slope = np.sqrt(sum((axis / r) ** 2 for axis, r in zip(scaled, radii, strict=True))) + 1e-6
    distance: Field = (length * (length - 1) / slope).astype(np.float32)
    return distance


def capsules(at: Sequence[Field], parts: Sequence[tuple[Point, Point, float, float]]) -> Field:
    """Signed distance to a chain of tapered capsules, negative inside."""
    best: Field | None = None
    for start, end, first, last in parts:
        along = np.subtract(end, start)
        share = sum((axis - s) * a for axis, s, a in zip(at, start, along, strict=True)) / float(along @ along)
        share = np.clip(share, 0, 1)
        offsets = [axis - (s + share * a) for axis, s, a in zip(at, start, along, strict=True)]
        distance = np.sqrt(sum(o * o for o in offsets)) - (first + share * (last - first))
        best = distance if best is None else np.minimum(best, distance)
    assert best is not None
    return best.astype(np.float32)


def union(first: Field, second: Field, blend: float) -> Field:
    """The smooth union of two bodies, rounded over `blend` mm."""
    share = np.clip(0.5 + 0.5 * (second - first) / blend, 0, 1)
    joined: Field = (second + (first - second) * share - blend * share * (1 - share)).astype(np.float32)
    return joined


def inside(distance: Field, softness: float) -> Field:
    """1 inside, 0 outside, with an edge of `softness` mm: the share of a voxel that the body fills."""
    filled: Field = np.clip(0.5 - distance / (2 * softness), 0, 1).astype(np.float32)
    return filled


def folds(at: Sequence[Field]) -> Field:
    """Distance in mm to the nearest sheet of a field of plane waves of one wavelength: where sulci run.

    Its zeros form winding sheets about half a wavelength apart. The waves are fixed, so everyone shares the template.
    """
    draws = np.random.default_rng(FOLD_SEED)
    directions = draws.normal(size=(FOLD_WAVES, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    waves = directions * (2 * np.pi / FOLD_LENGTH) * draws.uniform(0.85, 1.15, (FOLD_WAVES, 1))
    phases = draws.uniform(0, 2 * np.pi, FOLD_WAVES)
    value = np.zeros_like(at[0])
    slopes = [np.zeros_like(at[0]) for _ in range(3)]
    for wave, phase in zip(waves.astype(np.float32), phases.astype(np.float32), strict=True):
        angle = wave[0] * at[0] + wave[1] * at[1] + wave[2] * at[2] + phase
        value += np.cos(angle)
        sine = np.sin(angle)
        for slope, component in zip(slopes, wave, strict=True):
            slope -= component * sine
    steepness = np.sqrt(sum(slope * slope for slope in slopes)) + 0.15 * np.sqrt(FOLD_WAVES) * 2 * np.pi / FOLD_LENGTH
    distance: Field = (np.abs(value) / steepness).astype(np.float32)
    return distance


def draw_tissues(x: Field, y: Field, z: Field, softness: float) -> dict[str, Field]:
    """Tissue fractions and regions at points in mm: right, anterior, superior of the anterior commissure.

    Returns:
        `brain`, `csf`, `gray`, `white` (the last three add up to the first), and the regions `ventricles`,
        `hippocampus`, `striatum`, `thalamus` and `cortex`, each a share of the voxel.
    """
    side = (np.abs(x), y, z)
    whole = ellipsoid(side, (0, -18, 17), (67, 87, 57))
    # The base: low under the temporal lobes, raised at the back by the tentorium and at the front by the orbits.
    base = -31 + 25 / (1 + np.exp((y + 52) / 6)) + 10 / (1 + np.exp((36 - y) / 6))
    floor = (base - z) * 0.9
    cerebrum = union(np.maximum(whole, floor), ellipsoid(side, (45, -14, -19), (23, 43, 23)), 10)
    cerebellum = ellipsoid(side, (19, -64, -33), (34, 29, 25))
    stem = capsules(side, [((0, -24, -8), (0, -34, -32), 15, 13), ((0, -34, -32), (0, -42, -68), 13, 9)])

    # The pial surface: the outline, the fissure between the hemispheres, the Sylvian fissure, and the sulci.
    centre = ellipsoid(side, (0, -8, 2), (34, 40, 27))
    callosum = capsules(side, CALLOSUM)
    middle = np.maximum(side[0] - 0.8, -np.minimum(callosum - 1.5, centre + 6))
    line = z - (-10 - 0.55 * (y - 8)) - 0.25 * (side[0] - 45)
    sylvian = np.maximum.reduce([np.abs(line) - 0.8, 36 - side[0], y - 20, -38 - y])
    sheet = np.maximum(folds(side), -cerebrum - SULCUS_DEPTH)
    sulci = np.maximum(sheet - SULCUS, 4 - centre)
    pial = np.minimum.reduce([-cerebrum, middle, sylvian, sulci]).astype(np.float32)

    in_cerebrum = inside(cerebrum, softness)
    gyri = inside(-pial, softness) * in_cerebrum
    core = inside(CORTEX - pial, softness) * in_cerebrum

    # The cerebellum has thin leaves around a white core.
    leaf = np.sin(2 * np.pi * (np.hypot(z + 24, y + 48) + 0.1 * side[0]) / 8.5)
    in_cerebellum = inside(cerebellum, softness) * (1 - in_cerebrum)
    arbor = inside(cerebellum + 11 + 4 * leaf, 2.0) * in_cerebellum
    furrow = np.clip(leaf - 0.55, 0, 1) * inside(-cerebellum - 6, 2.0) * in_cerebellum
    in_stem = inside(stem, softness) * (1 - in_cerebrum) * (1 - in_cerebellum)

    third = ellipsoid(side, (0, -10, 0), (2.4, 15, 11))
    fourth = ellipsoid(side, (0, -44, -33), (5, 5, 9))
    ventricles = inside(np.minimum.reduce([capsules(side, VENTRICLES), third, fourth]), softness)
    hippocampus = inside(capsules(side, HIPPOCAMPUS), softness) * (1 - ventricles)
    striatum = inside(capsules(side, STRIATUM), softness) * (1 - ventricles)
    thalamus = inside(ellipsoid(side, (11, -18, 8), (9.5, 15, 9)), softness) * (1 - ventricles)

    brain = np.maximum.reduce([in_cerebrum, in_cerebellum, in_stem])
    nuclei = np.maximum.reduce([hippocampus, striatum, 0.6 * thalamus]) * in_cerebrum
    white = np.maximum(core, inside(callosum, softness) * in_cerebrum) + arbor + in_stem
    gray = np.clip(gyri - core, 0, 1) + (in_cerebellum - arbor - furrow)
    cortex = np.clip(gyri - core, 0, 1) * (1 - nuclei)
    white = white * (1 - nuclei) * (1 - ventricles)
    gray = np.maximum(gray * (1 - nuclei), nuclei) * (1 - ventricles)
    white = np.minimum(np.clip(white, 0, 1), brain - np.minimum(gray, brain))
    gray = np.clip(np.minimum(gray, brain - white), 0, 1)
    return {
        "brain": brain,
        "csf": brain - gray - white,
        "gray": gray,
        "white": white,
        "ventricles": ventricles * brain,
        "hippocampus": hippocampus * brain,
        "striatum": striatum * brain,
        "thalamus": thalamus * brain,
        "cortex": np.minimum(cortex, gray),
    }
