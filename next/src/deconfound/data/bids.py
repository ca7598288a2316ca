"""Folders of scans in the BIDS layout: one row per scan, from the tables of people and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from deconfound.data.matching import Pairs, pair, read_frame, read_ids
from deconfound.errors import TableError

PERSON, SESSION = "participant_id", "session_id"
PREFIXES = {PERSON: "sub-", SESSION: "ses-"}
# The end of a path: …/sub-007_ses-1_T1w.nii.gz.
SCAN_NAME = rf"(?:^|[/_])(?P<{PERSON}>sub-[^/_.]+)(?:_(?P<{SESSION}>ses-[^/_.]+))?[^/]*$"


def pair_scans(
    names: Sequence[str], folder: Path, table: pd.DataFrame | None, skip_bad: bool
) -> Pairs:
    """Return the row of each scan: that of its person, and of its session where there is one.

    A row has the columns of participants.tsv (or of `table`) and of sub-…_sessions.tsv, whose
    filled cells come first. The id of a scan is its file name without ending.

    Args:
        names: The paths of the scans in the folder, which end in sub-…_ses-…_….
        folder: The folder of the data set.
        table: One row per person, or one per session if it has a column `session_id`.
        skip_bad: Whether rows without a scan are left out.

    Raises:
        TableError: Columns, ids or scans are missing or repeated.
    """
    people = read_frame(folder / "participants.tsv" if table is None else table)
    keys = [PERSON, SESSION] if SESSION in people else [PERSON]
    for name in keys:
        people[name] = _read_entity(people, name, is_unique=False)
    ids = people[keys].agg(" ".join, axis=1)
    if ids.duplicated().any():
        fix = f"Keep one row per person, or add a column {SESSION!r}."
        raise TableError(f"Several rows of the table are about one {' and '.join(keys)}. {fix}")
    scans = pd.Series(names).str.extract(SCAN_NAME).fillna("")
    keys_of_scans = scans[keys].agg(" ".join, axis=1)
    places = keys_of_scans.groupby(keys_of_scans).indices
    pairs = pair(people, ids.tolist(), places, names, "scan", skip_bad)
    scans = scans.iloc[pairs.samples].reset_index(drop=True)
    rows = pairs.table if (scans[SESSION] == "").all() else pairs.table.assign(**scans)
    scan_names = [Path(names[place]).name.split(".")[0] for place in pairs.samples]
    table = _add_sessions(rows, scans, folder)
    return replace(pairs, table=table, ids=np.array(scan_names, dtype=object))


def _add_sessions(table: pd.DataFrame, scans: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Return the rows with the filled cells of sub-…_sessions.tsv."""
    frames = []
    for person in scans[PERSON].unique():
        path = folder / person / f"{person}_sessions.tsv"
        if path.is_file():
            frame = read_frame(path)
            frame[SESSION] = _read_entity(frame, SESSION)
            frames.append(frame.assign(**{PERSON: person}))
    if not frames:
        return table
    cells = scans.merge(pd.concat(frames), on=[PERSON, SESSION], how="left")
    filled = cells.astype(object).replace(r"^\s*(n/a)?\s*$", np.nan, regex=True)
    return filled.combine_first(table)[list(dict.fromkeys([*table, *cells]))]


def _read_entity(table: pd.DataFrame, name: str, *, is_unique: bool = True) -> list[str]:
    """Return the people or sessions of a table: "sub-007" for "007" as well, which BIDS allows."""
    prefix = PREFIXES[name]
    ids = read_ids(table, name, is_unique=is_unique)
    return [prefix + text.removeprefix(prefix) for text in ids]
