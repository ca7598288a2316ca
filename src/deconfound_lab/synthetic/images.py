"""The synthetic images of the paper's Section 3.1: a main effect, a confound, and known ceilings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from deconfound.errors import OptionError

SIZE = 16
PIXEL_NOISE = 0.01
Ranges = tuple[tuple[float, float], tuple[float, float]]
AMPLITUDES: Ranges = ((1.0, 4.0), (3.0, 6.0))
"""The ranges of the amplitudes in group 0 and group 1."""

SITES = ("A", "B", "C")
SITE_SHARES = ((0.5, 0.4, 0.1), (0.1, 0.4, 0.5))
"""How often each site occurs in group 0 and group 1, for `kind="sites"`."""

SITE_AMPLITUDES = (1.5, 3.5, 5.5)

KINDS = ("one", "two", "sites", "curved")
READINGS = ("amplitude", "width")

# Draws that a process keeps: four of each of five seeds, of every kind, or of every stage of data that drift. With
# test sets of full size these are 6 GB.
KEPT = 128


def ceiling(main: Ranges = AMPLITUDES) -> float:
    """The best accuracy without the confound: a coin toss where the main effect's two ranges overlap."""
    (low, high), (other_low, other_high) = main
    overlap = max(0.0, min(high, other_high) - max(low, other_low))
    return 1 - overlap / (high - low) / 2


CEILING = ceiling()
"""The best accuracy without the confound on the paper's images."""

CEILING_WITH_CONFOUND = 1 - (1 / 9) / 2
"""The best accuracy with it: both amplitudes lie in the overlap in a ninth of the images."""


@dataclass(frozen=True)
class SyntheticImages:
    """Images with their group and confounds.

    Attributes:
        images: `(n, 1, 32, 32)`.
        group: `(n,)`, 0 or 1: the label.
        confound: `(n, k)`: the confounds as numbers, sites as one column each.
        columns: The confounds as a table holds them.
    """

    images: Tensor
    group: Tensor
    confound: Tensor
    columns: Mapping[str, Any]

    @property
    def table(self) -> dict[str, Any]:
        """The columns a design reads."""
        return {**self.columns, "group": self.group.cpu().numpy()}


@lru_cache(KEPT)
def images_on(
    device: torch.device, per_group: int, seed: int, confound: str, kind: str, reading: str, main: Ranges
) -> SyntheticImages:
    """`synthetic_images` on a device, drawn once: the trainings of a process share them, and none changes them."""
    data = synthetic_images(per_group, seed, confound, kind=kind, reading=reading, main=main)
    moved = {name: getattr(data, name).to(device) for name in ("images", "group", "confound")}
    return replace(data, **moved)


def synthetic_images(
    per_group: int = 1000,
    seed: int = 0,
    confound: str = "tied",
    *,
    kind: str = "one",
    reading: str = "amplitude",
    main: Ranges = AMPLITUDES,
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
        kind: "one" is the paper's. "two" puts a second confound into the empty quadrant. With "sites" the confound
            is one of three sites, each with its own amplitude, of which the groups have unequal shares. With
            "curved" the table's confound acts along a cubic: the amplitude is its third power over 36.
        reading: "amplitude" is what the authors' code does; "width" is what the paper's text says: the draw is the
            variance of a bump that sums to 1.
        main: The ranges of the main effect in the two groups.

    Example:
        >>> data = synthetic_images(per_group=100, seed=1)
        >>> data.images.shape, data.group.float().mean().item()
        (torch.Size([200, 1, 32, 32]), 0.5)
    """
    choices = (
        ("confound", confound, ("tied", "independent")),
        ("kind", kind, KINDS),
        ("reading", reading, READINGS),
    )
    for name, chosen, known in choices:
        if chosen not in known:
            raise OptionError(f"{name} must be one of {', '.join(map(repr, known))}; got {chosen!r}.")
    generator = torch.Generator().manual_seed(seed)
    group = torch.arange(2).repeat_interleave(per_group)
    n = len(group)
    main_effect = _uniform(group, main, generator)

    def side() -> Tensor:
        return group if confound == "tied" else torch.randint(2, (n,), generator=generator)

    drawn = [_draw(kind, side(), generator)]
    if kind == "two":
        drawn.append(_draw("one", side(), generator))
    images = torch.randn(n, 1, 2 * SIZE, 2 * SIZE, generator=generator) * PIXEL_NOISE
    quadrants = [(0, 0, main_effect), (1, 1, main_effect), (1, 0, drawn[0][1])]
    if kind == "two":
        quadrants.append((0, 1, drawn[1][1]))
    for row, column, value in quadrants:
        images[:, 0, row * SIZE : (row + 1) * SIZE, column * SIZE : (column + 1) * SIZE] += _bumps(value, reading)
    if kind == "sites":
        sites = drawn[0][0].long()
        return SyntheticImages(
            images, group, one_hot(sites, len(SITES)).float(), {"site": np.array(SITES)[sites.numpy()]}
        )
    names = ("confound", "second")[: len(drawn)]
    columns = {name: values.double().numpy() for name, (values, _) in zip(names, drawn, strict=True)}
    return SyntheticImages(images, group, torch.stack([values for values, _ in drawn], dim=1), columns)


def _draw(kind: str, side: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The confound's values, and the amplitudes that they give."""
    if kind == "sites":
        edges = torch.tensor(SITE_SHARES).cumsum(1)[side]
        sites = (torch.rand(len(side), 1, generator=generator) > edges[:, :-1]).sum(1)
        return sites, torch.tensor(SITE_AMPLITUDES)[sites]
    values = _uniform(side, AMPLITUDES, generator)
    return values, values**3 / 36 if kind == "curved" else values


def _uniform(side: Tensor, ranges: Ranges, generator: torch.Generator) -> Tensor:
    low, high = torch.tensor(ranges).T
    draws: Tensor = low[side] + (high - low)[side] * torch.rand(len(side), generator=generator)
    return draws


def _bumps(values: Tensor, reading: str) -> Tensor:
    """One bump per image, `(n, 16, 16)`."""
    if reading == "width":
        away = (torch.arange(SIZE) - (SIZE - 1) / 2) ** 2
        profile = torch.softmax(-away / (2 * values[:, None]), dim=1)
        return profile[:, :, None] * profile[:, None, :]
    # A Gaussian over ±5 sigma that sums to 1.
    half = 5 + 11 / SIZE / 2
    edges = torch.linspace(-half, half, SIZE + 1, dtype=torch.float64)
    line = torch.special.ndtr(edges).diff()
    kernel = torch.outer(line, line).sqrt()
    return values[:, None, None] * (kernel / kernel.sum()).float()
