"""Training scans moved a little, mirrored and made brighter or darker, so that few scans are not learned by heart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Augment:
    """A random affine map and a random contrast for each image; called with `(n, 1, D, H, W)`.

    Attributes:
        mirror: Whether half of the images have left and right exchanged (the first axis).
        shift: The most that an image is moved along each axis, as a share of its edge.
        turn: The most that it is turned about each axis, in degrees.
        contrast: The most that its values are multiplied by more or less than 1.
    """

    mirror: bool = True
    shift: float = 0.03
    turn: float = 4.0
    contrast: float = 0.1

    def __call__(self, images: Tensor) -> Tensor:
        """The same images, each changed in its own way; random numbers come from torch."""
        n, device = len(images), images.device
        # Drawn on the device of the images, so that a captured step draws anew each time it is replayed.
        matrix = self._turned(_uniform(device, n, 3))
        if self.mirror:
            # The last row of the map belongs to the first axis of the volume.
            matrix[:, 2] *= torch.where(torch.rand(n, device=device) < 0.5, -1.0, 1.0)[:, None]
        moved = torch.cat([matrix, 2 * self.shift * _uniform(device, n, 3, 1)], dim=2)
        factor = 1 + self.contrast * _uniform(device, n, 1, 1, 1, 1)
        grid = nn.functional.affine_grid(moved, list(images.shape), align_corners=False)
        # In full precision: scans may be kept in half, which a grid cannot be read in.
        changed = nn.functional.grid_sample(images.float(), grid, align_corners=False) * factor
        return changed.to(memory_format=torch.channels_last_3d)

    def _turned(self, share: Tensor) -> Tensor:
        """Rotation matrices `(n, 3, 3)` by these shares of the largest angle, one axis after the other."""
        angles = share * math.radians(self.turn)
        result = torch.eye(3, device=share.device).repeat(len(share), 1, 1)
        for axis in range(3):
            a, b = [other for other in range(3) if other != axis]
            turn = torch.eye(3, device=share.device).repeat(len(share), 1, 1)
            cosine, sine = angles[:, axis].cos(), angles[:, axis].sin()
            turn[:, a, a], turn[:, b, b] = cosine, cosine
            turn[:, a, b], turn[:, b, a] = -sine, sine
            result = result @ turn
        return result


def _uniform(device: torch.device, *shape: int) -> Tensor:
    """Numbers between -1 and 1."""
    return 2 * torch.rand(*shape, device=device) - 1
