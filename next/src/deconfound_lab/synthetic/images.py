"""The paper's synthetic images: a main effect, a confound, and a known best accuracy.

An image of 32 × 32 pixels has four quadrants of 16 × 16. The upper left and the lower right one
hold a Gaussian bump times one draw, the main effect. The lower left one holds the bump times
another draw, the confound. The upper right one is empty. Both draws are uniform on (1, 4) in group
0 and on (3, 6) in group 1.

The paper's text says that the variance of the Gaussians is drawn. The authors' code draws the
amplitude of a fixed bump, and so does this file; `kind="width"` follows the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.errors import OptionError

QUADRANT = 16
PIXEL_NOISE = 0.01
# The bump spans ±5 sd, as in the authors' code.
BUMP_SD = 5.0
RANGES = torch.tensor([[1.0, 4.0], [3.0, 6.0]])

# The draws of the two groups overlap in a third of their range, where a guess is right half the
# time: 1 − ½ · ⅓. With the confound both draws must lie in the overlap: 1 − ½ · ⅓ · ⅓.
CEILING = 5 / 6
CEILING_WITH_CONFOUND = 17 / 18

KINDS = ("one", "width", "two", "sites")
SITES = ("A", "B", "C")
# How often each site occurs in group 0 and in group 1, and the amplitude of its bump.
SITE_SHARES = torch.tensor([[0.5, 0.4, 0.1], [0.1, 0.4, 0.5]])
SITE_AMPLITUDES = torch.tensor([1.5, 3.5, 5.5])


@dataclass(frozen=True)
class SyntheticImages:
    """Images with their groups and confounds.

    Attributes:
        images: Shape `(n, 1, 32, 32)`.
        group: The label, 0 or 1, shape `(n,)`, int64.
        table: The columns `group` and the confounds: `confound`, for two confounds also `second`,
            for sites `site` instead.
    """

    images: Tensor
    group: Tensor
    table: pd.DataFrame

    @property
    def confounds(self) -> list[str]:
        """The names of the confounds."""
        return [name for name in self.table.columns if name != "group"]

    def confound_numbers(self) -> NDArray[np.float64]:
        """Return the confounds as numbers, shape `(n, k)`; sites as one column of 0 and 1 each."""
        numbers = pd.get_dummies(self.table[self.confounds]).to_numpy(dtype=np.float64)
        return np.asarray(numbers)


def synthetic_images(
    per_group: int = 1000, seed: int = 0, confound: str = "associated", kind: str = "one"
) -> SyntheticImages:
    """Draw images of two groups that differ in a main effect and in a confound.

    Args:
        per_group: The number of images of each group.
        seed: Equal seeds give equal images.
        confound: "associated" draws the confound from the range of the image's own group, and
            "independent" from the range of either group at random. A network that does not use the
            confound is equally good on both.
        kind: "one" is the paper's data by the authors' code. "width" draws the variance of the
            bumps, as in the paper's text. "two" puts a second confound into the empty quadrant.
            "sites" has one of three sites as its confound, each with its own amplitude and with
            unequal shares in the groups.

    Example:
        >>> data = synthetic_images(per_group=100, seed=1)
        >>> data.images.shape, data.confounds
        (torch.Size([200, 1, 32, 32]), ['confound'])
    """
    for name, value, known in (
        ("confound", confound, ("associated", "independent")),
        ("kind", kind, KINDS),
    ):
        if value not in known:
            listed = ", ".join(map(repr, known))
            raise OptionError(f"{name} must be one of {listed}; got {value!r}.")
    generator = torch.Generator().manual_seed(seed)
    group = torch.arange(2).repeat_interleave(per_group)
    columns: dict[str, object] = {"group": group.numpy()}

    def confound_side() -> Tensor:
        """Return from which group's range each confound is drawn."""
        if confound == "associated":
            return group
        return torch.randint(2, (len(group),), generator=generator)

    quadrants = {(0, 0): draw_uniform(group, generator)}
    quadrants[1, 1] = quadrants[0, 0]
    if kind == "sites":
        shares = SITE_SHARES[confound_side()]
        sites = torch.multinomial(shares, 1, generator=generator).flatten()
        quadrants[1, 0] = SITE_AMPLITUDES[sites]
        columns["site"] = np.array(SITES)[sites.numpy()]
    else:
        quadrants[1, 0] = draw_uniform(confound_side(), generator)
        columns["confound"] = quadrants[1, 0].double().numpy()
    if kind == "two":
        quadrants[0, 1] = draw_uniform(confound_side(), generator)
        columns["second"] = quadrants[0, 1].double().numpy()

    images = torch.randn(len(group), 1, 2 * QUADRANT, 2 * QUADRANT, generator=generator)
    images *= PIXEL_NOISE
    for (row, column), draws in quadrants.items():
        rows = slice(row * QUADRANT, (row + 1) * QUADRANT)
        pixels = slice(column * QUADRANT, (column + 1) * QUADRANT)
        bumps = draw_widths(draws) if kind == "width" else draws[:, None, None] * bump()
        images[:, 0, rows, pixels] += bumps
    return SyntheticImages(images, group, pd.DataFrame(columns))


def draw_uniform(group: Tensor, generator: torch.Generator) -> Tensor:
    """Return one draw for each image from the range of its group, shape `(n,)`."""
    low, high = RANGES[group].unbind(dim=1)
    return low + (high - low) * torch.rand(len(group), generator=generator)


def bump() -> Tensor:
    """Return the bump of amplitude 1, which sums to 1, shape `(16, 16)`.

    It is the square root of the outer product of normal probabilities of the pixels:

        bump_ij ∝ √(p_i p_j),   p_i = Φ(edge_{i+1}) − Φ(edge_i)

    The edges are those of the authors' code, where the outermost pixels reach half a step beyond
    ±5 sd.
    """
    outermost = BUMP_SD + (2 * BUMP_SD + 1) / QUADRANT / 2
    edges = torch.linspace(-outermost, outermost, QUADRANT + 1, dtype=torch.float64)
    probabilities = torch.special.ndtr(edges).diff()
    kernel = torch.outer(probabilities, probabilities).sqrt()
    return (kernel / kernel.sum()).float()


def draw_widths(variance: Tensor) -> Tensor:
    """Return Gaussians of these variances, in pixels², that sum to 1, shape `(n, 16, 16)`."""
    squared_distance = (torch.arange(QUADRANT) - (QUADRANT - 1) / 2) ** 2
    profile = torch.softmax(-squared_distance / (2 * variance[:, None]), dim=1)
    return profile[:, :, None] * profile[:, None, :]
