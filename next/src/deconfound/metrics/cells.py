"""Sums within cells of rows that lie together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from deconfound.metrics.arrays import Array, Codes


@dataclass(frozen=True)
class Cells:
    """Consecutive rows that form cells: cell 0 first, then cell 1, and so on.

    Attributes:
        codes: Codes 0, 1, … of the cell of each row, shape `(n,)`, ascending.
    """

    codes: Codes

    @cached_property
    def starts(self) -> Codes:
        """The first row of each cell, shape `(cells,)`."""
        return np.flatnonzero(np.diff(self.codes, prepend=-1))

    @cached_property
    def slices(self) -> list[slice]:
        """Where the rows of each cell lie."""
        return [slice(*ends) for ends in pairwise([*self.starts, len(self.codes)])]

    def sums(self, values: Array) -> Array:
        """Return the sum of `values (n, …)` in each cell, shape `(cells, …)`."""
        return np.asarray(np.add.reduceat(values, self.starts, axis=0))

    def weighted_sums(self, values: Array, weight: Array) -> Array:
        """Return the sum of `weight (n,)` times `values (n, m)` in each cell, shape `(cells, m)`.

        Unlike `sums(weight[:, None] * values)`, it needs no room for the product.
        """
        return np.stack([weight[part] @ values[part] for part in self.slices])

    def centre(self, values: Array, weight: Array) -> Array:
        """Return `values (n, …)` minus the weighted mean of their cell.

        Args:
            values: Shape `(n, …)`.
            weight: A shape that `values` broadcasts with. Cells of weight 0 stay as they are.
        """
        total = self.sums(weight)
        means = self.sums(weight * values) / np.where(total > 0, total, 1.0)
        return np.asarray(values - means[self.codes])
