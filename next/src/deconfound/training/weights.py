"""Weights of the rows of one fold, under which label and confounds are independent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deconfound.design import balance
from deconfound.errors import OptionError, nearest_names
from deconfound.table import read_columns, to_levels
from deconfound.training.recipe import Recipe
from deconfound.training.tasks import Task

Array = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class FoldWeights:
    """Weights of training and validation rows; None where each row counts once.

    Attributes:
        draw: By which training rows are drawn in each epoch.
        design: Under which the design is fitted. A level without any weight in `draw` counts once
            here, because the design must know it.
        validation: Under which validation rows are judged, with mean 1.
        shift: What is added to outputs, shape `(k,)`: a network that was trained on drawn rows
            gives probabilities for their share of cases, not for that of the training rows.
    """

    draw: Array | None
    design: Array | None
    validation: Array | None
    shift: Array


def weigh_rows(
    table: pd.DataFrame, task: Task, train_rows: Rows, validation_rows: Rows, recipe: Recipe
) -> FoldWeights:
    """Return the weights of training and validation rows. Test rows have no part in them."""
    if recipe.balance is None:
        return FoldWeights(None, None, None, np.zeros(task.outputs))
    options = {"kind": recipe.balance, "types": recipe.types, "unseen": recipe.unseen}
    names = list(task.labels), list(recipe.confounds)
    training = balance(table.iloc[train_rows], *names, **options)  # type: ignore[arg-type]
    validation = None
    if len(validation_rows):
        # Validation rows alone are too few for a model of label and confounds.
        together = np.concatenate([train_rows, validation_rows])
        weights = balance(table.iloc[together], *names, **options)  # type: ignore[arg-type]
        validation = weights.row_weight[len(train_rows) :]
        validation = validation / validation.mean() if validation.any() else None
    shift = _shift_of_outputs(task, task.encode(table.iloc[train_rows]), training.row_weight)
    # A ranking loss pins its level to the share of cases among all training rows itself.
    shift = np.zeros(task.outputs) if recipe.loss == "ranking" else shift
    return FoldWeights(training.row_weight, training.design_weight, validation, shift)


def is_control(table: pd.DataFrame, controls: Mapping[str, str] | None) -> NDArray[np.bool_]:
    """Return for each row whether it has one of these levels; True for all without controls."""
    chosen = np.ones(len(table), dtype=bool)
    for name, level in (controls or {}).items():
        levels = to_levels(read_columns(table, [name])[name])
        if level not in levels:
            known = sorted({text for text in levels if text is not None})
            raise OptionError(
                f"controls: column {name!r} has no level {level!r}. {nearest_names(level, known)}"
            )
        chosen &= levels == level
    return chosen


def _shift_of_outputs(task: Task, target: NDArray[np.generic], weight: Array) -> Array:
    """Return log-odds of each class among the rows minus those under the weights, shape `(k,)`."""
    if task.kind == "numeric":
        return np.zeros(task.outputs)
    members = np.asarray(target, dtype=np.float64)
    if task.kind == "classes":
        members = np.eye(task.outputs)[target.astype(np.intp)]
    plain, weighted = members.mean(axis=0), np.average(members, axis=0, weights=weight)
    if task.kind == "classes":
        return np.asarray(np.log(plain) - np.log(weighted))
    return np.asarray(np.log(plain / (1 - plain)) - np.log(weighted / (1 - weighted)))
