"""Bootstrap samples of whole people, and the intervals that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deconfound.errors import OptionError
from deconfound.metrics.arrays import Codes, group_people

# With fewer permutations no p-value can reach .05.
FEWEST_PERMUTATIONS = 19


@dataclass(frozen=True)
class Resampling:
    """Numbers of random samples behind p-values and intervals.

    Attributes:
        permutations: Number of permuted tables. The smallest p-value is 1 / (permutations + 1).
        bootstraps: Number of bootstrap samples of people. With 0 there are no intervals.
        seed: Seed of the random numbers. Equal seeds give equal results.

    Example:
        >>> Resampling(permutations=1999, seed=1)  # p-values down to .0005
        Resampling(permutations=1999, bootstraps=500, seed=1)
    """

    permutations: int = 499
    bootstraps: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"permutations": FEWEST_PERMUTATIONS, "bootstraps": 0, "seed": 0}
        for name, minimum in least.items():
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < minimum:
                raise OptionError(
                    f"`{name}` cannot be {value!r}. Pass a whole number of at least {minimum}."
                )


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; what is not known is NaN.

    Attributes:
        value: The estimate.
        low: Lower end of the interval.
        high: Upper end of the interval.
        p: The p-value.
        n: Number of people (or folds, or pairs) behind the estimate.
    """

    value: float
    low: float = nan
    high: float = nan
    p: float = nan
    n: int = 0


def draw_people(person: Codes, strata: Codes | None, draws: int, seed: int) -> NDArray[np.intp]:
    """Return how often each row occurs in each bootstrap sample, shape `(draws, n)`.

    People are drawn with replacement, each with all of their rows. Every sample has the same number
    of people in each stratum as the table.

    Args:
        person: Codes 0, 1, … of the person of each row, shape `(n,)`.
        strata: Codes of the stratum of each row, shape `(n,)`, or None for one stratum. A person
            with rows in several strata is drawn among the people with rows in just these strata.
        draws: Number of samples.
        seed: Seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    if strata is None:
        strata = np.zeros_like(person)
    stratum_of_person = group_people(person, strata)
    counts = np.empty((draws, len(stratum_of_person)), dtype=np.intp)
    for stratum in range(stratum_of_person.max() + 1):
        people = np.flatnonzero(stratum_of_person == stratum)
        chances = np.full(len(people), 1 / len(people))
        counts[:, people] = random.multinomial(len(people), chances, size=draws)
    return counts[:, person]


def percentile_interval(draws: ArrayLike, value: float | None = None) -> tuple[float, float]:
    """Return the 2.5 % and 97.5 % quantiles of the draws; NaN draws are ignored.

    Args:
        draws: The statistic in each bootstrap sample, shape `(draws,)`.
        value: If given, the draws are moved so that their mean falls on this number.

    Returns:
        The lower and the upper end; NaN if no draw is a number.
    """
    numbers = np.asarray(draws, dtype=np.float64)
    numbers = numbers[~np.isnan(numbers)]
    if not len(numbers):
        return nan, nan
    if value is not None:
        numbers = numbers + (value - numbers.mean())
    low, high = np.quantile(numbers, [0.025, 0.975])
    return float(low), float(high)
