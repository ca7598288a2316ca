"""A first config for a table, and what is worth knowing about it before training."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.auditing.baselines import confounds_alone
from deconfound.auditing.table_checks import SITES, codes_in, repeated_people
from deconfound.data import IDENTIFIERS, FileSource, Source, suspicious_features
from deconfound.design import Balance, Design
from deconfound.design.balance_report import WEAK_TIE
from deconfound.design.table import absent, is_missing
from deconfound.errors import DeconfoundError, DeconfoundWarning, TableError
from deconfound.metrics import auc, r_squared
from deconfound.metrics.columns import Column, column, level_text
from deconfound.training.checks import number_faults, role_faults
from deconfound.training.config import DataOptions
from deconfound.training.odd_cells import (
    almost_numeric,
    counted,
    dates,
    levels_written_differently,
    maybe_people,
    rows_in_words,
    words_for_nothing,
)
from deconfound.training.sources import open_source, skipping_bad_scans
from deconfound.training.splits import person_codes
from deconfound.training.tasks import Task, read_task
from deconfound.training.template import FOLDS, FirstConfig, schema_text
from deconfound.training.terms import columns_of, read_terms

FEW_ROWS = 10


@dataclass(frozen=True)
class Start:
    """A config to start from.

    Attributes:
        text: YAML with comments.
        schema: The JSON schema of a config, for editors.
        noticed: Sentences about the data.
    """

    text: str
    schema: str
    noticed: tuple[str, ...]


def start_config(
    table: str | Path,
    labels: Sequence[str],
    confounds: Sequence[str],
    source: str | Path | None = None,
    person: str | None = None,
    id: str | None = None,
    folder: str = "runs/run",
    *,
    skip_bad: bool = False,
    schema: str = "",
) -> Start:
    """Look at a table and write the config of a first run.

    Args:
        table: The table with labels and confounds, and with the features unless `source` has them.
        labels: Columns to predict.
        confounds: Columns or terms to remove.
        source: Features, an array, or a folder of images or scans.
        person: The column that names the person of a row.
        id: The column that joins `source` and `table`.
        folder: Where the run will lie.
        skip_bad: Leave out scans that cannot be read or have no row of the table, and warn.
        schema: Where the schema will lie; the first line of the config names it.
    """
    terms, faults = read_terms(confounds, "--confounds")
    columns = columns_of(terms)
    data = DataOptions(source=str(source or table), label=tuple(labels), table=str(table) if source else None, id=id)
    data = skipping_bad_scans(data) if skip_bad else data
    opened = open_source(data, [*labels, *columns, *([person] if person else [])])
    data = data.model_copy(update={"options": {**_reading(opened), **data.options}})
    named = {"--label": labels, "--confounds": columns, "--person": [person], "--id": [id]}
    for option, names in named.items():
        faults += absent([name for name in names if name], list(opened.table), option)
    faults += [] if confounds else ["--confounds must name at least one column; got none."]
    faults += role_faults(labels, columns, "--label") + number_faults(opened.table, columns)
    if faults:
        raise TableError("\n".join(faults))
    task, codes = read_task(opened.table, labels, "auto", {}, None)
    person = person or repeated_people(opened.table)
    missing = {name: int(sum(map(is_missing, np.asarray(opened.table[name]).tolist()))) for name in columns}
    usable = ~np.isnan(codes).any(axis=1)
    rows = {name: np.asarray(opened.table[name])[usable] for name in [*columns, *labels]}
    # A term such as spline(site) says that the numbers are amounts.
    plain = [name for name in dict.fromkeys(columns) if name in confounds]
    codes_of_sites = [name for name in plain if name.lower() in SITES and codes_in(name, rows[name])]
    data = data.model_copy(update={"types": dict.fromkeys(codes_of_sites, "categorical")})
    types = dict.fromkeys([*(labels if task.kind == "multiclass" else []), *codes_of_sites], "categorical")
    rare = _rare_levels(rows, columns, FOLDS, codes_of_sites)
    empty, about_features = _features(opened)
    noticed = [
        f"{len(opened):,} rows, samples of shape {tuple(opened.shape)}",
        *_labels(task, codes),
        *(_people(opened.table, person) if person else []),
        *(
            f"{name} is missing in {rows_in_words(count)}: the mean of the training rows is used"
            for name, count in missing.items()
            if count
        ),
        *about_features,
        *(note.text for note in suspicious_features(opened, labels, columns, person)),
        *almost_numeric(opened, {*labels, *columns, *IDENTIFIERS, person, id}),
        *(
            f"{name} holds whole numbers and is called like a site: data.types reads them as names, not as amounts"
            for name in codes_of_sites
        ),
        *_diagnosis(terms, labels, rows, types, any(missing.values())),
        *_confounds_alone(opened.table, columns, task, codes, person, types),
        *words_for_nothing(rows),
        *levels_written_differently(rows),
        *dates(rows, columns),
        *([] if person else maybe_people(opened, {*labels, *columns, id})),
        *rare,
    ]
    site = next((name for name in columns if name.lower() in SITES), None)
    first = FirstConfig(
        data, task, tuple(opened.shape), confounds, person, site, folder, any(missing.values()), empty, bool(rare)
    )
    return Start(first.text(schema), schema_text(), tuple(noticed))


def _reading(source: Source) -> dict[str, Any]:
    """How files are read, for the config to show what can be changed."""
    if not isinstance(source, FileSource):
        return {}
    channels, *edges = source.shape
    if len(edges) == 3:
        return {"shape": edges, "fit": "resample"}
    return {"size": edges, "channels": "rgb" if channels == 3 else "grey", "resize": "stretch"}


def _labels(task: Task, codes: Any) -> list[str]:
    lines = []
    for number, label in enumerate(task.labels):
        values = codes[:, number]
        if gone := int(np.isnan(values).sum()):
            lines.append(f"{label} is missing in {rows_in_words(gone)}: left out")
        if task.kind == "regression":
            lines.append(f"{label} is numeric, {np.nanmin(values):g} to {np.nanmax(values):g}: a regression")
            continue
        counts = [int((values == code).sum()) for code in range(len(task.levels[number]))]
        shown = ", ".join(f"{level} {count}" for level, count in zip(task.levels[number], counts, strict=True))
        high = f"; a high score means {task.levels[number][1]}" if len(counts) == 2 else ""
        lines.append(f"{label}: {shown}{high}")
        if min(counts) < 0.1 * sum(counts):
            lines.append(f"{label} is unbalanced: read the AUC, and consider training.loss: focal")
    return lines


def _people(table: Mapping[str, Any], person: str) -> list[str]:
    counts = Counter(np.asarray(table[person]).tolist())
    if max(counts.values()) == 1:
        return [f"{person} names {len(counts):,} people, each once"]
    several = sum(count > 1 for count in counts.values())
    return [f"{person} names {len(counts):,} people, {several} of them in several rows: each stays in one fold"]


def _features(source: Source) -> tuple[bool, list[str]]:
    """Whether cells of the features are empty, and sentences about that and about features that do not vary."""
    values, names = getattr(source, "values", None), getattr(source, "names", ())
    if values is None or not len(names):
        return False, []
    lines = [f"{len(names)} features: {', '.join(names[:4])}{', …' if len(names) > 4 else ''}"]
    lines += [note.text for note in getattr(source, "notes", ())]
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # an empty column has no spread
        constant = [name for name, spread in zip(names, np.nanstd(values, axis=0), strict=True) if not spread > 0]
    if constant:
        lines.append(f"{counted(len(constant), 'feature does', 'features do')} not vary: {', '.join(constant[:4])}")
    cells = np.isnan(values).sum(0)
    if cells.any():
        who = counted(int((cells > 0).sum()), "feature has", "features have")
        lines.append(f"{who} empty cells ({int(cells.sum())}): the mean of the training rows is used")
    return bool(cells.any()), lines


def _diagnosis(
    terms: Sequence[Any], labels: Sequence[str], rows: dict[str, Any], types: dict[str, Any], fill: bool
) -> list[str]:
    """What confounds and labels share: from the design itself."""
    with warnings.catch_warnings(action="ignore", category=DeconfoundWarning):  # `design.notes` are the same
        try:
            design = Design(terms, list(labels), types=types, missing="mean" if fill else "error").fit(rows)
        except DeconfoundError as fault:
            raise TableError(str(fault)) from fault
    # Small levels of labels and of names are told by `_labels` and `_rare_levels`.
    known = {name for name in rows if name in labels or name in types or rows[name].dtype.kind not in "fiub"}
    found = design.diagnose(rows)
    return [
        _codes_sentence(note.columns[0], rows) if note.kind == "codes" else note.text
        for note in (*design.notes, *found.notes)
        if not (note.kind == "small level" and known.intersection(note.columns))
    ] + _balance(found.balance)


def _codes_sentence(name: str, rows: dict[str, Any]) -> str:
    """The note of a design about whole numbers, with the keys of a config."""
    return (
        f"{name} holds {codes_in(name, rows[name])} distinct whole numbers and is read as an amount. If they are codes "
        f"(sites, scanners), write data.types: {{{name}: categorical}}; if not, {{{name}: numeric}} silences this"
    )


def _confounds_alone(
    table: Mapping[str, Any],
    columns: Sequence[str],
    task: Task,
    codes: NDArray[np.float64],
    person: str | None,
    types: Mapping[str, Any],
) -> list[str]:
    """How well the confounds predict each label on rows that they were not fitted to."""
    lines = []
    for place, name in enumerate(task.labels):
        rows = np.flatnonzero(~np.isnan(codes[:, place]))
        target = torch.from_numpy(codes[rows, place])
        units = torch.from_numpy(person_codes(table, person, len(codes))[rows])
        confounds = [
            column(confound, np.asarray(table[confound])[rows], types.get(confound))
            for confound in dict.fromkeys(columns)
        ]
        classes = 0 if task.kind == "regression" else len(task.levels[place])
        kind: Any = {0: "numeric", 2: "binary"}.get(classes, "categorical")
        levels = tuple(map(str, range(classes)))
        scores = confounds_alone(confounds, [Column(name, kind, target, levels)], units, 0)
        if scores is None:
            continue
        if classes == 0:
            reached = f"an R² of {float(r_squared(scores[:, 0], target)):.2f}"
        else:
            cases = [target == 1] if classes == 2 else [target == code for code in range(classes)]
            found = [auc(scores[:, k], case) for k, case in enumerate(cases)]
            reached = f"{'an' if classes == 2 else 'a mean'} AUC of {float(torch.stack(found).mean()):.2f}"
        lines.append(
            f"the confounds alone reach {reached} for {name} on rows they were not fitted to: a model that does no "
            "better may know nothing else"
        )
    return lines


def _balance(found: Any) -> list[str]:
    """Whether weights could break the tie between labels and confounds, where there is one."""
    if not isinstance(found, Balance):
        return []
    lines = []
    for report in found.reports:
        if report.tied_before["all"] >= WEAK_TIE:
            advice = f": try training.balance: {found.kind}" if report.answerable else ""
            lines.append(f"{report.verdict.rstrip('.')}{advice}")
            lines += [str(item) for item in report.no_overlap[:5]]
    return lines


def _rare_levels(rows: dict[str, Any], columns: Sequence[str], folds: int, codes: Sequence[str]) -> list[str]:
    """Confounds with levels so rare that a fold may be trained without them."""
    lines = []
    for name in dict.fromkeys(columns):
        if rows[name].dtype.kind in "fiub" and name not in codes:
            continue
        counts = Counter(level_text(value) for value in rows[name].tolist() if not is_missing(value))
        rare = [f"{level} ({count})" for level, count in sorted(counts.items()) if count < FEW_ROWS]
        shown = ", ".join(rare[:6]) + (f" and {len(rare) - 6} more" if len(rare) > 6 else "")
        if any(count < folds for count in counts.values()):
            lines.append(
                f"{name} has levels with few rows: {shown}. A fold may train without them, so design.unseen: mean is "
                "set, which treats them there as the average; or join them, or leave them out"
            )
        elif rare:
            lines.append(f"{name} has levels with few rows: {shown}")
    return lines
