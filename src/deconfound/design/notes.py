"""What a design has to say about its table, as records with a sentence each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from deconfound.design.table import in_rows, without_point

NoteKind = Literal[
    "codes",
    "text numbers",
    "amounts as text",
    "constant",
    "redundant",
    "shared",
    "explained",
    "inseparable",
    "overlap",
    "small level",
]


@dataclass(frozen=True)
class DesignNote:
    """Something that a reader of results should know about the columns of a design.

    Attributes:
        kind: Of a fit: "codes" (whole numbers that may be names), "text numbers", "amounts as text" (70 kg), and the
            reasons why a column takes no part: "constant", "redundant" (determined by the columns before it), "shared"
            (keep has its effect). Of a diagnosis: "explained" (how much of a label the confounds explain),
            "inseparable", "overlap", "small level".
        columns: The columns or terms that it is about.
        text: The sentence.
        level: The level that has few rows.
        rows: How many it has.
    """

    kind: NoteKind
    columns: tuple[str, ...]
    text: str
    level: str | None = None
    rows: int | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Assumed:
    """One value of one confound that a fitted design does not know, and takes the mean of its training rows for.

    Attributes:
        column: The confound.
        value: The level that was not in the training rows; None for empty cells.
        rows: Where it is.
    """

    column: str
    value: Any
    rows: tuple[int, ...]

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.column} is empty {in_rows(self.rows)}"
        return f"{self.column} {without_point(self.value)!r}, {in_rows(self.rows)}, was not in the training rows"
