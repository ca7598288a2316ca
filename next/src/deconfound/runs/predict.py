"""`predict`: the models of a run on new rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Number
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from deconfound.data import FeatureEncoder, Samples, open_samples
from deconfound.errors import OptionError, StateError, TableError, nearest_names
from deconfound.runs.folder import RUN, RunFolder, write_whole
from deconfound.runs.problem import config_words
from deconfound.runs.run import Run
from deconfound.table import read_columns
from deconfound.training import FittedModel, Task

# What a run reads, and what new rows of it are called.
WORDS = {"image": "images", "scan": "scans", "array": "arrays"}


def predict(
    run: Run | str | os.PathLike[str],
    table: Any,
    source: Any = None,
    *,
    fold: str | None = None,
    unseen: Literal["error", "mean"] | None = None,
    trust: bool = False,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> pd.DataFrame:
    """Predict new rows with the models of a run.

    Each fold has a model. Probabilities (or numbers) are their mean, unless one fold is named.

    Args:
        run: A run, or its folder.
        table: The new rows: a file, a DataFrame, or a mapping from columns to lists. It needs the
            features of a run on tables, and the confounds if the method reads them; no labels.
        source: The images, scans or arrays of these rows, as in `open_samples`.
        fold: The fold whose model predicts; None takes the mean over all.
        unseen: What a new site or an empty confound is: an error, or the mean of the training rows.
            None takes the rule of the run.
        trust: Whether code of a network of your own, or a pickled estimator of scikit-learn, may
            run. Write True only if you know where the run comes from.
        out: A .csv file to write as well. Inputs, and files of a run, are never overwritten.
        force: Whether an existing file may be replaced.

    Returns:
        One row per sample: id, a column for each output as in the run's predictions.csv, and the
        predicted class of each categorical label: "predicted", or "predicted_<label>" of several.

    Raises:
        OptionError: An argument is wrong, or the run needs code that is not trusted.
        TableError: Columns are absent, or confounds are unseen.
        StateError: The run has no finished fold.

    Example:
        >>> from deconfound.runs import predict
        >>> predict("runs/heart", {"age": [63]})
        Traceback (most recent call last):
        deconfound.errors.OptionError: There is no run in 'runs/heart': it has no file run.json. ...
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    target = None if out is None else _check_out(Path(out), (table, source), force)
    _refuse_scalars(table)
    run = run if isinstance(run, Run) else Run.load(folder)
    names = run.finished if fold is None else (fold,)
    if not names:
        raise StateError(f"No fold of the run in {str(folder)!r} is finished. Fit the run first.")
    models = [run.model(name, trust) for name in names]
    with config_words():
        samples = _open_rows(run, table, source)
        _check_columns(models, samples)
        outputs = [model.outputs(samples.x, samples.table, unseen) for model in models]
    values = [run.task.probabilities(torch.from_numpy(one)).numpy() for one in outputs]
    frame = _make_frame(run.task, samples.ids, np.mean(values, axis=0, dtype=np.float64))
    if target is not None:
        write_whole(target, frame.to_csv(index=False))
    return frame


def _check_out(path: Path, inputs: tuple[Any, ...], force: bool) -> Path:
    """Refuse a file that is an input, belongs to a run, or exists."""
    place = path.resolve()
    faults = []
    for given in inputs:
        if isinstance(given, str | os.PathLike) and _is_within(place, Path(given).resolve()):
            faults.append(f"out={str(path)!r} is an input of this prediction.")
    if any((parent / RUN).exists() for parent in place.parents):
        faults.append(f"out={str(path)!r} lies in the folder of a run, and could overwrite it.")
    if path.suffix.lower() != ".csv":
        faults.append(f"out={str(path)!r} does not end with .csv.")
    if faults:
        raise OptionError("\n".join([*faults, "Write out= with another path that ends with .csv."]))
    if place.exists() and not force:
        raise OptionError(
            f"The file {str(path)!r} exists. Choose another one, or replace it: force=True."
        )
    return place


def _is_within(path: Path, other: Path) -> bool:
    """Return True if a path is the other one, or lies in it, also under another name."""
    is_same = path.exists() and other.exists() and path.samefile(other)
    return is_same or path == other or other in path.parents


def _refuse_scalars(table: Any) -> None:
    if not isinstance(table, Mapping) or not table:
        return
    if all(isinstance(value, str | Number | None) for value in table.values()):
        name = next(iter(table))
        raise OptionError(
            "The table is one sample with single values, and a table has columns. Wrap each value "
            f"in a list: {{{name!r}: […], …}}."
        )


def _open_rows(run: Run, table: Any, source: Any) -> Samples:
    """Return the new rows as samples like those of the run."""
    about = RunFolder(run.folder).description()["samples"]
    data, kind = run.config.data, about["kind"]
    if kind != "table" and source is None:
        word = WORDS[kind]
        what = "FILE" if kind == "array" else "FOLDER"
        raise OptionError(
            f"This run reads {word}, and none are given: add --images {what} (source= in Python)."
        )
    if kind == "table" and data.table is None and source is not None:
        raise OptionError("This run reads columns of one table. Leave source= out.")
    if table is None and source is None:
        raise OptionError("There are no rows. Write table= with a file or a DataFrame.")
    options = {"features": data.features, **data.options}
    if kind == "table":
        options = {"encoder": FeatureEncoder.from_dict(about["features"])}
    first, second = (table, None) if source is None else (source, table)
    has_ids = second is not None or (kind == "table" and data.id in read_columns(first))
    return open_samples(first, second, id=data.id if has_ids else None, **options)


def _check_columns(models: list[FittedModel], samples: Samples) -> None:
    """Name all confounds that the models need and the table lacks."""
    columns = [*map(str, samples.table)]
    needed = dict.fromkeys(name for model in models for name in model.needed_columns)
    faults = [
        f"There is no column {name!r}, a confound that the models of this run need. "
        f"{nearest_names(name, columns)}"
        for name in needed
        if name not in columns
    ]
    if faults:
        raise TableError(*faults)


def _make_frame(task: Task, ids: NDArray[np.object_], values: NDArray[np.float64]) -> pd.DataFrame:
    """Return ids, outputs `(n, k)` and the predicted classes."""
    columns = dict(zip(task.column_names(), values.T, strict=True))
    frame = pd.DataFrame({"id": ids, **columns})
    if task.kind == "classes":
        return frame.assign(predicted=np.array(task.levels[0], dtype=object)[values.argmax(axis=1)])
    for place, (label, levels) in enumerate(zip(task.labels, task.levels, strict=True)):
        if levels:
            name = "predicted" if len(task.labels) == 1 else f"predicted_{label}"
            frame[name] = np.array(levels, dtype=object)[(values[:, place] >= 0.5).astype(int)]
    return frame
