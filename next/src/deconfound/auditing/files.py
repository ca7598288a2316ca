"""Audits of files: read predictions, features and the table, and join their rows."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deconfound.auditing.audit import OnProgress, audit
from deconfound.auditing.audit_result import Audit
from deconfound.data import read_arrays, refuse_unpacking
from deconfound.errors import OptionError, ShapeError, TableError, nearest_names
from deconfound.metrics import Resampling
from deconfound.table import Kind, Note, format_names, format_rows, read_columns, to_levels

FilePath = str | os.PathLike[str]


def audit_files(  # noqa: PLR0913
    paths: FilePath | Sequence[FilePath],
    *,
    confounds: Sequence[str],
    labels: Sequence[str] = (),
    table: FilePath | None = None,
    id: str | None = None,
    models: Mapping[str, str | Sequence[str]] | None = None,
    outputs: str | Sequence[str] | None = None,
    features: FilePath | None = None,
    person: str | None = None,
    fold: str | None = None,
    weight: str | None = None,
    types: Mapping[str, Kind] | None = None,
    classes: Sequence[str] = (),
    positive: str | None = None,
    resampling: Resampling | None = None,
    planted: float | None = 0.5,
    probes: bool = True,
    on_progress: OnProgress | None = None,
) -> Audit:
    """Audit predictions in files, as `audit` does for arrays.

    Args:
        paths: Files of predictions (.csv, .tsv, .parquet, .xlsx, .npy, .npz). Each is one model,
            called by the name of its file.
        confounds: Columns that the models should not use.
        labels: Columns that they predict.
        table: The table of people with these columns. None takes the first file of predictions.
        id: The column that joins the files; a row without a partner is left out and counted in a
            note. None matches rows by position, for which all files need the same number of rows.
        models: Several models in one file: from the name of a model to its column or columns.
        outputs: The columns of each file that are outputs, or the name of an array in an .npz
            file. None takes the columns called `score_…` or `prob_…`, else those called by a level
            of a label.
        features: A file of features; all columns without a role in the audit are used.
        person: The column of people, if a person may have several rows.
        fold: The column of test folds, if the outputs come from several networks.
        weight: A column of row weights.
        types: Kinds of columns, "numeric" or "categorical".
        classes: The class of each column of a single label, in their order.
        positive: The class for which a high score of a binary label stands.
        resampling: Numbers of permutations and bootstrap samples, and their seed.
        planted: The size in sd of planted leaks. None leaves them out.
        probes: Whether to cross-validate models that read each confound from the outputs.
        on_progress: Called with the number of the step, the number of steps, and a description.

    Raises:
        TableError: A file cannot be read, or its rows do not fit those of the others.
        OptionError: It is not clear which columns are outputs; shows what to write.
    """
    if models and outputs:
        raise OptionError("models= and outputs= are both given. Write one of them.")
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise OptionError("paths is empty. Write at least one file of predictions.")
    predictions = [_read_file(path) for path in given]
    people = predictions[0] if table is None else _read_file(table)
    if not people.is_table:
        raise OptionError(f"{people.path.name!r} has no named columns. Write table='people.csv'.")
    feature_files = [] if features is None else [_read_file(features)]
    roles = {*labels, *confounds, *filter(None, (id, person, fold, weight))}
    files = list({file.path: file for file in (people, *predictions, *feature_files)}.values())
    orders, notes = _match_rows(files, id, {*labels, *filter(None, (person, fold))})
    people, *rest = [
        file.take(orders[file.path]) for file in (people, *predictions, *feature_files)
    ]
    predictions = rest[: len(predictions)]
    levels = _list_levels(people, labels)
    columns = [outputs] if isinstance(outputs, str) else outputs
    feature_arrays: dict[str, Any] = {}
    for file in rest[len(predictions) :]:
        feature_arrays |= file.split(roles)
    result = audit(
        _choose_models(predictions, models, columns, roles, levels),
        pd.DataFrame(people.columns),
        confounds=confounds,
        labels=labels,
        features=feature_arrays or None,
        person=person,
        fold=fold,
        weight=weight,
        types=types,
        classes=classes,
        positive=positive,
        resampling=resampling,
        planted=planted,
        probes=probes,
        on_progress=on_progress,
    )
    return replace(result, notes=(*notes, *result.notes))


@dataclass(frozen=True, eq=False)
class _File:
    """A file of n rows.

    Attributes:
        path: Its path.
        columns: Columns of a table, shape `(n,)`, or the arrays of an .npz file by name, shape
            `(n, …)`; the array of an .npy file is called "".
        is_table: Whether it is a table with named columns.
    """

    path: Path
    columns: Mapping[str, Any]
    is_table: bool

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, order: NDArray[np.intp]) -> _File:
        """Return the file with these rows, numbered from 0."""
        if not self.is_table:
            return replace(self, columns={name: x[order] for name, x in self.columns.items()})
        columns = {name: x.iloc[order].reset_index(drop=True) for name, x in self.columns.items()}
        return replace(self, columns=columns)

    def select(self, names: Sequence[str]) -> Any:
        """Return columns as a DataFrame, or one array as it is."""
        absent = [name for name in names if name not in self.columns]
        if absent:
            advice = "Save it in the same .npz file."
            if self.is_table:
                advice = nearest_names(absent[0], self.columns)
            raise OptionError(f"There is no column {absent[0]!r} in {self.path.name!r}. {advice}")
        if len(names) == 1 and not self.is_table:
            return self.columns[names[0]]
        if any(np.ndim(self.columns[name]) != 1 for name in names):
            raise OptionError(
                f"{self.path.name!r} holds arrays of several columns. Write one: "
                f"outputs=[{names[0]!r}]."
            )
        return pd.DataFrame({name: self.columns[name] for name in names})

    def split(self, roles: Collection[str]) -> dict[str, Any]:
        """Return the features of the file by name: one table, or each array."""
        names = [name for name in self.columns if name not in roles]
        if self.is_table or names == [""]:
            return {self.path.stem: self.select(names)}
        return {name: self.select([name]) for name in names}


def _read_file(path: FilePath) -> _File:
    path = Path(path)
    if path.suffix.lower() in (".npy", ".npz"):
        arrays = read_arrays(path)
        shapes = [array.shape for array in arrays.values()]
        # The first axis of each array; a single number has none.
        lengths = {shape[:1] for shape in shapes}
        if len(lengths) != 1 or lengths <= {(), (0,)}:
            listed = ", ".join(map(str, shapes)) or "no array"
            raise ShapeError(
                f"{path.name!r} must hold arrays with one row per person. Got {listed}."
            )
        return _File(path, arrays, is_table=False)
    if path.is_file():
        refuse_unpacking(path)
    columns = read_columns(path)
    if all(_is_number(name) for name in columns):
        raise TableError(
            f"The first line of {path.name!r} holds numbers instead of names of columns. "
            "Write a line of names first."
        )
    # A table that was sorted before it was saved as .parquet keeps its old row numbers.
    columns = {name: values.reset_index(drop=True) for name, values in columns.items()}
    return _File(path, columns, is_table=True)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _match_rows(
    files: Sequence[_File], id: str | None, roles: Collection[str]
) -> tuple[dict[Path, NDArray[np.intp]], list[Note]]:
    """Return for each file the rows that all files have, in the order of the first one."""
    notes = []
    if id is None:
        counts = [f"{file.path.name!r} has {len(file)}" for file in files]
        if len({len(file) for file in files}) > 1:
            raise ShapeError(
                f"The files have unequal numbers of rows: {', '.join(counts)}. "
                "Write the column that joins them: id='participant_id'."
            )
        orders = {file.path: np.arange(len(file)) for file in files}
        if len(files) > 1:
            names = format_names(file.path.name for file in files)
            text = f"The rows of {names} were matched by position."
            fix = "Write the column that joins them, such as id='participant_id'."
            notes.append(Note("source", "", text, fix, is_error=False))
    else:
        places = [_find_ids(file, id) for file in files]
        common = set(places[0]).intersection(*places)
        shared = [key for key in places[0] if key in common]
        if not shared:
            names = format_names(file.path.name for file in files)
            raise TableError(f"No {id!r} occurs in all of {names}. Check how the ids are written.")
        orders = {}
        for file, place in zip(files, places, strict=True):
            orders[file.path] = np.array([place[key] for key in shared])
            if len(shared) < len(file):
                text = (
                    f"{len(file) - len(shared)} of {len(file)} rows of {file.path.name!r} have no "
                    f"partner with the same {id!r} in the other files and were left out."
                )
                fix = "Check that these ids are meant to be absent."
                notes.append(Note("length", id, text, fix, is_error=False))
    for file in files[1:]:
        _refuse_other_rows(
            files[0].take(orders[files[0].path]), file.take(orders[file.path]), roles
        )
    return orders, notes


def _find_ids(file: _File, id: str) -> dict[str, int]:
    """Return the row of each id, which must be present and occur once."""
    file.select([id])
    ids = _read_texts(file, id)
    counts = Counter(ids)
    wrong = [row for row, key in enumerate(ids) if key is None or counts[key] > 1]
    if wrong:
        raise TableError(
            f"Column {id!r} of {file.path.name!r} is empty or not unique in {format_rows(wrong)}. "
            "Give each row an id of its own."
        )
    return {key: row for row, key in enumerate(ids)}


def _read_texts(file: _File, name: str) -> list[Any]:
    """Return the text of each cell of a column, None where it is missing."""
    texts: list[Any] = to_levels(read_columns({name: file.columns[name]})[name]).tolist()
    return texts


def _refuse_other_rows(first: _File, other: _File, roles: Collection[str]) -> None:
    """Refuse files whose common columns show that their rows are those of other people.

    Columns in `roles` must be equal, and ids of any kind must not stand in another order.
    """
    for name in other.columns:
        if name not in first.columns or np.ndim(other.columns[name]) != 1:
            continue
        mine, others = _read_texts(first, name), _read_texts(other, name)
        pairs = enumerate(zip(mine, others, strict=True))
        different = [row for row, pair in pairs if not _is_same(*pair)]
        is_sorted_otherwise = {*mine} == {*others} and len({*mine}) == len(mine)
        if different and (name in roles or is_sorted_otherwise):
            raise TableError(
                f"Column {name!r} of {first.path.name!r} and {other.path.name!r} differs in "
                f"{format_rows(different)} of the joined rows. Write the column that joins the "
                "files, such as id='participant_id', or correct one of them."
            )


def _is_same(first: str | None, second: str | None) -> bool:
    """Return True for equal texts and for equal numbers, such as 63.20 and 63.2."""
    if first is None or second is None or not (_is_number(first) and _is_number(second)):
        return first == second
    return math.isclose(float(first), float(second), rel_tol=1e-6)


def _list_levels(people: _File, labels: Sequence[str]) -> set[str]:
    """Return the levels of all labels that the table has."""
    columns = [_read_texts(people, label) for label in labels if label in people.columns]
    return {text for texts in columns for text in texts if text is not None}


def _choose_models(
    predictions: Sequence[_File],
    models: Mapping[str, str | Sequence[str]] | None,
    outputs: Sequence[str] | None,
    roles: Collection[str],
    levels: Collection[str],
) -> dict[str, Any]:
    """Return the outputs of each model by its name."""
    if models:
        if len(predictions) > 1:
            raise OptionError(
                f"models= needs a single file of predictions; got {len(predictions)}. "
                "Without models= each file is one model."
            )
        chosen = {}
        for model, columns in models.items():
            names = [columns] if isinstance(columns, str) else columns
            chosen[model] = predictions[0].select(names)
        return chosen
    counts = Counter(file.path.stem for file in predictions)
    chosen = {}
    for file in predictions:
        name = file.path.stem
        name = name if counts[name] == 1 else str(file.path.with_suffix(""))
        if name in chosen:
            raise OptionError(f"{str(file.path)!r} is given twice. Write each file once.")
        chosen[name] = file.select(outputs or _find_outputs(file, roles, levels))
    return chosen


def _find_outputs(file: _File, roles: Collection[str], levels: Collection[str]) -> list[str]:
    """Return the columns whose names say that they are outputs, or the only array of a file."""
    names = [name for name in file.columns if name not in roles]
    chosen = [name for name in names if name.startswith(("score_", "prob_"))]
    chosen = chosen or [name for name in names if name in levels]
    if not file.is_table and len(names) == 1:
        return names
    if not chosen:
        raise OptionError(
            f"It is not clear which columns of {file.path.name!r} are outputs of the model. "
            f"It has {format_names(file.columns)}. Write outputs=['COLUMN'], or "
            "models={'plain': 'COLUMN'} for one model per column."
        )
    return chosen
