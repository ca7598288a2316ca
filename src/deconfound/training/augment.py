"""Augmentations of images and scans: drawn from a key, so that a resumed epoch sees the same images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

Key = tuple[int, ...]

MOST_DEGREES = 10.0
MOST_SHIFT = 0.05
LEAST_CROP = 0.8
BRIGHTNESS = (0.8, 1.2)


def augmented(x: Tensor, names: Sequence[str], key: Key) -> Tensor:
    """Images `(n, channels, height, width)` or scans `(n, channels, right, front, up)`, each changed in its own way.

    Args:
        x: As they are read; outside an image is 0.
        names: "flip" mirrors left and right, in half of the samples; "rotate" turns by up to 10 degrees; "shift" moves
            by up to 5 % of each edge; "crop" cuts out 80 to 100 % of each edge and enlarges it; "brightness" multiplies
            by 0.8 to 1.2.
        key: What the draw depends on: seed, epoch, process and batch.

    Example:
        >>> x = torch.arange(4.0).expand(2, 1, 1, 4)
        >>> augmented(x, ["flip"], (0, 2)).reshape(2, 4).tolist()
        [[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0]]
    """
    random = np.random.default_rng(key)
    count, edges = len(x), x.shape[2:]
    matrix, offset = np.tile(np.eye(len(edges)), (count, 1, 1)), np.zeros((count, len(edges)))
    # Coordinates run from -1 to 1 along each edge, the last axis first.
    mirrored = 0 if len(edges) == 2 else len(edges) - 1
    if "flip" in names:
        matrix[:, mirrored] *= random.choice([-1.0, 1.0], (count, 1))
    if "rotate" in names:
        matrix = matrix @ _turned(random, count, np.array(edges[::-1], dtype=np.float64))
    if "shift" in names:
        offset += 2 * MOST_SHIFT * random.uniform(-1, 1, offset.shape)
    if "crop" in names:
        part = random.uniform(LEAST_CROP, 1, (count, 1))
        matrix, offset = matrix * part[..., None], offset + (1 - part) * random.uniform(-1, 1, offset.shape)
    if {*names} - {"brightness"}:
        theta = torch.from_numpy(np.concatenate([matrix, offset[..., None]], axis=2)).to(x.dtype)
        x = grid_sample(x, affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)
    if "brightness" in names:
        factor = random.uniform(*BRIGHTNESS, (count, *[1] * (x.ndim - 1)))
        x = x * torch.from_numpy(factor).to(x.dtype)
    return x


def _turned(random: np.random.Generator, count: int, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """A turn of each sample in one plane of its axes, in coordinates from -1 to 1, whatever the edges are."""
    turn = np.tile(np.eye(len(edges)), (count, 1, 1))
    for sample, angle in enumerate(np.radians(random.uniform(-MOST_DEGREES, MOST_DEGREES, count))):
        a, b = random.choice(len(edges), 2, replace=False)
        turn[sample, a, a] = turn[sample, b, b] = np.cos(angle)
        turn[sample, a, b], turn[sample, b, a] = -np.sin(angle), np.sin(angle)
    return turn * edges / edges[:, None]
