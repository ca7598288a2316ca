"""Weights of a fold's rows under which labels and confounds are independent, from the rows it is trained on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.design import Balance
from deconfound.design.balance import balance
from deconfound.design.balance_report import effective_size
from deconfound.errors import DeconfoundError, DeconfoundWarning
from deconfound.metrics.performance import weighted_auc
from deconfound.training.splits import Fold, RowNumbers
from deconfound.training.tasks import has_score

if TYPE_CHECKING:
    from deconfound.training.problem import Problem


@dataclass(frozen=True)
class FoldBalance:
    """How a fold's rows count.

    Attributes:
        train: The balance of the training rows, from these alone.
        validation: The weights of the validation rows, `(n, labels)` and by row `(n,)`, from training and validation
            rows together: they are too few to be balanced by themselves.
        prior_shift: What is added to the logits `(outputs,)` so that they answer at the prevalence of the training
            rows; weights let the network train at another one.
    """

    train: Balance
    validation: tuple[NDArray[np.float64], NDArray[np.float64]]
    prior_shift: NDArray[np.float64]


def balance_fold(problem: Problem, fold: Fold, kind: Literal["overlap", "inverse", "entropy"]) -> FoldBalance:
    """Weigh the training and validation rows of a fold; test rows are not looked at."""
    both = np.concatenate([fold.train, fold.validation])
    train, joint = _balance(problem, fold.train, kind), _balance(problem, both, kind)
    held = joint.weights[len(fold.train) :], joint.row_weight[len(fold.train) :]
    return FoldBalance(train, held, _prior_shift(problem, fold.train, train.weights))


def independent_performance(problem: Problem, rows: RowNumbers, logits: Tensor) -> dict[str, float]:
    """The headline of a task under weights of the tested rows that make labels and confounds independent.

    With the effective number of rows that the weights leave; NaN where there are no such weights. They touch no model.
    """
    task, known = problem.task, has_score(logits)
    names = "independent_r2" if task.kind == "regression" else "independent_auc", "independent_rows"
    try:
        found = _balance(problem, rows[known.numpy()], "entropy" if task.kind == "regression" else "overlap")
    except DeconfoundError:
        return dict.fromkeys(names, float("nan"))
    true, said = torch.from_numpy(problem.codes[rows])[known], logits.double()[known]
    weights = torch.from_numpy(found.weights)
    if task.kind == "multiclass":
        true, weights = (true == torch.arange(task.outputs)).double(), weights.expand(-1, task.outputs)
    values = []
    for score, target, weight in zip(said.T, true.T, weights.T, strict=True):
        if task.kind == "regression":
            centred = target - (weight @ target) / weight.sum()
            values.append(1 - weight @ (score - target).square() / (weight @ centred.square()))
        else:
            values.append(weighted_auc(torch.unique(score, return_inverse=True)[1], target, weight[None])[0])
    rows_left = min(effective_size(column) for column in found.weights.T)
    return dict(zip(names, (float(torch.stack(values).nanmean()), rows_left), strict=True))


def _balance(problem: Problem, rows: RowNumbers, kind: Literal["overlap", "inverse", "entropy"]) -> Balance:
    config, labels = problem.config, list(problem.task.labels)
    columns = {name: np.asarray(problem.source.table[name])[rows] for name in [*problem.confounds, *labels]}
    types = config.data.types_of(columns)
    if problem.task.kind != "regression":
        types |= dict.fromkeys(labels, "categorical")
    with warnings.catch_warnings(action="ignore", category=DeconfoundWarning):  # the fold's result has the report
        return balance(columns, labels, problem.terms[0], kind, types=types, missing=config.design.missing)


def _prior_shift(problem: Problem, rows: RowNumbers, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """`log π − log π_w` of each class, of two classes the difference of their log odds."""
    task, codes = problem.task, problem.codes[rows]
    if task.kind == "regression":
        return np.zeros(task.outputs)
    if task.kind == "multiclass":
        member = codes[:, [0]] == np.arange(task.outputs)
        shift: NDArray[np.float64] = np.log(member.mean(0) / np.average(member, axis=0, weights=weights[:, 0]))
        return shift

    def log_odds(share: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log(share) - np.log1p(-share)

    return log_odds(codes.mean(0)) - log_odds((codes * weights).sum(0) / weights.sum(0))
