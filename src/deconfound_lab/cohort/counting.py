"""Table 1 of the paper and of a cohort, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deconfound_lab.cohort.people import GROUPS, TABLE_ONE


@dataclass(frozen=True)
class Line:
    """One site of a Table 1: people by group, women and men, mean and sd of the ages."""

    site: str
    groups: Mapping[str, int]
    women: int
    men: int
    age: float
    age_sd: float


def paper_table_one() -> tuple[Line, ...]:
    """The paper's."""
    return tuple(
        Line(name, dict(zip(GROUPS, site.groups, strict=True)), *site.sexes, *site.age)
        for name, site in TABLE_ONE.items()
    )


def table_one(table: Mapping[str, Any]) -> tuple[Line, ...]:
    """That of a cohort's table, counted from its rows; sites in the paper's order.

    Example:
        >>> from deconfound_lab.cohort.cohort import simulate_cohort
        >>> [line.groups["HAND"] for line in table_one(simulate_cohort(size=16).table)]
        [145, 0, 0]
    """
    sites = np.asarray(table["site"], dtype=object)
    groups, sexes = np.asarray(table["group"], dtype=object), np.asarray(table["sex"], dtype=object)
    ages = np.asarray(table["age"], dtype=np.float64)
    present = sorted(
        set(sites.tolist()), key=lambda name: (list(TABLE_ONE).index(name) if name in TABLE_ONE else 99, name)
    )
    lines = []
    for name in present:
        at = sites == name
        counts = {group: int((groups[at] == group).sum()) for group in GROUPS}
        sd = float(ages[at].std(ddof=1)) if at.sum() > 1 else 0.0
        women, men = int((sexes[at] == "F").sum()), int((sexes[at] == "M").sum())
        lines.append(Line(name, counts, women, men, float(ages[at].mean()), sd))
    return tuple(lines)
