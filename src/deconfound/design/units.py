"""Amounts with text around them, such as `70 kg` or `1,234`, which can only be read as names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from deconfound.design.table import is_missing

# Up to a handful of levels a number with a unit may well be a name, as that of a scanner: 1.5T.
HANDFUL = 5
# So many levels are no handful in any table; in a small one, half as many as there are rows.
MANY = 20
NEARLY_ALL = 0.9
_AMOUNT = re.compile(
    r"(?P<number>[<>≤≥~]?\s*[+−-]?(?:\d{1,3}(?:[.,'’\s]\d{3})+|\d+)(?:[.,]\d+)?)\s*(?P<unit>.*)", re.DOTALL
)
# What follows the first number in dates, times, ranges, ids and names of files.
_NO_UNIT = re.compile(r"[._:-]|\W?\s*\d")


def amount_as_text(cells: Iterable[Any]) -> str | None:
    """One of the cells, where nearly all of them are amounts of many sizes in a handful of units; else None.

    Plain numbers count as amounts, but a column of nothing else needs no example: it can be read as numbers.

    Args:
        cells: Of a column that is read as names.

    Example:
        >>> amount_as_text(f"{kg} kg" for kg in range(50, 90))
        '50 kg'
        >>> amount_as_text(["1.5T", "3T", "7T"] * 30)  # three names of scanners
    """
    counts = {cell: count for cell, count in Counter(cells).items() if not is_missing(cell)}
    units: dict[str, str] = {}
    rows_of: Counter[str] = Counter()
    for cell, count in counts.items():
        text = str(cell).strip()
        if (unit := _unit(text)) is not None:
            units[text] = unit
            rows_of[unit] += count
    usual = dict(rows_of.most_common(HANDFUL))
    rows = sum(counts.values())
    amounts = [text for text, unit in units.items() if unit in usual]
    many = len(amounts) > max(HANDFUL, min(MANY, rows // 2))
    if not many or sum(usual.values()) < NEARLY_ALL * rows:
        return None
    return next((text for text in amounts if not reads_as_number(text)), None)


def reads_as_number(text: Any) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _unit(text: str) -> str | None:
    """What stands behind the number that a text begins with; None where it is no amount."""
    found = _AMOUNT.fullmatch(text)
    return None if found is None or _NO_UNIT.match(found["unit"]) else found["unit"].casefold()
