"""Differences between two models on the same people: DeLong for AUC, and the smallest one that can be shown."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deconfound.errors import ShapeError
from deconfound.metrics.checks import same_shape, tensor, zero_or_one

if TYPE_CHECKING:
    from deconfound.metrics.checks import Samples

_NORMAL = torch.distributions.Normal(0.0, 1.0)
_TWO_SIDED = 1.959964
# A difference of this many standard errors is found at 5 % (two-sided) four times in five.
DETECTABLE = 2.8016


@dataclass(frozen=True)
class Difference:
    """A paired difference with its standard error, 95 % interval, two-sided p-value and smallest detectable size."""

    value: float
    error: float
    low: float
    high: float
    p: float

    @property
    def detectable(self) -> float:
        """The difference that people like these would show four times in five, at 5 %."""
        return DETECTABLE * self.error


def difference_from(value: float, error: float, least: float = -1.0, most: float = 1.0) -> Difference:
    """A difference by its value and standard error, its normal interval kept inside the range of the measure."""
    z = abs(value) / error if error > 0 else (0.0 if value == 0 else float("inf"))
    p = 2 * (1 - float(_NORMAL.cdf(torch.tensor(z, dtype=torch.float64))))
    reach = _TWO_SIDED * error
    return Difference(value, error, max(least, value - reach), min(most, value + reach), p)


def delong_difference(
    first: "Samples", second: "Samples", positive: "Samples", folds: "Samples | None" = None
) -> Difference:
    """The difference of two AUCs on the same people, `auc(first) - auc(second)`, by DeLong et al. (1988).

    Args:
        first: `(n,)` scores of a model, one row per person.
        second: `(n,)` scores of the other.
        positive: `(n,)` 1 or true for positive rows.
        folds: `(n,)` test fold of each row; the difference is taken within folds and averaged.
    """
    first, positive = same_shape(first, positive, ("first", "positive"))
    second, _ = same_shape(second, positive, ("second", "positive"))
    truth = zero_or_one(positive, "positive")
    codes = torch.zeros(len(truth)) if folds is None else tensor(folds, "folds")
    values, variances = [], []
    for fold in torch.unique(codes):
        rows = codes == fold
        up, down = truth[rows] == 1, truth[rows] == 0
        if int(up.sum()) > 1 and int(down.sum()) > 1:
            parts = [_placements(scores[rows].double(), up, down) for scores in (first, second)]
            ups, downs = parts[0][0] - parts[1][0], parts[0][1] - parts[1][1]
            values.append(ups.mean())
            variances.append(ups.var() / len(ups) + downs.var() / len(downs))
    if not values:
        raise ShapeError("a difference of AUCs must have two rows of each class in a fold; got none that has.")
    error = float(torch.stack(variances).sum().sqrt()) / len(values)
    return difference_from(float(torch.stack(values).mean()), error)


def bootstrap_difference(value: float, replicates: Tensor) -> Difference:
    """A paired difference by its replicates over people who were drawn with replacement, both models on the same."""
    finite = replicates[~replicates.isnan()].double()
    if len(finite) < 2:
        return Difference(value, float("nan"), float("nan"), float("nan"), float("nan"))
    return difference_from(value, float(finite.std()), -float("inf"), float("inf"))


def _placements(scores: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Of each positive row the share of negatives below it; of each negative row the share of positives above it."""
    ups, downs = scores[up], scores[down]

    def below(of: Tensor, among: Tensor) -> Tensor:
        ordered = among.sort().values
        less, upto = torch.searchsorted(ordered, of), torch.searchsorted(ordered, of, right=True)
        return (less + upto).double() / 2 / len(among)

    return below(ups, downs), 1 - below(downs, ups)
