"""Reading finished runs: predictions and features of the test rows, and how much of each confound they hold."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.errors import RunError
from deconfound.metrics.columns import Column, column
from deconfound.metrics.conditional import SMALLEST_GROUP
from deconfound.metrics.distance import u_distance_correlation_sqr
from deconfound.training.fold import fold_folder, prediction_columns
from deconfound.training.problem import Problem
from deconfound.training.splits import stratum_codes
from deconfound.training.tasks import Task


@dataclass(frozen=True)
class Tested:
    """What a fold's model says about its test rows.

    Attributes:
        rows: Row numbers in the source.
        outputs: Logits or predictions `(n, outputs)`.
        features: Hidden features `(n, d)`, or None.
    """

    rows: NDArray[np.intp]
    outputs: NDArray[np.float64]
    features: NDArray[np.float32] | None


def tested(run: Path, number: int, task: Task) -> Tested:
    """Read what a finished fold has written."""
    folder = fold_folder(run, number)
    path = folder / "predictions.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        names = prediction_columns(task)[: task.outputs]
        rows = np.array([int(line["row"]) for line in lines], dtype=np.intp)
        outputs = np.array([[float(line[name]) for name in names] for line in lines])
    except (OSError, KeyError, ValueError) as error:
        raise RunError(
            f"{path} must be as the run wrote it; got {error!r}. Delete {folder} and give the command again."
        ) from error
    kept = folder / "features.npz"
    features = None
    if kept.exists():
        with np.load(kept) as content:
            features = content["features"]
    return Tested(rows, outputs, features)


def confound_columns(problem: Problem) -> list[Column]:
    """The confounds of all rows, as an audit reads them."""
    types = audit_types(problem)
    return [column(name, problem.source.table[name], types.get(name)) for name in problem.confounds]


def audit_types(problem: Problem) -> dict[str, str]:
    """The config's types in the words of an audit."""
    names = {*problem.confounds, *problem.task.labels}
    kinds = {name: kind for name, kind in problem.config.data.types.items() if name in names}
    return {name: "categorical" if kind == "boolean" else kind for name, kind in kinds.items()}


def left(said: Tested, confounds: list[Column], problem: Problem) -> dict[str, dict[str, float | None]]:
    """dcor² of the outputs and of the features with each confound, within label groups of the test rows.

    None where it cannot be measured: a confound that does not vary there, or label groups of fewer than four rows.
    """
    labels = problem.codes[said.rows]
    groups = torch.from_numpy(stratum_codes([labels[:, k] for k in range(labels.shape[1])]))
    spaces: Mapping[str, Any] = {"outputs": said.outputs, "features": said.features}
    return {
        space: {item.name: _within(torch.from_numpy(values).double(), item.take(torch.from_numpy(said.rows)), groups)
                for item in confounds}
        for space, values in spaces.items()
        if values is not None
    }  # fmt: skip


def _within(values: Tensor, confound: Column, groups: Tensor) -> float | None:
    found = []
    for group in torch.unique(groups):
        rows = (groups == group) & confound.present
        part = confound.take(rows)
        if int(rows.sum()) >= SMALLEST_GROUP and len(torch.unique(part.values)) > 1:
            found.append(float(u_distance_correlation_sqr(values[rows], part.encoded)))
    return float(np.mean(found)) if found else None
