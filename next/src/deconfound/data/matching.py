"""Which row of the table belongs to which sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deconfound.errors import ShapeError, TableError
from deconfound.table import Table, format_names, format_rows, read_columns, to_levels


@dataclass(frozen=True, eq=False)
class Pairs:
    """Samples of a source and rows of a table that belong together.

    Attributes:
        samples: The places of the samples in the source.
        table: Their rows, numbered from 0.
        ids: The id of each.
        notes: Sentences about samples and rows without a partner.
    """

    samples: NDArray[np.intp]
    table: pd.DataFrame
    ids: NDArray[np.object_]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Matching:
    """How samples of a source are matched with the rows of a table.

    Attributes:
        table: The table; None if the source has all columns.
        id: The column of ids.
        skip_bad: Whether rows of the table without a sample are left out.
    """

    table: pd.DataFrame | None
    id: str | None
    skip_bad: bool

    def pair_rows(self, columns: pd.DataFrame) -> Pairs:
        """Pair by id if the source and the table have it, else by position.

        Args:
            columns: The columns of the source, one row per sample; there may be none.

        Raises:
            TableError: A column is in both, or a row has no sample.
            ShapeError: There is no id, and the numbers of rows differ.
        """
        table = columns if self.table is None else self.table
        numbers = [str(row) for row in range(len(table))]
        ids = names = numbers if self.id is None else read_ids(table, self.id)
        if self.table is None:
            return Pairs(np.arange(len(ids)), table, np.array(ids, dtype=object))
        others = columns[[name for name in columns if name != self.id]]
        twice = [str(name) for name in others if name in table]
        if twice:
            fix = "Leave them out of one of the two, or write the column that joins both: id='…'."
            raise TableError(f"Source and table both have the columns {format_names(twice)}. {fix}")
        if self.id is not None and self.id in columns:
            names = read_ids(columns, self.id)
        elif len(table) != len(columns):
            raise ShapeError(
                f"There are {len(columns):,} samples and {len(table):,} rows of the table. Pass "
                "one row per sample, or write the column of ids that both have: id='…'."
            )
        places = {name: [place] for place, name in enumerate(names)}
        pairs = pair(table, ids, places, names, "sample", self.skip_bad)
        others = others.iloc[pairs.samples].reset_index(drop=True)
        return replace(pairs, table=pd.concat([pairs.table, others], axis=1))


def read_frame(source: Table) -> pd.DataFrame:
    """Return all raw columns of a table, with rows numbered from 0."""
    return pd.DataFrame(read_columns(source)).reset_index(drop=True)


def read_ids(table: pd.DataFrame, name: str, *, is_unique: bool = True) -> list[str]:
    """Return the ids of the rows as texts, or raise an error if one is missing or repeated."""
    ids = pd.Series(to_levels(read_columns(table, [name])[name]), dtype=object)
    faults = []
    if ids.isna().any():
        rows = np.flatnonzero(ids.isna()).tolist()
        faults.append(f"Column {name!r} is empty in {format_rows(rows)}. Give each row an id.")
    repeated = ids[ids.duplicated()].dropna().unique()
    if is_unique and len(repeated):
        faults.append(
            f"Column {name!r} has {len(repeated):,} ids in more than one row: "
            f"{format_names(repeated)}. Name a column that differs in each row."
        )
    if faults:
        raise TableError(*faults)
    return ids.tolist()


def pair(
    table: pd.DataFrame,
    ids: Sequence[str],
    places: Mapping[Any, Any],
    names: Sequence[str],
    what: str,
    skip_bad: bool,
) -> Pairs:
    """Pair rows with samples, in the order of the rows; a row may have several samples.

    Args:
        table: The table.
        ids: The id of each row.
        places: The places of the samples that an id means; other ids have none.
        names: The names of all samples, for messages.
        what: What a sample is called.
        skip_bad: Whether rows without a sample are left out. Samples without a row always are.

    Raises:
        TableError: A row has no sample.
    """
    rows = [row for row, text in enumerate(ids) for _ in places.get(text, ())]
    samples = [place for text in ids for place in places.get(text, ())]
    lone_samples = [names[place] for place in sorted({*range(len(names))} - {*samples})]
    lone_rows = [text for text in ids if text not in places]
    notes = []
    if lone_samples:
        notes.append(f"{len(lone_samples):,} {what}s have no row: {format_names(lone_samples)}.")
    if lone_rows:
        notes.append(f"{len(lone_rows):,} rows have no {what}: {format_names(lone_rows)}.")
    if lone_rows and not (skip_bad and samples):
        advice = "Correct the ids" + (", or leave rows out: skip_bad=True." if samples else ".")
        raise TableError(*notes, advice)
    notes = [f"{note} They are left out." for note in notes]
    kept = table.iloc[rows].reset_index(drop=True)
    return Pairs(np.array(samples, np.intp), kept, np.array(ids, object)[rows], tuple(notes))
