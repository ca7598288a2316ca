"""W-scores of a run: outputs standardised by the validation rows' controls with the same confounds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.design.table import level_text
from deconfound.errors import DeconfoundError, DeconfoundWarning
from deconfound.methods import WScores
from deconfound.training.splits import RowNumbers

if TYPE_CHECKING:
    from deconfound.training.problem import Problem


def controls_at(problem: Problem, rows: RowNumbers) -> NDArray[np.bool_]:
    """Which rows are controls: those that `data.controls` names, or else those without any of the labels."""
    wanted = problem.config.data.controls
    if not wanted:
        return np.asarray((problem.codes[rows] == 0).all(axis=1))
    found = np.ones(len(rows), dtype=bool)
    for name, level in wanted.items():
        cells = np.asarray(problem.source.table[name])[rows].tolist()
        found &= np.array([level_text(value) == level_text(level) for value in cells])
    return found


def fit_w_scores(problem: Problem, rows: RowNumbers, logits: NDArray[np.float64]) -> WScores:
    """Location and scale of the controls among rows that were not trained on; unseen levels are the mean."""
    known = np.isfinite(logits).all(1)
    rows, logits = rows[known], logits[known]
    config, table = problem.config, problem.table_at(rows, labels=False)
    with warnings.catch_warnings(action="ignore", category=DeconfoundWarning):  # the fold's design warns of the same
        return WScores.fit(
            logits,
            table,
            problem.terms[0],
            controls_at(problem, rows),
            types=config.data.types_of(table),
            missing=config.design.missing,
            unseen="mean",
        )


def standardised(norm: WScores, logits: Tensor, table: Mapping[str, Any]) -> Tensor:
    """Logits as at the average confounds of the controls; a row that is not finite stays so."""
    known = logits.isfinite().all(1).numpy()
    found = logits.clone()
    rows = {name: np.asarray(values)[known] for name, values in table.items()}
    if known.any():
        found[torch.from_numpy(known)] = torch.from_numpy(norm.at_average(logits.numpy()[known], rows))
    return found


def w_score_faults(problem: Problem) -> list[str]:
    """Why the validation rows of folds could not standardise outputs."""
    if problem.task.kind == "regression":
        return ["training.w_scores must be false for a numeric label, which has no controls; got true."]
    if problem.task.kind == "multiclass" and not problem.config.data.controls:
        return ["data.controls must be given with training.w_scores and more than two classes; got none."]
    faults = []
    for fold in problem.folds:
        try:
            fit_w_scores(problem, fold.validation, np.zeros((len(fold.validation), 1)))
        except DeconfoundError as fault:
            faults.append(f"training.w_scores, fold {fold.name}: {fault}")
    return faults
