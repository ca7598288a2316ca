"""A job: the smallest part of a benchmark that is measured, kept and left out as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from deconfound_lab.benchmarks.timing import Clock

Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What is compared with one another stands in one job, so that its ratios come from the same minute.

    Attributes:
        section: The table that its rows belong to.
        name: What is measured, for people; unique within the section.
        rows: Measures.
        rehearsals: Pieces of it that processes beside one another can rehearse; none if there is nothing to compile.
        late: Whether it waits for all that are not: it takes long, or could spoil what comes after it.
    """

    section: str
    name: str
    rows: Callable[[Clock], Iterable[Row]]
    rehearsals: tuple[Callable[[Clock], object], ...] = ()
    late: bool = False

    @property
    def key(self) -> str:
        """Its name among all jobs."""
        return f"{self.section}: {self.name}"
