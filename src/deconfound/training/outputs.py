"""What finished runs said about their test rows: read, measured within label groups, and audited."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.auditing import Audit, audit
from deconfound.data.delimited import typed
from deconfound.errors import DeconfoundWarning, RunError
from deconfound.metrics.columns import Column, column
from deconfound.metrics.conditional import SMALLEST_GROUP
from deconfound.metrics.distance import u_distance_correlation_sqr
from deconfound.training.problem import Problem
from deconfound.training.run_folder import FEATURES, PREDICTIONS, FoldFolder, RunFolder, open_run
from deconfound.training.splits import RowNumbers, stratum_codes
from deconfound.training.step import threads
from deconfound.training.tasks import Task, output_columns

FOLD = "test fold"
# Up to so many rows a second thread costs more than it gives, many times more where cores are shared.
ONE_THREAD = 2000


@dataclass(frozen=True)
class FoldOutputs:
    """What a fold's model says about its test rows, and every column of its table of predictions as text."""

    rows: NDArray[np.intp]
    outputs: NDArray[np.float64]
    features: NDArray[np.float32] | None
    columns: Mapping[str, list[str]]


def read_fold_outputs(fold: FoldFolder, task: Task) -> FoldOutputs:
    """Read what a finished fold has written, after a check of its digests."""
    lines = fold.lines(PREDICTIONS)
    columns = {name: [line[name] for line in lines] for name in (lines[0] if lines else ())}
    rows = np.array([int(cell) for cell in columns["row"]], dtype=np.intp)
    outputs = np.column_stack([np.array(columns[name], dtype=np.float64) for name in output_columns(task)])
    features = None
    if fold.has(FEATURES):
        with np.load(io.BytesIO(fold.read(FEATURES)), allow_pickle=False) as content:
            features = content["features"]
    return FoldOutputs(rows, outputs, features, columns)


@dataclass(frozen=True)
class RunOutputs:
    """The out-of-fold outputs of a run with their table: the arguments of `dc.audit`.

    Attributes:
        rows: Row numbers in the table as given, of the rows that have finite outputs.
        outputs: `(n, outputs)`, in the order of the rows.
        table: Labels, confounds, person and the test fold of each row.
        confounds: Columns that should not be there.
        labels: Columns that were predicted.
        person: The column that names the person of a row, or None.
        fold: The column with the test fold of a row.
        types: Types of columns that are not read by their values.
        positive: The level of each binary label that a high score stands for.
    """

    rows: NDArray[np.intp]
    outputs: NDArray[np.float64]
    table: Mapping[str, NDArray[Any]]
    confounds: list[str]
    labels: list[str]
    person: str | None
    fold: str
    types: Mapping[str, str]
    positive: Mapping[str, str]


def read_run_outputs(run: str | Path | RunFolder) -> RunOutputs:
    """The out-of-fold outputs of a finished run, from its folder alone; no code that it names is executed."""
    run = run if isinstance(run, RunFolder) else open_run(run)
    task, config = Task.from_dict(run.about["task"]), run.config
    parts = [read_fold_outputs(fold, task) for fold in run.finished_folds()]
    rows = np.concatenate([part.rows for part in parts])
    if len(np.unique(rows)) < len(rows):
        raise RunError(f"the folds of {run.path} must be tested on rows of their own; got rows in several folds.")
    confounds, person = config.design.confound_columns, config.data.person
    outputs = np.concatenate([part.outputs for part in parts])
    order = np.argsort(rows)
    order = order[np.isfinite(outputs[order]).all(1)]  # a row without a finite score cannot be measured
    fold = np.concatenate([[number] * len(part.rows) for number, part in enumerate(parts)])
    table: dict[str, NDArray[Any]] = {FOLD: fold[order]}
    for name in dict.fromkeys([*confounds, *task.labels, *([person] if person else [])]):
        table[name] = typed([cell for part in parts for cell in part.columns[name]], ".")[order]
    types = {name: kind for name, kind in config.data.audit_types.items() if name in table}
    if task.kind != "regression":
        types = dict.fromkeys(task.labels, "categorical") | types
    labels = list(task.labels)
    return RunOutputs(rows[order], outputs[order], table, confounds, labels, person, FOLD, types, task.positive)


def audit_runs(
    runs: Mapping[str, RunFolder],
    *,
    permutations: int,
    bootstraps: int,
    seed: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> Audit:
    """One audit of the out-of-fold outputs of several runs on the same rows, fold by fold."""
    found = {name: read_run_outputs(run) for name, run in runs.items()}
    first = next(iter(found.values()))
    for name, each in found.items():
        if (each.confounds, each.labels, each.positive) != (first.confounds, first.labels, first.positive):
            raise RunError(
                f"runs must have the same confounds and labels to be audited together; got others in {name!r}."
            )
    common = reduce(np.intersect1d, [each.rows for each in found.values()])
    tables = {name: _at(each, common) for name, each in found.items()}
    table = next(iter(tables.values()))
    for name, other in tables.items():
        _refuse_other_rows(name, other, table)
    with threads(1 if len(common) <= ONE_THREAD else None), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # the result holds them as notes
        return audit(
            {name: each.outputs[np.isin(each.rows, common)] for name, each in found.items()},
            table,
            confounds=first.confounds,
            labels=first.labels,
            person=first.person,
            fold=first.fold,
            types=first.types,
            positive=first.positive,
            permutations=permutations,
            bootstraps=bootstraps,
            seed=seed,
            embedding=False,
            progress=progress,
        )


def _at(run: RunOutputs, rows: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
    return {name: values[np.isin(run.rows, rows)] for name, values in run.table.items()}


def _refuse_other_rows(run: str, table: Mapping[str, NDArray[Any]], first: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a run on another table, or divided otherwise: its outputs would be measured as those of other rows."""
    shared = [name for name in first if name in table]
    other = [name for name in shared if not np.array_equal(first[name].astype(str), table[name].astype(str))]
    if other == [FOLD]:
        raise RunError(
            f"runs must have the same test folds to be audited together; got others in {run!r}. Train both with the "
            "same splits.seed, or audit each by itself."
        )
    if other:
        names = ", ".join(name for name in other if name != FOLD)
        raise RunError(
            f"runs must have the same rows in the same order to be audited together; got another {names} in {run!r}. "
            "Train both on one table, or audit each by itself."
        )


def audit_folders(folders: Sequence[Path], **options: Any) -> Audit:
    """`audit_runs` of the runs in these folders, called by their methods, or by their folders where these repeat."""
    runs = [open_run(folder) for folder in folders]
    methods = [run.config.method.name for run in runs]
    names = methods if len(set(methods)) == len(methods) else [str(folder) for folder in folders]
    return audit_runs(dict(zip(names, runs, strict=True)), **options)


def confound_columns(problem: Problem) -> list[Column]:
    """The confounds of all rows, as an audit reads them."""
    kinds = problem.config.data.audit_types
    return [column(name, problem.source.table[name], kinds.get(name)) for name in problem.confounds]


def left(
    said: FoldOutputs, tested: RowNumbers, confounds: list[Column], problem: Problem
) -> dict[str, dict[str, float | None]]:
    """dcor² of the outputs and of the features with each confound, within label groups of the test rows.

    `tested` are these rows in the source, which may have left out rows of the table that `said` counts.
    None where it cannot be measured: a confound that does not vary there, or label groups of fewer than four rows.
    """
    known = np.isfinite(said.outputs).all(1)
    rows = tested[known]
    labels = problem.codes[rows]
    groups = torch.from_numpy(stratum_codes([labels[:, k] for k in range(labels.shape[1])]))
    spaces = {"outputs": said.outputs} | ({} if said.features is None else {"features": said.features})
    return {
        space: {
            item.name: _within(torch.from_numpy(values[known]).double(), item.take(torch.from_numpy(rows)), groups)
            for item in confounds
        }
        for space, values in spaces.items()
    }


def _within(values: Tensor, confound: Column, groups: Tensor) -> float | None:
    found = []
    for group in torch.unique(groups):
        rows = (groups == group) & confound.present
        part = confound.take(rows)
        if int(rows.sum()) >= SMALLEST_GROUP and len(torch.unique(part.values)) > 1:
            found.append(float(u_distance_correlation_sqr(values[rows], part.encoded)))
    return float(np.mean(found)) if found else None
