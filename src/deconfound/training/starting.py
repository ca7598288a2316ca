"""A first config for a table, and what is worth knowing about it before training."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deconfound.data.delimited import EMPTY_AMONG_NUMBERS
from deconfound.data.sources import IDENTIFIERS, Source
from deconfound.design import Design
from deconfound.design.table import absent, is_missing
from deconfound.errors import DeconfoundError, DeconfoundWarning, TableError
from deconfound.training.checking import SITES, number_faults, slip
from deconfound.training.config import Data
from deconfound.training.sources import open_source, reads_scans
from deconfound.training.tasks import Task, read_task
from deconfound.training.template import FOLDS, Known, config_text
from deconfound.training.terms import columns_of, read_terms

# Identifiers that may name several rows of one person.
PEOPLE = tuple(name for name in IDENTIFIERS if name not in ("id", "scan_id", "session_id"))
FEW_ROWS = 10


@dataclass(frozen=True)
class Start:
    """A config to start from.

    Attributes:
        text: YAML with comments.
        noticed: Sentences about the data.
    """

    text: str
    noticed: tuple[str, ...]


def start_from(
    table: str | Path,
    labels: Sequence[str],
    confounds: Sequence[str],
    source: str | Path | None = None,
    person: str | None = None,
    id: str | None = None,
    folder: str = "runs/run",
    *,
    skip_bad: bool = False,
) -> Start:
    """Look at a table and write the config of a first run.

    Args:
        table: The table with labels and confounds, and with the features unless `source` has them.
        labels: Columns to predict.
        confounds: Columns or terms to remove.
        source: Features, an array, or a folder of scans.
        person: The column that names the person of a row.
        id: The column that joins `source` and `table`.
        folder: Where the run will lie.
        skip_bad: Leave out scans that cannot be read or have no row of the table, and warn.
    """
    terms, faults = read_terms(confounds, "--confounds")
    columns = columns_of(terms)
    data = Data(str(source or table), tuple(labels), str(table) if source else None, id)
    if skip_bad and reads_scans(data):
        data = replace(data, options={"skip_bad": True})
    opened = open_source(data, [*labels, *columns, *([person] if person else [])])
    available = list(opened.table)
    faults += absent(list(labels), available, "--label") + absent(columns, available, "--confounds")
    faults += absent([person] if person else [], available, "--person") + absent([id] if id else [], available, "--id")
    faults += [] if confounds else ["--confounds must name at least one column; got none."]
    faults += [] if labels else ["--label must name at least one column; got none."]
    faults += [f"--label must name each column once; got {n!r} twice." for n in {*labels} if labels.count(n) > 1]
    both = [name for name in dict.fromkeys(columns) if name in labels]
    faults += [f"a column must be a label or a confound; got {name!r} as both." for name in both]
    faults += number_faults(opened.table, columns)
    if faults:
        raise TableError("\n".join(faults))
    noticed = [f"{len(opened):,} rows, samples of shape {tuple(opened.shape)}"]
    task, codes = read_task(opened.table, labels, "auto", {}, None)
    noticed += _labels(task, codes)
    person = person or _repeating(opened.table)
    if person:
        noticed += _people(opened.table, person)
    missing = {name: int(sum(map(is_missing, np.asarray(opened.table[name]).tolist()))) for name in columns}
    noticed += [
        f"{name} is missing in {_rows(count)}: the mean of the training rows is used"
        for name, count in missing.items()
        if count
    ]
    empty = _features(opened, noticed)
    noticed += _slips(opened, {*labels, *columns, *IDENTIFIERS, person, id})
    usable = ~np.isnan(codes).any(axis=1)
    rows = {name: np.asarray(opened.table[name])[usable] for name in [*columns, *labels]}
    noticed += _diagnosis(terms, labels, rows, task, any(missing.values()))
    noticed += _words_for_nothing(rows)
    site = next((name for name in columns if name.lower() in SITES), None)
    tiny = _tiny(rows, [*columns], FOLDS)
    noticed += tiny
    known = Known(
        data, task, tuple(opened.shape), confounds, person, site, folder, any(missing.values()), empty, bool(tiny)
    )
    return Start(config_text(known), tuple(noticed))


def _labels(task: Task, codes: Any) -> list[str]:
    said = []
    for number, label in enumerate(task.labels):
        values = codes[:, number]
        if gone := int(np.isnan(values).sum()):
            said.append(f"{label} is missing in {_rows(gone)}: left out")
        if task.kind == "regression":
            said.append(f"{label} is a quantity, {np.nanmin(values):g} to {np.nanmax(values):g}: a regression")
            continue
        counts = [int((values == code).sum()) for code in range(len(task.levels[number]))]
        told = ", ".join(f"{level} {count}" for level, count in zip(task.levels[number], counts, strict=True))
        high = f"; a high score means {task.levels[number][1]}" if len(counts) == 2 else ""
        said.append(f"{label}: {told}{high}")
        if min(counts) < 0.1 * sum(counts):
            said.append(f"{label} is unbalanced: read the AUC, and consider training.loss: focal")
    return said


def _repeating(table: Mapping[str, Any]) -> str | None:
    """A column that is called like a person's name and holds values more than once."""
    for name in table:
        if name.lower() in PEOPLE:
            cells = np.asarray(table[name]).tolist()
            if len(set(cells)) < len(cells) and not any(map(is_missing, cells)):
                return name
    return None


def _people(table: Mapping[str, Any], person: str) -> list[str]:
    counts = Counter(np.asarray(table[person]).tolist())
    if max(counts.values()) == 1:
        return [f"{person} names {len(counts):,} people, each once"]
    several = sum(count > 1 for count in counts.values())
    return [f"{person} names {len(counts):,} people, {several} of them in several rows: each stays in one fold"]


def _features(source: Source, noticed: list[str]) -> bool:
    """Whether cells of the features are empty; tells that, and features that do not vary."""
    values, names = getattr(source, "values", None), getattr(source, "names", ())
    if values is None or not len(names):
        return False
    noticed.append(f"{len(names)} features: {', '.join(names[:4])}{', …' if len(names) > 4 else ''}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without any value has no spread
        constant = [name for name, spread in zip(names, np.nanstd(values, axis=0), strict=True) if not spread > 0]
    if constant:
        noticed.append(f"{_counted(len(constant), 'feature does', 'features do')} not vary: {', '.join(constant[:4])}")
    cells = np.isnan(values).sum(0)
    if cells.any():
        who = _counted(int((cells > 0).sum()), "feature has", "features have")
        noticed.append(f"{who} empty cells ({int(cells.sum())}): the mean of the training rows is used")
    return bool(cells.any())


def _diagnosis(terms: Sequence[Any], labels: Sequence[str], rows: dict[str, Any], task: Task, fill: bool) -> list[str]:
    """What confounds and labels share: from the design itself."""
    types: dict[str, Any] = dict.fromkeys(labels, "categorical") if task.kind == "multiclass" else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeconfoundWarning)
        try:
            design = Design(terms, list(labels), types=types, missing="mean" if fill else "error").fit(rows)
        except DeconfoundError as fault:
            raise TableError(str(fault)) from fault
    warned = [str(item.message) for item in caught if issubclass(item.category, DeconfoundWarning)]
    told = {name for name in rows if name in labels or rows[name].dtype.kind not in "fiub"}  # by `_labels` and `_tiny`
    lines = [line.strip() for line in str(design.diagnose()).split("\n")]
    return [
        *warned,
        *(
            line
            for line in lines
            if not line.startswith("nothing to report") and line.split(" has only ")[0] not in told
        ),
    ]


def _tiny(rows: dict[str, Any], columns: Sequence[str], folds: int) -> list[str]:
    """Confounds with levels so rare that a fold may be trained without them."""
    said = []
    for name in dict.fromkeys(columns):
        if rows[name].dtype.kind in "fiub":
            continue
        counts = Counter(str(value) for value in rows[name].tolist() if not is_missing(value))
        rare = [f"{level} ({count})" for level, count in sorted(counts.items()) if count < FEW_ROWS]
        shown = ", ".join(rare[:6]) + (f" and {len(rare) - 6} more" if len(rare) > 6 else "")
        if any(count < folds for count in counts.values()):
            said.append(
                f"{name} has levels with few rows: {shown}. A fold may train without them, so design.unseen: mean is "
                "set, which treats them there as the average; or join them, or leave them out"
            )
        elif rare:
            said.append(f"{name} has levels with few rows: {shown}")
    return said


def _words_for_nothing(rows: dict[str, Any]) -> list[str]:
    """Levels that are called as packages call an empty cell."""
    said = []
    for name, values in rows.items():
        counts = Counter(value for value in values.tolist() if isinstance(value, str))
        said += [
            f"{name} has the level {level!r} ({_rows(count)}): if it means that nothing is known, empty these cells"
            for level, count in counts.items()
            if level.lower() in EMPTY_AMONG_NUMBERS
        ]
    return said


def _slips(source: Source, roles: set[Any]) -> list[str]:
    """Columns that would be features but for a cell."""
    found = []
    for name in source.table:
        row = None if name in roles else slip(np.asarray(source.table[name]))
        if row is not None:
            cell = np.asarray(source.table[name])[row]
            found.append(
                f"{name} is no feature, for it holds {cell!r} in row {row} among numbers: mend or empty the cell"
            )
    return found


def _rows(count: int) -> str:
    return _counted(count, "row", "rows")


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"
