"""Performance where labels and confounds are independent: the same measures under weights of the audited rows."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.auditing.answers import Answers
from deconfound.auditing.intake import Intake
from deconfound.auditing.performance import bootstrapped, within_folds
from deconfound.auditing.records import Note
from deconfound.design.balance import balance
from deconfound.design.balance_report import effective_size
from deconfound.errors import DeconfoundError, DeconfoundWarning
from deconfound.metrics.columns import Column
from deconfound.metrics.resampling import Estimate, Resampling

PREFIX = "independent_"


@dataclass(frozen=True)
class IndependenceWeights:
    """Weights of the audited rows under which each label is independent of all confounds.

    Attributes:
        weights: `(n, labels)`.
        rows: The effective number of rows under them, the least of the labels'.
    """

    weights: Tensor
    rows: float


def independence_weights(data: Intake) -> IndependenceWeights | Note:
    """Overlap weights (entropy weights for numeric labels), fitted to the audited rows; they touch no model.

    A note where there are none: the confounds decide the label, or too little of it varies within them.
    """
    numeric = any(label.kind == "numeric" for label in data.labels)
    names = [label.name for label in data.labels]
    table = {item.name: _cells(item) for item in [*data.confounds, *data.labels]}
    types = {item.name: "numeric" if item.kind == "numeric" else "categorical" for item in data.confounds}
    types |= dict.fromkeys(names, "numeric" if numeric else "categorical")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeconfoundWarning)
            found = balance(
                table,
                names,
                [item.name for item in data.confounds],
                "entropy" if numeric else "overlap",
                types=types,  # type: ignore[arg-type]
                missing="mean",
            )
    except DeconfoundError as fault:
        return Note("no independent rows", "note", "", f"Performance is not weighted to independence: {fault}")
    sizes = [effective_size(column) for column in found.weights.T]
    return IndependenceWeights(torch.from_numpy(found.weights), min(sizes))


def independent_performance(
    given: Answers, found: IndependenceWeights, units: Tensor, resampling: Resampling, folds: Tensor | None = None
) -> list[Estimate]:
    """Every measure under the weights, with its bootstrap interval, and the effective number of rows.

    With several labels each AUC is taken under the weights of its own label; accuracies, which ask for all labels at
    once, are left out.
    """
    alone = found.weights.shape[1] == 1
    parts = [given] if alone else [replace(given, scores=(score,)) for score in given.scores]
    functions = [within_folds(part, folds) for part in parts]

    def mean(weights: Tensor) -> dict[str, Tensor]:
        each = [function(weights * own) for function, own in zip(functions, found.weights.T, strict=True)]
        names = [name for name in each[0] if name != "brier_score"] if alone else ["auc"]
        return {f"{PREFIX}{name}": torch.stack([values[name] for values in each]).nanmean(0) for name in names}

    estimates = bootstrapped(mean, len(units), units, resampling).estimates
    return [*estimates, Estimate(f"{PREFIX}rows", found.rows, len(units))]


def _cells(item: Column) -> NDArray[Any]:
    values = item.values.numpy()
    if item.kind == "numeric":
        return values
    return np.array([None if code != code else item.levels[int(code)] for code in values.tolist()], dtype=object)
