"""`predict`: the models of a run on new rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from deconfound.data import FeatureEncoder, Samples, open_samples
from deconfound.errors import OptionError, StateError, TableError
from deconfound.runs.folder import RUN, RunFolder, write_whole
from deconfound.runs.problem import config_words
from deconfound.runs.run import Run
from deconfound.table import read_columns
from deconfound.training import Task


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
            run, or a reader of your own. Write True only if you know where the run comes from.
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
    if out is not None:
        _check_out(Path(out), (table, source), force)
    run = run if isinstance(run, Run) else Run.load(run)
    names = run.finished if fold is None else (fold,)
    if not names:
        raise StateError(f"No fold of the run in {str(run.folder)!r} is finished. Fit it first.")
    models = [run.model(name, trust) for name in names]
    with config_words():
        samples = _open_rows(run, table, source, trust)
        try:
            read_columns(samples.table, models[0].needed_columns)
        except TableError as error:
            raise TableError(
                *error.faults, "The models of this run read these confounds."
            ) from None
        outputs = [model.outputs(samples.x, samples.table, unseen) for model in models]
    values = [run.task.probabilities(torch.from_numpy(one)).numpy() for one in outputs]
    frame = _make_frame(run.task, samples.ids, np.mean(values, axis=0, dtype=np.float64))
    if out is not None:
        write_whole(Path(out).resolve(), frame.to_csv(index=False))
    return frame


def _check_out(path: Path, inputs: tuple[Any, ...], force: bool) -> None:
    """Refuse a file that is an input, belongs to a run, or exists."""
    place, name = path.resolve(), f"out={str(path)!r}"
    faults = []
    for given in inputs:
        if isinstance(given, str | os.PathLike) and _is_within(place, Path(given).resolve()):
            faults.append(f"{name} is an input of this prediction.")
    if any((parent / RUN).exists() for parent in place.parents):
        faults.append(f"{name} lies in the folder of a run, and could overwrite it.")
    if path.suffix.lower() != ".csv":
        faults.append(f"{name} does not end with .csv.")
    if not faults and place.exists() and not force:
        faults.append(f"{name} exists. Replace it with force=True, or choose another name.")
    if faults:
        raise OptionError("\n".join([*faults, "Write out= with another path that ends with .csv."]))


def _is_within(path: Path, other: Path) -> bool:
    """Return True if a path is the other one, or lies in it, also under another name."""
    is_same = path.exists() and other.exists() and path.samefile(other)
    return is_same or path.is_relative_to(other)


def _open_rows(run: Run, table: Any, source: Any, trust: bool) -> Samples:
    """Return the new rows as samples like those of the run."""
    about = RunFolder(run.folder).description()["samples"]
    if source is None and _is_folder(table):
        source, table = table, None  # A BIDS folder is its own table.
    data, kind = run.config.data, about["kind"]
    options: dict[str, Any] = {"features": data.features, **data.options}
    if kind == "table":
        options = {"encoder": FeatureEncoder.from_dict(about["features"])}
        if data.table is None and source is not None:
            raise OptionError("This run reads columns of one table. Leave source= out.")
    elif source is None:
        what = "FILE" if kind == "array" else "FOLDER"
        raise OptionError(
            f"This run reads {kind}s, and none are given: add --images {what} (source= in Python)."
        )
    elif "reader" in options and not trust:
        raise OptionError(
            f"This run reads files with code that is not deconfound's: data.options.reader is "
            f"{options['reader']!r}. If you know where the run comes from, write trust=True."
        )
    elif kind in ("image", "scan") and "reader" not in options and _is_folder(source):
        # Files of another size, or grey ones, become samples of the run's shape.
        options["size"] = about["shape"]
    first, second = (table, None) if source is None else (source, table)
    has_ids = second is not None or (kind == "table" and data.id in read_columns(first))
    return open_samples(first, second, id=data.id if has_ids else None, **options)


def _is_folder(source: Any) -> bool:
    return isinstance(source, str | os.PathLike) and Path(source).is_dir()


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
