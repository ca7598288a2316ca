"""Notes: one finding about a table, typed for code and worded for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from deconfound.errors import TableError

# The first line comes from reading a table, the second from the seven checks of `check_table`, and
# the last from a design that meets a level without training rows.
NoteKind = Literal[
    "source", "column", "length", "cell", "text", "infinite", "date", "code", "missing",
    "id", "copy", "stratum", "person", "constant", "determined",
    "unseen",
]  # fmt: skip


@dataclass(frozen=True)
class Note:
    """One finding about a table: what is wrong, where, and what to write instead.

    Attributes:
        kind: The type of the finding, for code that sorts notes.
        column: The column, or an empty text if the whole table is meant.
        text: A sentence with what is wrong and what was given.
        fix: A sentence with what to write instead, in Python.
        rows: The rows concerned, counted from 0. Empty if the note concerns every row.
        is_error: False if the table can be used, but its reader should know this.

    Example:
        >>> print(Note("text", "age", "Column 'age' has 'old' in row 3.", "Write a number."))
        Column 'age' has 'old' in row 3. Write a number.
    """

    kind: NoteKind
    column: str
    text: str
    fix: str
    rows: tuple[int, ...] = ()
    is_error: bool = True

    def __str__(self) -> str:
        return f"{self.text} {self.fix}"


def notes_of(error: TableError) -> list[Note]:
    """Return the notes that an error carries, to be joined with those of other columns."""
    return [fault for fault in error.faults if isinstance(fault, Note)]


def format_rows(rows: Sequence[int], limit: int = 5) -> str:
    """Return "row 3 (counted from 0)", or the first `limit` of several rows."""
    if len(rows) == 1:
        return f"row {rows[0]} (counted from 0)"
    listed = ", ".join(str(row) for row in rows[:limit])
    rest = f" and {len(rows) - limit} more" if len(rows) > limit else ""
    return f"rows {listed}{rest} (counted from 0)"


def format_list(phrases: Sequence[str], limit: int = 5) -> str:
    """Return phrases separated by commas, of a long list the first `limit`."""
    return ", ".join(phrases[:limit]) + (", …" if len(phrases) > limit else "")


def format_names(names: Iterable[str]) -> str:
    """Return names in quotation marks, of a long list the first five."""
    return format_list([repr(name) for name in names])
