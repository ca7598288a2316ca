"""Permutations, bootstrap samples, and the p-values and intervals made from them.

A person with several rows is moved and drawn as a whole. A permutation exchanges people who have the same
number of rows and lie in the same stratum, so that under independence every permuted table is as likely as
the observed one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deconfound.errors import OptionError

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval, its p-value and what independent data would give.

    `independent` is the 95 % quantile of the statistic over permuted tables and `chance` its mean there; NaN
    stands where a quantity has no such thing. `n` counts the rows used.
    """

    statistic: str
    value: float
    n: int
    low: float = float("nan")
    high: float = float("nan")
    p: float = float("nan")
    chance: float = float("nan")
    independent: float = float("nan")


@dataclass(frozen=True)
class Resampling:
    """How many permutations and bootstrap samples are drawn, and from which seed."""

    permutations: int = 499
    bootstraps: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse counts that give no p-value at 5 % or no interval."""
        for name, least in (("permutations", 19), ("bootstraps", 40)):
            if not isinstance(getattr(self, name), int):
                raise OptionError(f"{name} must be a whole number; got {getattr(self, name)!r}.")
            if getattr(self, name) < least:
                raise OptionError(f"{name} must be at least {least}; got {getattr(self, name)}. Fewer say nothing.")
        if self.seed < 0:
            raise OptionError(f"seed must be at least 0; got {self.seed}.")

    def generator(self) -> torch.Generator:
        """A fresh generator, so that every statistic can be recomputed alone."""
        return torch.Generator().manual_seed(self.seed)


def permuted_rows(strata: Tensor, units: Tensor | None, count: int, generator: torch.Generator) -> Tensor:
    """`(count, n)` row numbers: row i of a permuted table takes the value of row `out[k, i]`.

    Args:
        strata: `(n,)` codes; rows are exchanged within a stratum only.
        units: `(n,)` codes of the person of each row; None when every row is a person of its own.
        count: how many permutations.
        generator: source of randomness.
    """
    out = torch.arange(len(strata)).repeat(count, 1)
    for blocks in _equal_blocks(strata, units):
        order = torch.rand(count, len(blocks), generator=generator).argsort(1)
        out[:, blocks.flatten()] = blocks[order].flatten(1)
    return out


def bootstrap_weights(strata: Tensor, units: Tensor | None, count: int, generator: torch.Generator) -> Tensor:
    """`(count, n)` how often each row is drawn; people are drawn with replacement within their stratum."""
    weights = torch.empty(count, len(strata), dtype=torch.long)
    for rows, unit in _unit_codes(strata, units):
        n_units = int(unit.max()) + 1
        drawn = torch.randint(n_units, (count, n_units), generator=generator)
        counts = torch.zeros(count, n_units, dtype=torch.long).scatter_add_(1, drawn, torch.ones_like(drawn))
        weights[:, rows] = counts[:, unit]
    return weights


def p_value(observed: float | Tensor, null: Tensor) -> float:
    """`(1 + #{null ≥ observed}) / (1 + permutations)`: never zero, so that no level is exceeded."""
    slack = 1e-9 * (1 + abs(float(observed)))
    return (1 + int((null >= float(observed) - slack).sum())) / (1 + len(null))


def interval(value: float, replicates: Tensor, least: float, most: float) -> tuple[float, float]:
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


def estimate(
    statistic: str,
    value: float,
    n: int,
    null: Tensor,
    replicates: Tensor,
    least: float = float("-inf"),
    most: float = float("inf"),
) -> Estimate:
    """Put a value together with its permuted values and its bootstrap replicates."""
    low, high = interval(value, replicates, least, most)
    return Estimate(
        statistic,
        value,
        n,
        low,
        high,
        p_value(value, null),
        float(null.mean()),
        float(null.double().quantile(LEVEL)),
    )


def person_folds(units: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    """`(n,)` fold of each row; a person's rows share one, and folds hold nearly equally many people."""
    unit = torch.unique(units, return_inverse=True)[1]
    n_units = int(unit.max()) + 1
    if n_units < folds:
        raise OptionError(f"folds must not exceed the number of people; got {folds} for {n_units}. Use fewer folds.")
    return (torch.randperm(n_units, generator=generator) % folds)[unit]


def _unit_codes(strata: Tensor, units: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """For each stratum its rows, and the person (0, 1, …) of each of them."""
    units = torch.arange(len(strata)) if units is None else units
    every = [(strata == stratum).nonzero()[:, 0] for stratum in torch.unique(strata)]
    return [(rows, torch.unique(units[rows], return_inverse=True)[1]) for rows in every]


def _equal_blocks(strata: Tensor, units: Tensor | None) -> list[Tensor]:
    """`(people, rows each)` row numbers, one array for each stratum and number of rows."""
    found = []
    for rows, unit in _unit_codes(strata, units):
        by_unit = rows[unit.argsort(stable=True)]
        sizes = unit.bincount()
        starts = sizes.cumsum(0) - sizes
        for size in torch.unique(sizes).tolist():
            found.append(by_unit[starts[sizes == size][:, None] + torch.arange(size)])
    return found
