"""Ranks of numbers, in which each person counts once."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from deconfound.metrics.arrays import Array


def rank_shares(values: Array, votes: Array) -> Array:
    """Return the share of people below each number, shape `(n,)`; half of the equal ones count.

    Args:
        values: Numbers, shape `(n,)`. Equal numbers get equal shares.
        votes: u, shape `(n,)`, which sums to the number of people.
    """
    levels, codes = np.unique(values, return_inverse=True)
    people = np.bincount(codes, votes, minlength=len(levels))
    below = np.cumsum(people) - people / 2
    total = votes.sum()
    return np.asarray(np.clip(below[codes] / total, 0.5 / total, 1 - 0.5 / total))


def normal_scores(values: Array, votes: Array) -> Array:
    """Return the normal quantiles of the rank shares of each column, shape `(n, d)`."""
    columns = [ndtri(rank_shares(column, votes)) for column in values.T]
    return np.stack(columns, axis=1)
