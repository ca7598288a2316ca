"""Bootstrap samples over people, and the p-values and confidence intervals made from resamples."""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deconfound.errors import OptionError

LEVEL = 0.95
NAN = float("nan")
# Numbers held at once.
_HELD = 2**22


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval, its p-value and what independent data would give.

    `independent` is the 95 % quantile of the statistic over permuted tables and `chance` its mean there: what
    the label alone gives. NaN stands where there is no such thing. `n` counts the rows used, `movable` those
    whose value differs in at least one permuted table (-1 where nothing is permuted); with none there is no p.
    """

    statistic: str
    value: float
    n: int
    low: float = NAN
    high: float = NAN
    p: float = NAN
    chance: float = NAN
    independent: float = NAN
    movable: int = -1


# Fewer permutations give no p-value at 5 %, fewer bootstrap samples no interval.
LEAST_PERMUTATIONS = 19
LEAST_BOOTSTRAPS = 40


@dataclass(frozen=True)
class Resampling:
    """How many permutations and bootstrap samples are drawn, and from which seed."""

    permutations: int = 499
    bootstraps: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse counts that give no p-value at 5 % or no interval."""
        for name, least in (("permutations", LEAST_PERMUTATIONS), ("bootstraps", LEAST_BOOTSTRAPS), ("seed", 0)):
            try:
                value = operator.index(getattr(self, name))
            except TypeError as error:
                raise OptionError(f"{name} must be a whole number; got {getattr(self, name)!r}.") from error
            if not least <= value < 2**63:
                few = " Fewer say nothing." if name != "seed" else ""
                raise OptionError(f"{name} must be at least {least}; got {value}.{few}")
            object.__setattr__(self, name, value)

    def generator(self) -> torch.Generator:
        """A fresh generator, so that every statistic can be recomputed alone."""
        return torch.Generator().manual_seed(self.seed)


def bootstrap_chunks(strata: Tensor, units: Tensor | None, count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """How often each row is drawn, `(some, n)` samples at a time, so that a million rows need little memory.

    People are drawn with replacement, once for all strata, among people who have rows in the same strata.
    """
    held = torch.unique(strata, return_inverse=True)[1]
    unit = held.new_tensor(range(len(held))) if units is None else torch.unique(units, return_inverse=True)[1]
    people = int(unit.max()) + 1
    if units is None or people == len(unit):
        alike = torch.empty_like(held).index_copy_(0, unit, held)
    else:
        present = torch.zeros(people, int(held.max()) + 1, dtype=torch.bool)
        present[unit, held] = True
        alike = torch.unique(present, dim=0, return_inverse=True)[1]
    order = alike.argsort(stable=True)
    size = torch.bincount(alike)
    start = size.cumsum(0) - size
    first, many = start[alike[order]], size[alike[order]]
    some = max(1, _HELD // len(unit))
    for done in range(0, count, some):
        shape = (min(some, count - done), people)
        drawn = order[first + (torch.rand(shape, generator=generator, dtype=torch.float64) * many).long()]
        times = torch.zeros(shape, dtype=torch.long).scatter_add_(1, drawn, torch.ones_like(drawn))
        yield times[:, unit]


def bootstrap_weights(strata: Tensor, units: Tensor | None, count: int, generator: torch.Generator) -> Tensor:
    """`(count, n)` how often each row is drawn: all of `bootstrap_chunks` at once."""
    return torch.cat(list(bootstrap_chunks(strata, units, count, generator)))


def p_value(observed: float | Tensor, null: Tensor) -> float:
    """`(1 + #{null ≥ observed}) / (1 + permutations)`: never zero, so that no level is exceeded."""
    slack = 1e-9 * (1 + abs(float(observed)))
    return (1 + int((null >= float(observed) - slack).sum())) / (1 + len(null))


def interval(
    value: float, replicates: Tensor, least: float = -float("inf"), most: float = float("inf")
) -> tuple[float, float]:
    """The percentile interval of the replicates, moved so that their mean falls on the value.

    Rows drawn twice have distance zero, and absolute values fold at zero: both shift the replicates off the
    value. Moving them back takes that shift out.
    """
    tail = (1 - LEVEL) / 2
    finite = replicates[~replicates.isnan()].double()
    if len(finite) < 2 or value != value:
        return float("nan"), float("nan")
    ends = torch.quantile(finite - finite.mean(), torch.tensor([tail, 1 - tail], dtype=torch.float64)) + value
    low, high = ends.clamp(least, most).tolist()
    return min(low, value), max(high, value)


def absolute_interval(values: Tensor, replicates: Tensor) -> tuple[float, float]:
    """An interval for the mean of |values| `(k,)`, each at most 1, from signed replicates `(R, k)`.

    Noise makes absolute values larger, the more so near zero, where a percentile interval misses. So the values are
    multiplied by a growing share, the noise of the replicates is added, and the interval holds the shares at which a
    mean as large as the observed one is neither too rare above nor too rare below (2.5 % each).
    """
    noise = replicates.double().nanmean(0) - replicates.double()
    observed = float(values.abs().mean())
    if observed != observed or bool(noise.isnan().all()):
        return float("nan"), float("nan")
    reach = 1 + 4 * float(noise.square().nanmean().sqrt()) / max(observed, 1e-12)
    shares = torch.linspace(0, 1, 151, dtype=torch.float64).square() * reach
    found = torch.stack([(share * values + noise).abs().nanmean(1) for share in shares])
    tail = torch.tensor([(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2], dtype=torch.float64)
    below, above = torch.nanquantile(found, tail, dim=1)
    low, high = shares[above >= observed], shares[below <= observed]
    least = float(low[0]) * observed if len(low) else observed
    most = float(high[-1]) * observed if len(high) else observed
    return min(least, observed), min(1.0, max(most, observed))


def estimate(
    statistic: str, value: float, n: int, null: Tensor, interval: tuple[float, float] = (NAN, NAN), movable: int = -1
) -> Estimate:
    """Put a value together with its permuted values and its interval; where no row can move there is no p-value."""
    if movable == 0:
        return Estimate(statistic, value, n, *interval, movable=0)
    null = null.double()
    p, chance, independent = p_value(value, null), float(null.mean()), float(null.quantile(LEVEL))
    return Estimate(statistic, value, n, *interval, p, chance, independent, movable)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number (Holm 1979): a level holds for all of them together; NaN stays NaN.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted((p, place) for place, p in enumerate(p_values) if p == p)
    out = [float("nan")] * len(p_values)
    highest = 0.0
    for rank, (p, place) in enumerate(order):
        highest = max(highest, min(1.0, p * (len(order) - rank)))
        out[place] = highest
    return out


def person_folds(units: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    """`(n,)` fold of each row; a person's rows share one, and folds hold nearly equally many people."""
    unit = torch.unique(units, return_inverse=True)[1]
    n_units = int(unit.max()) + 1
    if n_units < folds:
        raise OptionError(f"folds must not exceed the number of people; got {folds} for {n_units}. Use fewer folds.")
    return (torch.randperm(n_units, generator=generator) % folds)[unit]
