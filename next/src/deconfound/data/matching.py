"""Which row of the table belongs to which sample."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deconfound.errors import OptionError, ShapeError, TableError
from deconfound.table import Table, format_names, format_rows, read_columns, to_levels


@dataclass(frozen=True)
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
    ids: list[str]
    notes: tuple[str, ...] = ()

    def take(self, rows: Sequence[int]) -> Pairs:
        """Return some of the pairs."""
        table = self.table.iloc[list(rows)].reset_index(drop=True)
        return Pairs(self.samples[rows], table, [self.ids[row] for row in rows], self.notes)


@dataclass(frozen=True)
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
        ids = numbers if self.id is None else read_ids(table, self.id)
        if self.table is None:
            return Pairs(np.arange(len(table)), table, ids)
        twice = [str(name) for name in columns if name in table and name != self.id]
        if twice:
            fix = "Leave them out of one of the two, or write the column that joins both: id='…'."
            raise TableError(f"Source and table both have the columns {format_names(twice)}. {fix}")
        if self.id is not None and self.id in columns:
            names = read_ids(columns, self.id)
            places = {name: [place] for place, name in enumerate(names)}
            pairs = pair(table, ids, places, names, "sample", skip_bad=self.skip_bad)
            others = columns.drop(columns=self.id).iloc[pairs.samples].reset_index(drop=True)
            return replace(pairs, table=pd.concat([pairs.table, others], axis=1))
        if len(table) != len(columns):
            raise ShapeError(
                f"There are {len(columns):,} samples and {len(table):,} rows of the table. Pass "
                "one row per sample, or write the column of ids that both have: id='…'."
            )
        return Pairs(np.arange(len(table)), pd.concat([columns, table], axis=1), ids)

    def pair_files(self, names: Sequence[str], folder: Path) -> Pairs:
        """Pair the files of a folder with the rows that name them; without a table take all."""
        if self.table is None:
            return Pairs(np.arange(len(names)), pd.DataFrame(index=range(len(names))), [*names])
        if self.id is None:
            columns = ", ".join(repr(name) for name in self.table)
            raise OptionError(f"Which column names the files? Write id= with one of {columns}.")
        ids, index = read_ids(self.table, self.id), index_files(names, folder)
        paths = {text: text.replace("\\", "/").removeprefix("./") for text in ids}
        places = {text: index[path] for text, path in paths.items() if path in index}
        return pair(self.table, ids, places, names, "file", skip_bad=self.skip_bad)


def read_frame(source: Table) -> pd.DataFrame:
    """Return all raw columns of a table, with rows numbered from 0."""
    columns = read_columns(source)
    return pd.DataFrame({name: values.reset_index(drop=True) for name, values in columns.items()})


def read_ids(table: pd.DataFrame, name: str, *, is_unique: bool = True) -> list[str]:
    """Return the ids of the rows as texts, or raise an error if one is missing or repeated."""
    ids = pd.Series(to_levels(read_columns(table, [name])[name]), dtype=object)
    faults = []
    if ids.isna().any():
        rows = np.flatnonzero(ids.isna()).tolist()
        faults.append(f"Column {name!r} is empty in {format_rows(rows)}. Give each row an id.")
    repeated = ids[ids.duplicated() & ids.notna()].unique()
    if is_unique and len(repeated):
        faults.append(
            f"Column {name!r} has {len(repeated):,} ids in more than one row: "
            f"{list_names(repeated.tolist())}. Name a column that differs in each row."
        )
    if faults:
        raise TableError(*faults)
    return ids.tolist()


def index_files(names: Sequence[str], folder: Path) -> dict[str, list[int]]:
    """Return the places of the files that a text may mean.

    A text is a file name or the end of its path, with or without ending. A text that is the path of
    one file within the folder means no other.

    Example:
        >>> index_files(["a/007.nii.gz", "b/007.nii.gz"], Path("study"))["007"]
        [0, 1]
    """
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        parts = f"{folder.absolute().as_posix()}/{name}".split("/")
        for start in range(len(parts)):
            # The path from the root starts with "/".
            end = "/".join(parts[start:])
            for text in {end, without_ending(end)}:
                places.setdefault(text, []).append(place)
    return places | {name: [place] for place, name in enumerate(names)}


def without_ending(name: str) -> str:
    """Return "scan" for "scan.nii.gz"."""
    return re.sub(r"(\.nii)?\.\w+$", "", name)


def pair(
    table: pd.DataFrame,
    ids: Sequence[str],
    places: Mapping[str, Sequence[int]],
    names: Sequence[str],
    what: str,
    *,
    skip_bad: bool,
    is_many: bool = False,
) -> Pairs:
    """Pair rows with samples, in the order of the rows.

    Args:
        table: The table.
        ids: The id of each row.
        places: The samples that an id means.
        names: The names of all samples, for messages.
        what: What a sample is called.
        skip_bad: Whether rows without a sample are left out. Samples without a row always are.
        is_many: Whether a row may have several samples.

    Raises:
        TableError: A row has no sample or several, or a sample has several rows.
    """
    rows = [row for row, text in enumerate(ids) for _ in places.get(text, ())]
    samples = [place for text in ids for place in places.get(text, ())]
    several = [text for text in ids if len(places.get(text, ())) > 1 and not is_many]
    faults, notes = [], []
    if several:
        listed = format_names(names[place] for place in places[several[0]])
        faults.append(f"Ids mean several {what}s: {list_names(several)}, the first {listed}.")
    elif len(set(samples)) < len(samples):
        twice = [names[place] for place in set(samples) if samples.count(place) > 1]
        faults.append(f"Several rows name one {what}: {list_names(twice)}.")
    partners = set(samples)
    lone_samples = [name for place, name in enumerate(names) if place not in partners]
    lone_rows = [text for text in ids if text not in places]
    if lone_samples:
        notes.append(f"{len(lone_samples):,} {what}s have no row: {list_names(lone_samples)}.")
    if lone_rows:
        text = f"{len(lone_rows):,} rows have no {what}: {list_names(lone_rows)}."
        is_fault = not skip_bad or not samples
        (faults if is_fault else notes).append(text)
    if faults:
        advice = "Correct the ids" + (", or leave rows out: skip_bad=True." if samples else ".")
        raise TableError(*faults, *notes, advice)
    notes = [f"{note} They are left out." for note in notes]
    pairs = Pairs(np.arange(len(ids)), table, list(ids), tuple(notes)).take(rows)
    return replace(pairs, samples=np.array(samples, np.intp))


def list_names(names: Sequence[str], limit: int = 10) -> str:
    """Return names in quotation marks, of a long list the first and the number of the others."""
    rest = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(map(repr, names[:limit])) + rest
