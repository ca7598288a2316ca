"""Which features of a layer are measured: runs of neighbours all over a sample, at one distance from each other.

Neighbours lie together in memory, and a distance is all that a GPU needs to know to find them. It must suit the shape
of a sample: runs that lie a whole number of image rows apart, or nearly, see one edge of every image and nothing of the
rest. In each period of a shape (a row, a slice, a channel) runs should be evenly spread, whichever of them they lie in.
Of distances that do so equally well, and where samples were made flat before and hide their shape, a prime number of
runs is the safest.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

# About so many features are measured; all of them where they are less than twice as many.
MEASURED_FEATURES = 1024
# A run fills a sector of a GPU's memory.
RUN = 8
# Distances that are tried; a prime number, so that they have no factor in common.
TRIED = 61


class Measured(NamedTuple):
    """The first `run` features of every `apart` of them.

    Attributes:
        run: How many neighbours are measured.
        apart: From the first of them to the first of the next run.
    """

    run: int
    apart: int

    def of(self, matrix: Tensor) -> Tensor:
        """The measured features, of a matrix with all of them in each row."""
        return matrix if self.apart == self.run else matrix.unfold(1, self.run, self.apart).flatten(1)


def measured_in(shape: tuple[int, ...]) -> Measured:
    """What is measured of samples of this shape.

    Example:
        >>> measured_in((16, 8, 8))  # every feature
        Measured(run=8, apart=8)
        >>> measured_in((128, 28, 28))
        Measured(run=8, apart=808)
    """
    features = math.prod(shape)
    least = features // MEASURED_FEATURES
    if least < 2:
        return Measured(RUN, RUN)
    more = least // 4 + 2
    tried = sorted({least + more * i // TRIED for i in range(TRIED + 1)})
    periods = [math.prod(shape[axis:]) for axis in range(1, len(shape))]

    def badness(every: int) -> tuple[float, bool]:
        return sum(_stretch(features, RUN * every, period) for period in periods), not _is_prime(every)

    return Measured(RUN, RUN * min(tried, key=badness))


def _is_prime(number: int) -> bool:
    return all(number % factor for factor in range(2, math.isqrt(number) + 1))


def _stretch(features: int, apart: int, period: int) -> float:
    """The widest gap between the starts of runs within a period, over what it would be if they were evenly spread."""
    starts = sorted({start % period for start in range(0, features - RUN + 1, apart)})
    widest = max(after - before for before, after in pairwise([*starts, starts[0] + period]))
    return widest / max(RUN, period * RUN / MEASURED_FEATURES)
