"""What is worth knowing about a table before training, in sentences."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.auditing.baselines import confounds_alone
from deconfound.auditing.table_checks import SITES, codes_in
from deconfound.data import IDENTIFIERS, Source, suspicious_features
from deconfound.design import Balance, Design
from deconfound.design.balance_report import WEAK_TIE
from deconfound.design.table import is_missing, level_text
from deconfound.errors import DeconfoundError, DeconfoundWarning, TableError
from deconfound.metrics import auc, r_squared
from deconfound.metrics.columns import Column, column
from deconfound.training.odd_cells import (
    almost_numeric,
    amounts_as_text,
    counted,
    dates,
    levels_written_differently,
    maybe_people,
    rows_in_words,
    words_for_nothing,
)
from deconfound.training.splits import person_codes
from deconfound.training.tasks import Task
from deconfound.training.template import FOLDS

FEW_ROWS = 10


@dataclass(frozen=True)
class FirstLook:
    """A table that is open and whose columns are all there.

    Attributes:
        source: Samples and table.
        task: What is predicted.
        codes: Labels as numbers, one row each.
        confounds: What is removed, as the user wrote it.
        terms: The same, read.
        columns: The columns of the terms.
        person: The column that names the person of a row.
        id: The column that joins samples and table.
    """

    source: Source
    task: Task
    codes: NDArray[np.float64]
    confounds: Sequence[str]
    terms: Sequence[Any]
    columns: Sequence[str]
    person: str | None
    id: str | None

    @cached_property
    def rows(self) -> dict[str, NDArray[Any]]:
        """Confounds and labels of the rows whose labels are known."""
        known = ~np.isnan(self.codes).any(axis=1)
        return {name: np.asarray(self.source.table[name])[known] for name in [*self.columns, *self.task.labels]}

    @cached_property
    def missing(self) -> dict[str, int]:
        """Empty cells of each confound."""
        return {name: sum(map(is_missing, np.asarray(self.source.table[name]).tolist())) for name in self.columns}

    @cached_property
    def site_codes(self) -> list[str]:
        """Confounds that hold whole numbers and are called like sites; spline(site) says that they are amounts."""
        plain = [name for name in dict.fromkeys(self.columns) if name in self.confounds]
        return [name for name in plain if name.lower() in SITES and codes_in(name, self.rows[name])]

    @property
    def types(self) -> dict[str, Any]:
        """Columns whose numbers are names."""
        classes = self.task.labels if self.task.kind == "multiclass" else ()
        return dict.fromkeys([*classes, *self.site_codes], "categorical")

    @property
    def empty_features(self) -> bool:
        """Whether cells of the features are empty."""
        return bool(np.isnan(_features_of(self.source)[0]).any())

    def sentences(self) -> list[str]:
        """All that was noticed, in the order in which a reader needs it."""
        source, labels, columns = self.source, self.task.labels, self.columns
        return [
            f"{len(source):,} rows, samples of shape {tuple(source.shape)}",
            *_labels(self.task, self.codes),
            *(_people(source.table, self.person) if self.person else []),
            *_missing(self.missing),
            *_features(source),
            *(note.text for note in suspicious_features(source, labels, columns, self.person)),
            *almost_numeric(source, {*labels, *columns, *IDENTIFIERS, self.person, self.id}),
            *_named_by_numbers(self.site_codes),
            *_diagnosis(self),
            *_confounds_alone(self),
            *words_for_nothing(self.rows),
            *levels_written_differently(self.rows),
            *dates(self.rows, columns),
            *amounts_as_text(self.rows),
            *([] if self.person else maybe_people(source, {*labels, *columns, self.id})),
            *rare_levels(self),
        ]


def _missing(cells: Mapping[str, int]) -> list[str]:
    return [
        f"{name} is missing in {rows_in_words(count)}: the mean of the training rows is used"
        for name, count in cells.items()
        if count
    ]


def _named_by_numbers(columns: Sequence[str]) -> list[str]:
    return [
        f"{name} holds whole numbers and is called like a site: data.types reads them as names, not as amounts"
        for name in columns
    ]


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


def _features_of(source: Source) -> tuple[NDArray[Any], Sequence[str]]:
    """The features of a table and their names; of files and arrays none."""
    values, names = getattr(source, "values", None), getattr(source, "names", ())
    return (np.empty((0, 0)), ()) if values is None or not len(names) else (values, names)


def _features(source: Source) -> list[str]:
    """Sentences about features that do not vary or have empty cells."""
    values, names = _features_of(source)
    if not len(names):
        return []
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
    return lines


def _diagnosis(look: FirstLook) -> list[str]:
    """What confounds and labels share: from the design itself."""
    rows, labels, types = look.rows, look.task.labels, look.types
    missing: Literal["error", "mean"] = "mean" if any(look.missing.values()) else "error"
    with warnings.catch_warnings(action="ignore", category=DeconfoundWarning):  # `design.notes` are the same
        try:
            design = Design(look.terms, list(labels), types=types, missing=missing).fit(rows)
        except DeconfoundError as fault:
            raise TableError(str(fault)) from fault
    # Small levels of labels and of names are told by `_labels` and `rare_levels`, amounts by `amounts_as_text`.
    known = {name for name in rows if name in labels or name in types or rows[name].dtype.kind not in "fiub"}
    found = design.diagnose(rows)
    return [
        _codes_sentence(note.columns[0], rows) if note.kind == "codes" else note.text
        for note in (*design.notes, *found.notes)
        if note.kind != "amounts as text"
        if not (note.kind == "small level" and known.intersection(note.columns))
    ] + _balance(found.balance)


def _codes_sentence(name: str, rows: dict[str, Any]) -> str:
    """The note of a design about whole numbers, with the keys of a config."""
    return (
        f"{name} holds {codes_in(name, rows[name])} distinct whole numbers and is read as an amount. If they are codes "
        f"(sites, scanners), write data.types: {{{name}: categorical}}; if not, {{{name}: numeric}} silences this"
    )


def _confounds_alone(look: FirstLook) -> list[str]:
    """How well the confounds predict each label on rows that they were not fitted to."""
    table, task, codes = look.source.table, look.task, look.codes
    people = torch.from_numpy(person_codes(table, look.person, len(codes)))
    lines = []
    for place, name in enumerate(task.labels):
        rows = np.flatnonzero(~np.isnan(codes[:, place]))
        target = torch.from_numpy(codes[rows, place])
        confounds = [
            column(confound, np.asarray(table[confound])[rows], look.types.get(confound))
            for confound in dict.fromkeys(look.columns)
        ]
        classes = 0 if task.kind == "regression" else len(task.levels[place])
        kind: Any = {0: "numeric", 2: "binary"}.get(classes, "categorical")
        levels = tuple(map(str, range(classes)))
        scores = confounds_alone(confounds, [Column(name, kind, target, levels)], people[rows], 0)
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


def rare_levels(look: FirstLook) -> list[str]:
    """Confounds with levels so rare that a fold may be trained without them."""
    lines = []
    for name in dict.fromkeys(look.columns):
        values = look.rows[name]
        if values.dtype.kind in "fiub" and name not in look.site_codes:
            continue
        counts = Counter(level_text(value) for value in values.tolist() if not is_missing(value))
        rare = [f"{level} ({count})" for level, count in sorted(counts.items()) if count < FEW_ROWS]
        shown = ", ".join(rare[:6]) + (f" and {len(rare) - 6} more" if len(rare) > 6 else "")
        if any(count < FOLDS for count in counts.values()):
            lines.append(
                f"{name} has levels with few rows: {shown}. A fold may train without them, so design.unseen: mean is "
                "set, which treats them there as the average; or join them, or leave them out"
            )
        elif rare:
            lines.append(f"{name} has levels with few rows: {shown}")
    return lines
