"""Orders of rows in which a confound is independent of the outputs, given cells of rows.

If outputs and confound are independent within cells, every order must be as likely as the table
itself. Rows therefore stay within their cell, and the rows of a person stay together:

- Where a confound is constant within each person, people exchange it with all people who have rows
  in the same cells, whatever their numbers of rows.
- Where it varies within people (visits, travelling subjects), it is shuffled within each person and
  cell, and people with equally many rows in each cell exchange all of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.metrics.arrays import Codes, group_people

Orders = NDArray[np.intp]


def draw_orders(
    person: Codes, cell: Codes, values: Codes, draws: int, random: np.random.Generator
) -> Orders:
    """Return random orders, shape `(draws, n)`: row i takes the value of row `orders[k, i]`.

    Args:
        person: Codes 0, 1, … of the person of each row, shape `(n,)`.
        cell: Codes of the cell of each row, shape `(n,)`.
        values: Codes of what is exchanged, shape `(n,)`. They decide whether it varies within
            people.
        draws: Number of orders.
        random: Source of random numbers.
    """
    varies = varies_within(person, values)
    partners = shuffle_within(group_people(person, cell, count_rows=varies), draws, random)
    # Rows of one person and cell lie together in `sorted_rows`, from position `start` on.
    part = person * (cell.max() + 1) + cell
    sorted_rows = np.argsort(part, kind="stable")
    sorted_parts = part[sorted_rows]
    start = np.searchsorted(sorted_parts, part)
    partner_part = partners[:, person] * (cell.max() + 1) + cell
    partner_start = np.searchsorted(sorted_parts, partner_part)
    if not varies:
        return np.asarray(sorted_rows[partner_start])
    position = np.empty_like(start)
    position[sorted_rows] = np.arange(len(part))
    orders = sorted_rows[partner_start + (position - start)]
    return np.take_along_axis(orders, shuffle_within(part, draws, random), axis=1)


def shuffle_within(groups: Codes, draws: int, random: np.random.Generator) -> Orders:
    """Return random orders, shape `(draws, n)`, that keep every item within its group `(n,)`."""
    by_group = np.argsort(groups, kind="stable")
    keys = groups[by_group] + random.random((draws, len(groups)))
    orders = np.empty((draws, len(groups)), dtype=np.intp)
    orders[:, by_group] = by_group[np.argsort(keys, axis=1)]
    return orders


def varies_within(person: Codes, values: Codes) -> bool:
    """Return whether any person has rows with different values."""
    pairs = np.unique(np.column_stack([person, values]), axis=0)
    return len(pairs) > len(np.unique(person))


def changed_rows(values: NDArray[Any], orders: Orders) -> NDArray[np.bool_]:
    """Return which rows get another value in at least one order, shape `(n,)`."""
    return np.asarray((values[orders] != values).any(axis=0))
