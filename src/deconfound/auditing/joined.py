"""An audit of files: outputs by model, the columns of the table and hidden features, joined row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.auditing.answers import class_order, places_of, sorted_levels
from deconfound.auditing.files import (
    FAMILIES,
    ID_NAMES,
    Columns,
    Content,
    id_column,
    matched_rows,
    output_columns,
    positive_level,
    read_file,
    stacked,
)
from deconfound.auditing.main import audit
from deconfound.auditing.records import Note
from deconfound.auditing.result import Audit
from deconfound.auditing.table_checks import repeated_people
from deconfound.design.table import absent
from deconfound.errors import OptionError, TableError
from deconfound.metrics.columns import column


def audit_files(
    predictions: Sequence[str | Path],
    *,
    confounds: Sequence[str],
    labels: Sequence[str] = (),
    table: str | Path | None = None,
    features: str | Path | None = None,
    outputs: Sequence[str] = (),
    models: Mapping[str, Sequence[str]] | None = None,
    id: str | None = None,
    person: str | None = None,
    fold: str | None = None,
    positive: Mapping[str, str] | None = None,
    classes: Sequence[str] = (),
    **options: Any,
) -> Audit:
    """Audit predictions that lie in files: CSV, TSV, Parquet, NPY or NPZ.

    Args:
        predictions: one file for each model, or one for all.
        confounds: columns that should not be there.
        labels: columns that the model predicts.
        table: the table of people, if confounds and labels are not in the predictions.
        features: hidden features to measure too.
        outputs: columns of outputs; by default those called logit…, score…, prob…, prediction….
        models: columns of outputs by model name, for several models in one file.
        id: the column that joins the files; by default a usual name that all have, else the order of the rows.
        person: column that names the person of a row.
        fold: column with the test fold of a row.
        positive: level that a high score stands for; by default what `predicted_LABEL` beside a score says.
        classes: class of each output column; by default what the names of the columns say, else the sorted order.
        options: types, permutations, bootstraps, seed, embedding and progress, as in `audit`.
    """
    # An id keeps its zeros where it is read as text; which column joins is known after reading.
    text = [name for name in (id, person, *ID_NAMES) if name and name not in (*confounds, *labels)]
    paths = [Path(path) for path in predictions]
    contents = [read_file(path, text) for path in paths]
    base = contents[0] if table is None else read_file(Path(table), text)
    key = id_column(id, contents if table is None else [*contents, base])
    first, roles = contents[0], [*confounds, *labels, *(name for name in (person, fold) if name)]
    skip = {*roles, key or ""}
    arrays: dict[str, NDArray[Any]] = {}
    chosen: dict[str, list[str]] = {}
    for content, name in zip(contents, _names(paths), strict=True):
        order = matched_rows(first, content, key)
        found = _models(content, name, outputs, models or {}, skip, chosen)
        twice = [model for model in found if model in arrays]
        if twice:
            raise OptionError(f"models must have different names; got {twice[0]!r} twice. Rename it in {content.path}.")
        arrays |= {model: values[order] for model, values in found.items()}
    people_of = repeated_people(base.columns) if person is None else None
    columns = _columns(base, [*roles, *([people_of] if people_of else [])], matched_rows(first, base, key), first)
    inner = None if features is None else read_file(Path(features), text)
    hidden = None if inner is None else _features(inner, first, key, skip, list(arrays))
    names = next(iter(chosen.values()), [])
    high = {label: level for label in labels if (level := positive_level(first.columns, names, label)) is not None}
    if not classes:
        arrays, classes = _by_names(arrays, chosen, columns, labels)
    result = audit(
        arrays,
        columns,
        confounds=confounds,
        labels=labels,
        person=person,
        features=hidden,
        fold=fold,
        positive={**high, **(positive or {})},
        classes=classes,
        **options,
    )
    others = [content for content in (*contents[1:], base) if content is not first]
    return replace(result, notes=(*result.notes, *_matched_by_order(first, others, inner, key)))


def _matched_by_order(
    first: Content, others: Sequence[Content], features: Content | None, key: str | None
) -> list[Note]:
    """A note that names the files whose rows no id joins to those of the first."""
    names = [content.path.name for content in others if key is None or not (first.columns and content.columns)]
    if features is not None and _shared_id(key, first, features) is None:
        names.append(features.path.name)
    said = f"rows of {first.path.name} and {', '.join(names)} are matched by their order, for no id joins them."
    return [Note("reading", "note", "", said)] if names else []


def _by_names(
    arrays: Columns, chosen: Mapping[str, list[str]], columns: Columns, labels: Sequence[str]
) -> tuple[Columns, Sequence[str]]:
    """Outputs whose columns are in the order of the labels or classes that their names tell, and that of the classes.

    One order of classes that all models have is left as it is.
    """
    named = {model: names for model, names in chosen.items() if len(names) > 1}
    wanted: Sequence[str] = labels
    if named and len(labels) == 1:
        wanted = sorted_levels(column(labels[0], columns[labels[0]], "categorical").levels)
        orders = {class_order(named.get(model, ()), wanted) for model in arrays}
        if len(orders) == 1:
            return arrays, orders.pop()
    return arrays | {model: arrays[model][:, places_of(wanted, names)] for model, names in named.items()}, ()


def _names(paths: Sequence[Path]) -> list[str]:
    """The files' names without endings, with their folders where several are called the same."""
    stems = [path.stem for path in paths]
    return [
        stem if stems.count(stem) == 1 else str(path.with_suffix("")) for path, stem in zip(paths, stems, strict=True)
    ]


def _columns(base: Content, roles: Sequence[str], rows: NDArray[np.intp], first: Content) -> Columns:
    """The columns of confounds, labels, person and fold, in the order of the predictions."""
    if not base.columns:
        raise TableError(f"{base.path} must stand beside a table of people; got arrays alone. Give it with --table.")
    faults = absent(roles, [*dict.fromkeys([*base.columns, *first.columns])], "--confounds, --labels and the like")
    if faults:
        raise TableError("\n".join(f"{base.path}: {fault}" for fault in faults))
    return {name: base.columns[name][rows] if name in base.columns else first.columns[name] for name in roles}


def _models(
    file: Content,
    name: str,
    outputs: Sequence[str],
    named: Mapping[str, Sequence[str]],
    skip: set[str],
    chosen: dict[str, list[str]],
) -> Columns:
    """Arrays of outputs by model name, from the named columns, or from those that are called like outputs."""
    if file.arrays:
        return {part or name: array for part, array in file.arrays.items()}
    groups = {model: list(columns) for model, columns in named.items()}
    if not groups:
        groups = {name: list(outputs) or output_columns(file.columns, skip)}
    for model, columns in groups.items():
        faults = absent(columns, list(file.columns), f"outputs of {model!r}")
        if faults:
            raise TableError(f"{file.path}: {faults[0]}")
        if not columns:
            others = ", ".join(c for c in file.columns if c not in skip) or "none"
            raise TableError(
                f"{file.path} must have columns of outputs called {', '.join(FAMILIES[:4])}…; got {others}. "
                "Name them with --outputs."
            )
    chosen.update(groups)
    return {model: stacked(file, columns) for model, columns in groups.items()}


def _shared_id(key: str | None, first: Content, file: Content) -> str | None:
    """The id of the predictions that features have too and that names each row; None where the order has to do."""
    names = [name for name in (key, *ID_NAMES) if name in first.columns and name in file.columns]
    return next((name for name in names if len(set(first.columns[name].tolist())) == first.rows), None)


def _features(file: Content, first: Content, key: str | None, skip: set[str], models: list[str]) -> Columns:
    """Features by model name; a file with one array belongs to the one model, or to all of them."""
    order = matched_rows(first, file, _shared_id(key, first, file))
    if file.columns:
        numeric = [values for name, values in file.columns.items() if name not in skip and values.dtype.kind in "fiu"]
        if not numeric:
            raise TableError(f"{file.path} must have columns of numbers; got {', '.join(file.columns)}.")
        return {models[0] if len(models) == 1 else "features": np.column_stack(numeric)[order]}
    one = list(file.arrays) == [""]
    name = models[0] if len(models) == 1 else file.path.stem
    return {name if one else given: array[order] for given, array in file.arrays.items()}
