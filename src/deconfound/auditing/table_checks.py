"""What columns seem to hold, by names and cells: people with several rows, codes of sites, levels that are one."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from deconfound.data import IDENTIFIERS
from deconfound.design.table import Table, is_missing
from deconfound.metrics.columns import looks_like_codes

# Identifiers that may name several rows of one person.
PEOPLE = tuple(name for name in IDENTIFIERS if name not in ("id", "scan_id", "session_id"))
# Names by which a confound that says where a sample comes from is recognised.
SITES = ("site", "scanner", "center", "centre", "source")
_DATE = re.compile(r"\d{4}([-./])\d{1,2}\1\d{1,2}([T ].*)?|\d{1,2}([-./])\d{1,2}\3(\d{4}|\d{2})([T ].*)?")


def repeated_people(table: Table) -> str | None:
    """A column that is called like a person's name and holds values more than once."""
    for name in table.keys():  # noqa: SIM118 - a DataFrame need not iterate over names
        if str(name).lower() in PEOPLE:
            cells = np.asarray(table[name]).tolist()
            if len(set(cells)) < len(cells) and not any(map(is_missing, cells)):
                return str(name)
    return None


def codes_in(name: str, values: Any) -> int:
    """How many distinct whole numbers a column holds that may be codes; 0 where they are amounts, or no numbers.

    Few of them may be codes in any column; in one that is called like a site, however many.
    """
    return looks_like_codes(values, len(values)) if name.lower() in SITES else looks_like_codes(values)


def alike_levels(levels: Iterable[str]) -> list[tuple[str, ...]]:
    """Levels that differ in nothing but capitals and spaces, in groups."""
    groups: dict[str, list[str]] = {}
    for level in sorted(set(levels)):
        groups.setdefault(" ".join(level.casefold().split()), []).append(level)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def alike_sentence(name: str, groups: Sequence[Sequence[str]]) -> str:
    """What to do about levels that seem to be one."""
    shown = "; ".join(", ".join(map(repr, group)) for group in groups[:4]) + ("; …" if len(groups) > 4 else "")
    return (
        f"{name} has levels that differ in capitals or spaces alone, and count as different: {shown}. Write them alike"
    )


def holds_dates(values: Any) -> bool:
    """Whether every cell that is not empty is a date written as text."""
    cells = [value for value in np.asarray(values).tolist() if not is_missing(value)]
    return bool(cells) and all(isinstance(value, str) and _DATE.fullmatch(value.strip()) for value in cells)
