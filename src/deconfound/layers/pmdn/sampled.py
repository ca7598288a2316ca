"""Which features the gain is computed on: runs of neighbours all over a sample, at one distance from each other.

Neighbours lie together in memory, and a distance is all that a GPU needs to know to find them. It must suit the shape
of a sample: runs that lie a whole number of image rows apart, or nearly, see one edge of every image and nothing of the
rest. In each period of a shape (a row, a slice, a channel) runs should be evenly spread, whichever of them they lie in.
Distances are prime numbers of runs, which is the best that can be done for samples that were made flat before and hide
their shape.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

# About so many features are sampled; all of them where they are less than twice as many.
SAMPLED_FEATURES = 1024
# A run fills a sector of a GPU's memory.
RUN = 8
# At most so many distances are tried.
TRIED = 61


class Sampled(NamedTuple):
    """The first `run` features of every `apart` of them.

    Attributes:
        run: How many neighbours are sampled.
        apart: From the first of them to the first of the next run.
    """

    run: int
    apart: int

    def of(self, matrix: Tensor) -> Tensor:
        """The sampled features, of a matrix with all of them in each row."""
        return matrix if self.apart == self.run else matrix.unfold(1, self.run, self.apart).flatten(1)

    @property
    def all(self) -> bool:
        """Whether every feature is sampled."""
        return self.apart == self.run


def sample_of(shape: tuple[int, ...]) -> Sampled:
    """The features that are sampled where a sample has this shape.

    Example:
        >>> sample_of((16, 8, 8))  # every feature
        Sampled(run=8, apart=8)
        >>> sample_of((128, 28, 28))
        Sampled(run=8, apart=712)
    """
    features = math.prod(shape)
    usual = features // SAMPLED_FEATURES
    if usual < 2:
        return Sampled(RUN, RUN)
    least, span = usual - usual // 8, usual // 3 + 2
    tried = sorted({_prime_from(least + span * i // TRIED) for i in range(1, TRIED + 1)})
    periods = {math.prod(shape[axis:]) for axis in range(1, len(shape))} - {1, features}

    def stretch(every: int) -> float:
        return sum(_stretch(features, RUN * every, period) for period in periods)

    return Sampled(RUN, RUN * min(tried, key=stretch))


def _prime_from(number: int) -> int:
    """The least prime number that is not smaller."""
    while any(number % factor == 0 for factor in range(2, math.isqrt(number) + 1)):
        number += 1
    return number


def _stretch(features: int, apart: int, period: int) -> float:
    """The widest gap between the starts of runs within a period, over what it would be if they were evenly spread."""
    starts = sorted({start % period for start in range(0, features - RUN + 1, apart)})
    widest = max(after - before for before, after in pairwise([*starts, starts[0] + period]))
    return widest / max(RUN, period * RUN / SAMPLED_FEATURES)
