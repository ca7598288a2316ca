"""Numbers with their 95 % confidence intervals: over seeds, over folds, and by bootstrap over people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.training import interval


@dataclass(frozen=True)
class Value:
    """A number and its 95 % confidence interval, whose ends are both the mean where there is none."""

    mean: float
    low: float
    high: float

    @property
    def single(self) -> bool:
        """Whether there is no interval."""
        return self.low == self.high

    def within_bounds(self) -> Value:
        """The same for a share, which lies from 0 to 1: Student's interval of few folds knows no bounds.

        Example:
            >>> Value(0.6, -0.2, 1.4).within_bounds()
            Value(mean=0.6, low=0.0, high=1.0)
        """
        return replace(self, low=max(self.low, 0.0), high=min(self.high, 1.0))

    def shown(self, form: str, scale: float = 1.0) -> str:
        """Mean and interval in brackets, or the mean alone."""
        mean, low, high = (f"{scale * each:{form}}" for each in (self.mean, self.low, self.high))
        return mean if self.single else f"{mean} ({low} to {high})"


def over_seeds(values: Sequence[float]) -> Value:
    """The mean of independent trainings, or of what each person has, with Student's interval."""
    return over_folds(dict(enumerate(values)), 0.0)


def over_folds(values: Mapping[int, float], share: float) -> Value:
    """The mean over folds with the corrected t interval of `deconfound compare`.

    `share`: test people for each training person; 0 where trainings do not overlap.
    """
    found = interval(list(values.items()), share)
    return Value(found.mean, found.mean, found.mean) if found.sets < 2 else Value(found.mean, found.low, found.high)


def of_draws(value: float, draws: Sequence[float] | NDArray[Any], *, centred: bool = False) -> Value:
    """A bootstrap interval: the percentiles of replicates of people drawn with replacement.

    `centred` moves the interval by the replicates' mean error; a bootstrap adds to a |correlation|.
    """
    low, high = np.quantile(draws, [0.025, 0.975]) - (np.mean(draws) - value if centred else 0.0)
    return Value(value, float(low), float(high))


def rounded(content: Any, digits: int = 6) -> Any:
    """Plain values whose numbers have so many significant digits."""
    if isinstance(content, Mapping):
        return {key: rounded(value, digits) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [rounded(value, digits) for value in content]
    return float(f"{content:.{digits}g}") if isinstance(content, float) else content
