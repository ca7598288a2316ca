"""What columns seem to hold, by names and cells: people with several rows, codes of sites, levels that are one."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from deconfound.auditing.answers import MOST_CODES
from deconfound.auditing.records import Note
from deconfound.data import IDENTIFIERS
from deconfound.design.table import Table, in_rows, is_missing
from deconfound.design.units import amount_as_text, reads_as_number
from deconfound.errors import TableError
from deconfound.metrics.columns import Column, looks_like_codes

# Identifiers that may name several rows of one person.
PEOPLE = tuple(name for name in IDENTIFIERS if name not in ("id", "scan_id", "session_id"))
# Names by which a confound that says where a sample comes from is recognised.
SITES = ("site", "scanner", "center", "centre", "source")
# Fewer different numbers than this may be codes beside other names.
FEWEST_NUMBERS = 11
# With so few texts a column is one of numbers, as for `deconfound init`: what it lets train can be audited.
FEW_TEXTS = 0.1
# With more it may be one.
MANY_TEXTS = 0.5
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


def texts_among_numbers(values: Any, most: float = FEW_TEXTS) -> list[int]:
    """The rows of texts where at most this share of the filled cells is text, among numbers of many values; else none.

    Example:
        >>> texts_among_numbers([*map(str, range(30, 90)), "?"])
        [60]
    """
    cells = np.asarray(values, object).tolist()
    filled = {row: str(cell) for row, cell in enumerate(cells) if not is_missing(cell)}
    texts = [row for row, cell in filled.items() if not reads_as_number(cell)]
    if not texts or len(texts) > most * len(filled):
        return []
    numbers = {float(cell) for cell in filled.values() if reads_as_number(cell)}
    return texts if len(numbers) >= FEWEST_NUMBERS else []


def refuse_texts_among_numbers(columns: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse columns of numbers but for a few texts: as names, each number would be a level of its own."""
    faults = []
    for name in names:
        if rows := texts_among_numbers(columns[name]):
            faults.append(
                f"column {name!r} must be numbers throughout, or names; got {columns[name].tolist()[rows[0]]!r} "
                f"{in_rows(rows)} among numbers. Write a number there or leave the cell empty, or pass "
                f"types={{{name!r}: 'categorical'}} (--type '{name}=categorical') if all of them are names."
            )
    if faults:
        raise TableError(" ".join(faults))


def doubts(
    columns: Mapping[str, Any], types: Mapping[str, str], labels: Sequence[Column], confounds: Sequence[Column]
) -> list[Note]:
    """Labels and confounds without a type of their own that may hold something else than they are read as."""
    items, of_labels = [*labels, *confounds], [item.name for item in labels]
    notes = [
        Note("codes", "warning" if name.lower() in SITES else "note", name,
             f"{name} holds {count} distinct whole numbers and is read as a number; if they are "
             f"codes, pass types={{{name!r}: 'categorical'}} (--type '{name}=categorical').")
        for name in (item.name for item in confounds)
        if name not in types and (count := codes_in(name, columns[name]))
    ]  # fmt: skip
    notes += [
        Note("alike levels", "warning", "" if item.name in of_labels else item.name,
             f"{alike_sentence(item.name, groups)}.")
        for item in items
        if (groups := alike_levels(item.levels))
    ]  # fmt: skip
    notes += [
        Note("codes", "warning", "" if item.name in of_labels else item.name, text)
        for item in items
        if item.levels and item.name not in types and (text := _numbers_or_dates(item, columns[item.name]))
    ]
    return notes


def _numbers_or_dates(item: Column, values: Any) -> str:
    """What speaks against reading a column as names; "" where nothing does."""
    each = f"each of its {len(item.levels):,} values is a level of its own"
    names = f"pass types={{{item.name!r}: 'categorical'}} (--type '{item.name}=categorical') if they are names"
    if len(item.levels) > MOST_CODES and all(map(reads_as_number, item.levels)):
        return (
            f"{item.name} holds {len(item.levels):,} different numbers as text, each a level of its own; turn them "
            f"into numbers, or pass types={{{item.name!r}: 'numeric'}} (--type '{item.name}=numeric')."
        )
    if amount := amount_as_text(values.tolist()):
        said = f"{item.name} holds numbers with other text, such as {amount!r}, and {each}"
        return f"{said}; write plain numbers, or {names}."
    if len(item.levels) > 2 and holds_dates(values):
        return (
            f"{item.name} holds dates as text, and {each}, so that nearness in time is not seen; write a number "
            f"instead, such as days or years, or {names}."
        )
    if rows := texts_among_numbers(values, MANY_TEXTS):
        said = f"{item.name} holds texts among numbers, such as {values.tolist()[rows[0]]!r} {in_rows(rows[:1])}"
        return f"{said}, and {each}; write numbers or leave these cells empty, or {names}."
    return ""


def person_doubts(table: Table) -> list[Note]:
    """A warning where the rows seem to be those of fewer people, though none were named."""
    name = repeated_people(table)
    if name is None:
        return []
    cells = np.asarray(table[name]).tolist()
    text = (
        f"{name} names {len(set(cells)):,} people in {len(cells):,} rows, which are taken as independent: p-values "
        f"come out too small and intervals too narrow. Pass person={name!r} (--person '{name}')."
    )
    return [Note("repeated people", "warning", "", text)]
