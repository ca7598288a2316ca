"""Weights of a fold's rows under which labels and confounds are independent, from the rows it is trained on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from deconfound.design import Balance
from deconfound.design.balance import balance
from deconfound.errors import DeconfoundWarning
from deconfound.training.splits import Fold, RowNumbers

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


def _balance(problem: Problem, rows: RowNumbers, kind: Literal["overlap", "inverse", "entropy"]) -> Balance:
    config, labels = problem.config, list(problem.task.labels)
    columns = {name: np.asarray(problem.source.table[name])[rows] for name in problem.confounds}
    columns |= {name: np.asarray(problem.source.table[name])[rows] for name in labels}
    types: dict[str, Any] = {name: kind for name, kind in config.data.types.items() if name in columns}
    if problem.task.kind != "regression":
        types |= dict.fromkeys(labels, "categorical")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # the result of the fold holds the report
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
