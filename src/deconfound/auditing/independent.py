"""Performance where labels and confounds are independent: the same measures under weights of the audited rows."""

import warnings
from dataclasses import replace
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


def independence_weights(data: Intake) -> Tensor | Note:
    """`(n, labels)` overlap weights (entropy weights for numeric labels) of the audited rows; they touch no model.

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
    return torch.from_numpy(found.weights)


def independent_performance(given: Answers, own: Tensor, resampling: Resampling) -> list[Estimate]:
    """Every measure under the weights `own`, with its bootstrap interval, and the least effective number of rows.

    With several labels each AUC is taken under the weights of its own label; accuracies, which ask for all labels at
    once, are left out.
    """
    alone = own.shape[1] == 1
    parts = [given] if alone else [replace(given, scores=(score,)) for score in given.scores]
    functions = [within_folds(part) for part in parts]

    def mean(weights: Tensor) -> dict[str, Tensor]:
        each = [function(weights * column) for function, column in zip(functions, own.T, strict=True)]
        names = [name for name in each[0] if name != "brier_score"] if alone else ["auc"]
        return {f"{PREFIX}{name}": torch.stack([values[name] for values in each]).nanmean(0) for name in names}

    estimates = bootstrapped(mean, given.units, resampling).estimates
    rows = min(effective_size(column) for column in own.numpy().T)
    return [*estimates, Estimate(f"{PREFIX}rows", rows, len(own))]


def _cells(item: Column) -> NDArray[Any]:
    values = item.values.numpy()
    if item.kind == "numeric":
        return values
    return np.array([None if code != code else item.levels[int(code)] for code in values.tolist()], dtype=object)
