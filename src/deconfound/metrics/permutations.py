"""Permuted tables in which a confound is independent of the outputs, given what it may depend on.

Under the null hypothesis every permuted table must be as likely as the observed one. So rows are exchanged
within a stratum (a label group, a test fold), and the rows of a person are never torn apart:

- where a confound is the same in all rows of a person, people exchange it, whatever their numbers of rows;
- where it varies within a person (visits, travelling subjects), it is shuffled within the person, and people
  with the same numbers of rows in every stratum exchange all of it.

People are exchanged once for all strata, with people who have rows in the same strata.
"""

import torch
from torch import Tensor


def permuted_rows(
    strata: Tensor, units: Tensor | None, count: int, generator: torch.Generator, values: Tensor | None = None
) -> Tensor:
    """`(count, n)` row numbers: row i of a permuted table takes the value of row `out[k, i]`.

    Args:
        strata: `(n,)` codes; rows are exchanged within a stratum only.
        units: `(n,)` person of each row; None when every row is a person of its own.
        count: how many permutations.
        generator: source of randomness.
        values: `(n,)` or `(n, q)` what is permuted, which says whether it varies within a person; needed with units.
    """
    if units is None or len(torch.unique(units)) == len(units):
        return shuffled_within(strata, count, generator)
    assert values is not None, "what is permuted decides how people are permuted"
    unit = torch.unique(units, return_inverse=True)[1]
    people = int(unit.max()) + 1
    held = torch.unique(strata, return_inverse=True)[1]
    rows_in = torch.zeros(people, int(held.max()) + 1, dtype=torch.long)
    rows_in.index_put_((unit, held), torch.ones_like(unit), accumulate=True)
    varies = varies_within(unit, values)
    # One code for people who may be exchanged: those without variation by the strata they are in, the others by
    # how many rows they have in each.
    alike = torch.where(varies[:, None], rows_in + 1, -(rows_in > 0).long())
    exchanged = shuffled_within(torch.unique(alike, dim=0, return_inverse=True)[1], count, generator)
    by_person = _order_by(unit, held)
    starts = rows_in.sum(1).cumsum(0) - rows_in.sum(1)
    place = torch.empty(len(unit), dtype=torch.long)
    place[by_person] = torch.arange(len(unit)) - starts[unit[by_person]]
    place = torch.where(varies[unit], place, 0)
    out = by_person[starts[exchanged[:, unit]] + place]
    # A person without variation may be shuffled within: nothing changes.
    inner = shuffled_within(unit * (int(held.max()) + 1) + held, count, generator)
    return torch.where(varies[unit], out.gather(1, inner), out)


def shuffled_within(groups: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`(count, n)` random orders that keep every row within its group `(n,)`."""
    codes = torch.unique(groups, return_inverse=True)[1]
    by_group = codes.argsort(stable=True)
    keys = codes[by_group].double() + torch.rand(count, len(codes), generator=generator, dtype=torch.float64)
    out = torch.empty(count, len(codes), dtype=torch.long)
    out[:, by_group] = by_group[keys.argsort(1)]
    return out


def movable(values: Tensor, orders: Tensor) -> int:
    """How many rows get another value in at least one of these orders: with none there is no test."""
    codes = torch.unique(values, dim=0, return_inverse=True)[1]
    changed = torch.zeros(len(codes), dtype=torch.bool)
    for order in orders:
        changed |= codes[order] != codes
    return int(changed.sum())


def local_groups(label: Tensor, size: int) -> Tensor:
    """`(n,)` codes of neighbourhoods of about `size` rows that are next to each other in a numeric label."""
    groups = max(1, len(label) // size)
    rank = torch.empty(len(label), dtype=torch.long)
    rank[label.argsort(stable=True)] = torch.arange(len(label))
    return rank * groups // len(label)


def varies_within(groups: Tensor, values: Tensor) -> Tensor:
    """`(groups,)` whether the rows of a group, coded from 0 on, have more than one value."""
    codes, count = torch.unique(values, dim=0, return_inverse=True)[1], int(groups.max()) + 1
    low = torch.full((count,), len(codes)).scatter_reduce(0, groups, codes, "amin")
    high = torch.full((count,), -1).scatter_reduce(0, groups, codes, "amax")
    return low != high


def _order_by(first: Tensor, second: Tensor) -> Tensor:
    """Row numbers sorted by the first code, then by the second."""
    return (first * (int(second.max()) + 1) + second).argsort(stable=True)
