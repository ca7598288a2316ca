"""An audit of files: outputs by model, the columns of the table and hidden features, joined row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from deconfound.auditing.class_names import NamedOutputs, class_order, places_of, same_class, sorted_levels
from deconfound.auditing.contradictions import refuse_other_values
from deconfound.auditing.files import (
    FAMILIES,
    ID_NAMES,
    Columns,
    Content,
    JoinedFiles,
    id_column,
    matched_rows,
    output_columns,
    positive_level,
    read_file,
    stacked,
    with_ids_called_alike,
)
from deconfound.auditing.main import audit
from deconfound.auditing.records import Note
from deconfound.auditing.result import Audit
from deconfound.auditing.table_checks import repeated_people
from deconfound.design.table import absent, is_missing, level_text
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
    files = _read(predictions, table, features, id, text, [*confounds, *labels])
    roles = [*confounds, *labels, *(name for name in (person, fold) if name)]
    skip = {*roles, files.key or ""}
    arrays, chosen = _outputs(files, outputs, models or {}, skip)
    people_of = repeated_people(files.table.columns) if person is None else None
    columns = _columns(files, [*roles, *([people_of] if people_of else [])])
    for name in (*labels, *([fold] if fold else [])):
        refuse_other_values(files, name, columns[name], name == fold)
    high = _positive_levels(files.first, chosen, columns, labels) | dict(positive or {})
    if not classes:
        arrays, classes = _by_names(arrays, chosen, columns, labels)
    result = audit(
        arrays,
        columns,
        confounds=confounds,
        labels=labels,
        person=person,
        features=_features(files, skip, list(arrays)),
        fold=fold,
        positive=high,
        classes=classes,
        **options,
    )
    return replace(result, notes=(*result.notes, *_matched_by_order(files), *_left_out(files)))


def _read(
    predictions: Sequence[str | Path],
    table: str | Path | None,
    features: str | Path | None,
    id: str | None,
    text: Sequence[str],
    as_it_is: Sequence[str],
) -> JoinedFiles:
    """Read every file, the columns of `text` as such, and find the column that joins them."""
    paths = [*predictions, *(path for path in (table, features) if path is not None)]
    read = with_ids_called_alike([read_file(Path(path), text, as_it_is) for path in paths], id)
    hidden = None if features is None else read.pop()
    people = None if table is None else read.pop()
    key = id_column(id, read if people is None else [*read, people])
    return JoinedFiles(tuple(read), people or read[0], hidden, key)


def _outputs(
    files: JoinedFiles, outputs: Sequence[str], models: Mapping[str, Sequence[str]], skip: set[str]
) -> tuple[Columns, dict[str, list[str]]]:
    """The outputs of every model in the rows of the first file, and the columns that those of a table come from."""
    arrays: Columns = {}
    chosen: dict[str, list[str]] = {}
    for file, name in zip(files.predictions, _names([file.path for file in files.predictions]), strict=True):
        order = files.rows_of(file)
        found = _models(file, name, outputs, models, skip, chosen)
        twice = [model for model in found if model in arrays]
        if twice:
            raise OptionError(f"models must have different names; got {twice[0]!r} twice. Rename it in {file.path}.")
        arrays |= {model: values[order] for model, values in found.items()}
    return arrays, chosen


def _positive_levels(
    first: Content, chosen: Mapping[str, list[str]], columns: Columns, labels: Sequence[str]
) -> dict[str, str]:
    """For each label the level that a high score stands for, where the file says so by a level that the label has."""
    names = next(iter(chosen.values()), [])
    found = {}
    for label in labels:
        levels = sorted({level_text(cell) for cell in columns[label].tolist() if not is_missing(cell)})
        said = positive_level(first.columns, names, label)
        if said is not None and (level := same_class(said, levels)) in levels:
            found[label] = level
    return found


def _matched_by_order(files: JoinedFiles) -> list[Note]:
    """A note that names the files whose rows no id joins to those of the first."""
    first, features = files.first, files.features
    others = [file for file in (*files.predictions[1:], files.table) if file is not first]
    names = [file.path.name for file in others if files.key is None or not (first.columns and file.columns)]
    if features is not None and _shared_id(files, features) is None:
        names.append(features.path.name)
    said = f"rows of {first.path.name} and {', '.join(names)} are matched by their order, for no id joins them."
    return [Note("reading", "note", "", said)] if names else []


def _left_out(files: JoinedFiles) -> list[Note]:
    """A note for each file of predictions that has rows which the first lacks."""
    names, known = _names([file.path for file in files.predictions]), files.first.rows
    said = "{}: {} of {} rows are left out, for {} has no row with their {}."
    return [
        Note("reading", "note", "", said.format(name, file.rows - known, file.rows, names[0], files.key))
        for file, name in zip(files.predictions, names, strict=True)
        if file.rows > known
    ]


def _by_names(
    arrays: Columns, chosen: Mapping[str, list[str]], columns: Columns, labels: Sequence[str]
) -> tuple[dict[str, Any], Sequence[str]]:
    """Outputs whose columns are in the order of the labels or classes that their names tell, and that of the classes.

    One order of classes that all models have is left as it is. Other names than those of one label's classes, and that
    of a single column, go with the outputs.
    """
    alone = {model: NamedOutputs(arrays[model], tuple(names)) for model, names in chosen.items() if len(names) == 1}
    named = {model: names for model, names in chosen.items() if len(names) > 1}
    wanted: Sequence[str] = labels
    with_names: dict[str, NamedOutputs] = {}
    if named and len(labels) == 1:
        wanted = sorted_levels(column(labels[0], columns[labels[0]], "categorical").levels)
        orders = {class_order(named.get(model, ()), wanted) for model in arrays}
        if len(orders) == 1 and () not in orders:
            return arrays, orders.pop()
        other = {model: names for model, names in named.items() if not class_order(names, wanted)}
        with_names = {model: NamedOutputs(arrays[model], tuple(names)) for model, names in other.items()}
        named = {model: names for model, names in named.items() if model not in other}
    ordered = {model: arrays[model][:, places_of(wanted, names)] for model, names in named.items()}
    return {**arrays, **alone, **with_names, **ordered}, ()


def _names(paths: Sequence[Path]) -> list[str]:
    """The files' names without endings, with their folders where several are called the same."""
    stems = [path.stem for path in paths]
    return [
        stem if stems.count(stem) == 1 else str(path.with_suffix("")) for path, stem in zip(paths, stems, strict=True)
    ]


def _columns(files: JoinedFiles, roles: Sequence[str]) -> Columns:
    """The columns of confounds, labels, person and fold, in the order of the predictions."""
    base, first, rows = files.table, files.first, files.rows_of(files.table)
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


def _shared_id(files: JoinedFiles, features: Content) -> str | None:
    """The id of the predictions that features have too and that names each row; None where the order has to do."""
    first = files.first
    names = [name for name in (files.key, *ID_NAMES) if name in first.columns and name in features.columns]
    return next((name for name in names if len(set(first.columns[name].tolist())) == first.rows), None)


def _features(files: JoinedFiles, skip: set[str], models: list[str]) -> Columns | None:
    """Features by model name, if there are any; a file with one array belongs to the one model, or to all of them."""
    file = files.features
    if file is None:
        return None
    order = matched_rows(files.first, file, _shared_id(files, file))
    if file.columns:
        numeric = [values for name, values in file.columns.items() if name not in skip and values.dtype.kind in "fiu"]
        if not numeric:
            raise TableError(f"{file.path} must have columns of numbers; got {', '.join(file.columns)}.")
        return {models[0] if len(models) == 1 else "features": np.column_stack(numeric)[order]}
    one = list(file.arrays) == [""]
    name = models[0] if len(models) == 1 else file.path.stem
    return {name if one else given: array[order] for given, array in file.arrays.items()}
