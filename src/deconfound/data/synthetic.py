"""The synthetic images of the paper's Section 3.1: a main effect, a confound, and known ceilings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from deconfound.errors import OptionError

SIZE = 16
PIXEL_NOISE = 0.01
AMPLITUDES = ((1.0, 4.0), (3.0, 6.0))
"""The ranges of the amplitudes in group 0 and group 1."""

CEILING = 1 - (1 / 3) / 2
"""The best accuracy without the confound: the two ranges overlap in a third of their width, a coin toss there."""

CEILING_WITH_CONFOUND = 1 - (1 / 9) / 2
"""The best accuracy with it: both amplitudes lie in the overlap in a ninth of the images."""


@dataclass(frozen=True)
class SyntheticImages:
    """Images with their group and confound.

    Attributes:
        images: `(n, 1, 32, 32)`.
        group: `(n,)`, 0 or 1: the label.
        confound: `(n,)`: the amplitude of the third quadrant.
    """

    images: Tensor
    group: Tensor
    confound: Tensor

    @property
    def table(self) -> dict[str, object]:
        """The columns a design reads."""
        return {"confound": self.confound.double().numpy(), "group": self.group.numpy()}


def synthetic_images(
    per_group: int = 1000, seed: int = 0, confound: Literal["tied", "independent"] = "tied"
) -> SyntheticImages:
    """Draw images of two groups that differ in a main effect and in a confound.

    Quadrants two and four hold a Gaussian bump times one draw, the main effect; quadrant three holds it times
    another, the confound; quadrant one is empty. Draws are uniform on (1, 4) in group 0 and (3, 6) in group 1. With
    `confound="independent"` the confound's range is that of either group by a coin toss: what a model that does not
    use the confound should not notice.

    Args:
        per_group: Images in each group.
        seed: Equal seeds give equal images.
        confound: Whether the confound goes with the group.

    Example:
        >>> data = synthetic_images(per_group=100, seed=1)
        >>> data.images.shape, data.group.float().mean().item()
        (torch.Size([200, 1, 32, 32]), 0.5)
    """
    if confound not in ("tied", "independent"):
        raise OptionError(f"confound must be 'tied' or 'independent'; got {confound!r}.")
    generator = torch.Generator().manual_seed(seed)
    group = torch.arange(2).repeat_interleave(per_group)
    n = len(group)
    main = _amplitudes(group, generator)
    third = group if confound == "tied" else torch.randint(2, (n,), generator=generator)
    disturbing = _amplitudes(third, generator)
    bump = _bump()
    images = torch.randn(n, 1, 2 * SIZE, 2 * SIZE, generator=generator) * PIXEL_NOISE
    images[:, 0, :SIZE, :SIZE] += main[:, None, None] * bump
    images[:, 0, SIZE:, SIZE:] += main[:, None, None] * bump
    images[:, 0, SIZE:, :SIZE] += disturbing[:, None, None] * bump
    return SyntheticImages(images, group, disturbing)


def _amplitudes(group: Tensor, generator: torch.Generator) -> Tensor:
    low, high = torch.tensor(AMPLITUDES).T
    draws: Tensor = low[group] + (high - low)[group] * torch.rand(len(group), generator=generator)
    return draws


def _bump() -> Tensor:
    """A Gaussian over ±5 sigma that sums to 1."""
    half = 5 + 11 / SIZE / 2
    edges = torch.linspace(-half, half, SIZE + 1, dtype=torch.float64)
    profile = torch.special.ndtr(edges).diff()
    kernel = torch.outer(profile, profile).sqrt()
    return (kernel / kernel.sum()).float()
