"""Folders of scans in the BIDS layout: one row per scan, from the tables of people and sessions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from deconfound.data.matching import Pairs, pair, read_frame, read_ids, without_ending
from deconfound.errors import TableError
from deconfound.table import is_missing

PERSON, SESSION = "participant_id", "session_id"
_PREFIXES = {PERSON: "sub-", SESSION: "ses-"}


def pair_scans(
    names: Sequence[str], folder: Path, table: pd.DataFrame | None, skip_bad: bool
) -> Pairs:
    """Return the row of each scan: that of its person, and of its session where there is one.

    A row has the columns of participants.tsv (or of `table`) and of sub-…_sessions.tsv, whose
    filled cells come first.

    Args:
        names: The paths of the scans in the folder, which end in sub-…_ses-…_….
        folder: The folder of the data set.
        table: One row per person, or one per session if it has a column `session_id`.
        skip_bad: Whether rows without a scan are left out.

    Raises:
        TableError: Columns, ids or scans are missing or repeated.
    """
    people = read_frame(folder / "participants.tsv") if table is None else table.copy()
    keys = [name for name in (PERSON, SESSION) if name == PERSON or name in people]
    for name in keys:
        people[name] = _add_prefix(read_ids(people, name, is_unique=False), name)
    ids = people[keys].agg(" ".join, axis=1).tolist()
    if len(set(ids)) < len(ids):
        fix = f"Keep one row per person, or add a column {SESSION!r}."
        raise TableError(f"Several rows of the table are about one {' and '.join(keys)}. {fix}")
    people_of_scans = [_find_entity(text, PERSON) for text in names]
    sessions = [_find_entity(text, SESSION) for text in names]
    scans = pd.DataFrame({PERSON: people_of_scans, SESSION: sessions})
    places: dict[str, list[int]] = {}
    for place, text in enumerate(scans[keys].agg(" ".join, axis=1)):
        places.setdefault(text, []).append(place)
    pairs = pair(people, ids, places, names, "scan", skip_bad=skip_bad, is_many=True)
    scans = scans.iloc[pairs.samples].reset_index(drop=True)
    table = pairs.table.assign(**{SESSION: scans[SESSION]} if scans[SESSION].any() else {})
    scan_ids = [without_ending(Path(names[place]).name) for place in pairs.samples]
    return replace(pairs, table=_add_sessions(table, scans, folder), ids=scan_ids)


def _add_sessions(table: pd.DataFrame, scans: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Return the rows with the filled cells of sub-…_sessions.tsv."""
    frames = []
    for person in scans[PERSON].unique():
        path = folder / person / f"{person}_sessions.tsv"
        if path.is_file():
            frame = read_frame(path)
            frame[SESSION] = _add_prefix(read_ids(frame, SESSION), SESSION)
            frames.append(frame.assign(**{PERSON: person}))
    if not frames:
        return table
    cells = pd.concat(frames).set_index([PERSON, SESSION])
    cells = cells.reindex(pd.MultiIndex.from_frame(scans[[PERSON, SESSION]]))
    for name, values in cells.items():
        is_filled = np.array([not is_missing(cell) and cell != "n/a" for cell in values])
        before = table[name] if name in table else pd.Series(None, table.index, dtype=object)
        table[name] = before.astype(object).where(~is_filled, values.to_numpy(dtype=object))
    return table


def _add_prefix(ids: Sequence[str], name: str) -> list[str]:
    """Return "sub-007" for the person "007" as well, which BIDS leaves open."""
    return [_PREFIXES[name] + text.removeprefix(_PREFIXES[name]) for text in ids]


def _find_entity(path: str, name: str) -> str:
    """Return "sub-007", which stands in the name of a scan, or an empty text."""
    match = re.search(rf"(?:^|[/_])({_PREFIXES[name]}[^/_.]+)[^/]*$", path)
    return match[1] if match else ""
