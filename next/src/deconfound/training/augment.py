"""Random variations of inputs that leave the label as it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deconfound.errors import OptionError, ShapeError


@dataclass(frozen=True)
class Augment:
    """Vary scaled training inputs at random, each row in its own way; nothing by default.

    Args:
        flip: Mirror left and right in half of the rows: the last axis of images and sequences, and
            the first axis of scans, whose axes run to the right, to the front and up.
        shift: Move each row by up to this number of pixels along each axis. Pixels that come in
            from outside are 0, the mean of scaled inputs.
        noise: The sd of normal noise that is added, in sd of the inputs.

    Example:
        >>> x = torch.arange(3.0).expand(4, 1, 3)
        >>> varied = Augment(flip=True)(x, torch.Generator().manual_seed(1))
        >>> varied[:, 0].tolist()
        [[0.0, 1.0, 2.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]
    """

    flip: bool = False
    shift: int = 0
    noise: float = 0.0

    def __post_init__(self) -> None:
        are_numbers = isinstance(self.shift, int) and isinstance(self.noise, int | float)
        if not (are_numbers and self.shift >= 0 <= self.noise):
            raise OptionError(
                "shift must be a whole number of pixels and noise a number of sd, both 0 or more; "
                f"got {self}. Write Augment(flip=True, shift=4, noise=0.1)."
            )

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return varied inputs of the same shape.

        Args:
            x: Scaled inputs, shape `(n, channels, …)` with one to three axes of space.
            generator: What the variations are drawn from, on any device. The same state gives the
                same result.
        """
        axes = range(2, x.ndim)
        if (self.flip or self.shift) and len(axes) not in (1, 2, 3):
            raise ShapeError(
                "flip and shift need inputs (n, channels, …) with one to three axes of space; got "
                f"shape {tuple(x.shape)}. Leave them out for tables; noise serves all inputs."
            )
        device = generator.device
        if self.flip:
            is_mirrored = torch.rand(len(x), generator=generator, device=device) < 0.5
            mirror_image = x.flip(2 if len(axes) == 3 else -1)
            x = torch.where(is_mirrored.to(x.device).view(-1, *[1] * (x.ndim - 1)), mirror_image, x)
        for axis in axes if self.shift else ():
            limit = min(self.shift, x.shape[axis] - 1)  # Of a row moved further, nothing is left.
            draw = torch.randint(2 * limit + 1, (len(x),), generator=generator, device=device)
            x = _move(x, axis, draw.to(x.device) - limit)
        if self.noise:
            noise = torch.randn(x.shape, generator=generator, device=device)
            x = x + self.noise * noise.to(x)
        return x


def _move(x: Tensor, axis: int, pixels: Tensor) -> Tensor:
    """Return each row moved along one axis by its own number of pixels, shape `(n,)`."""
    size = x.shape[axis]
    source = torch.arange(size, device=x.device) - pixels[:, None]
    shape = [len(x), *[1] * (x.ndim - 1)]
    shape[axis] = size
    is_outside = ((source < 0) | (source >= size)).view(shape)
    result = x.gather(axis, source.clamp(0, size - 1).view(shape).expand_as(x))
    return result.masked_fill(is_outside, 0)
