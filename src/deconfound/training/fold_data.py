"""What one fold may see of a run's problem: rows encoded, scaled and weighed by what its training rows show alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.design import Design
from deconfound.methods import TrainingBatch
from deconfound.training.augment import Key, augmented
from deconfound.training.problem import Problem
from deconfound.training.samples import ROWWISE
from deconfound.training.scaling import Scaler, fit_scaler
from deconfound.training.splits import Fold, RowNumbers, stratum_codes
from deconfound.training.step import drawn_weights, seed_for, shuffled
from deconfound.training.tasks import targets
from deconfound.training.w_scores import controls_at

# Rows that are read at a time where nothing is trained on them.
AT_ONCE = 256
NUMBERS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Part:
    """Rows of one fold, encoded once.

    Attributes:
        rows: Row numbers in the source.
        metadata: `(n, p)`; of the test rows the labels are NaN.
        target: What the criterion reads.
        controls: One boolean per row, or None.
        weight: How much a row counts in the loss, `(n, labels)`, or None.
        layer_weight: How much it counts in layers and refit, `(n,)`, or None.
        stratum: The number of each row's stratum, for the loss within strata.
        draw: The probability by which each row is drawn in an epoch; None takes every row once.
    """

    rows: RowNumbers
    metadata: Tensor
    target: Tensor
    controls: Tensor | None
    weight: Tensor | None = None
    layer_weight: Tensor | None = None
    stratum: Tensor | None = None
    draw: NDArray[np.float64] | None = None

    def at(self, positions: NDArray[np.intp]) -> dict[str, Tensor]:
        """What a `TrainingBatch` holds of these rows beside their samples."""
        return {name: value[positions] for name in ROWWISE if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class FoldData:
    """What one fold is trained and tested on; all that is fitted here saw the training rows alone.

    `units` bring outputs back: `target_mean` and `target_scale` of a numeric label, `prior_shift` of weighted classes.
    """

    problem: Problem
    fold: Fold
    design: Design
    scaler: Scaler
    units: Mapping[str, list[float]]
    train: Part
    validation: Part
    test: Part

    def samples(self, rows: RowNumbers, key: Key | None = None) -> Tensor:
        """Standardised samples of these rows; with a key, augmented before."""
        x = self.problem.source.read(rows)
        if key is not None:
            x = augmented(torch.from_numpy(x), self.problem.config.training.augment, key).numpy()
        return torch.from_numpy(self.scaler(x))

    def training(self) -> Iterator[TrainingBatch]:
        """The training rows once, with their table; where rows are drawn by weight, as many rows drawn so."""
        order = np.arange(len(self.train.rows))
        if self.train.draw is not None:
            order = np.sort(shuffled(len(order), seed_for(self.fold.name, "fit"), 0, self.train.draw))
        for start in range(0, len(order), AT_ONCE):
            at = order[start : start + AT_ONCE]
            rows = self.train.rows[at]
            more: dict[str, Any] = {**self.train.at(at), "table": self.problem.table_at(rows)}
            yield TrainingBatch(self.samples(rows), **more)


def fold_data(problem: Problem, number: int) -> FoldData:
    """Fit design, scaler and target scale on the training rows of a fold, and encode all its rows."""
    fold, design = problem.folds[number], problem.design(number)
    mean, scale = np.zeros(1), np.ones(1)
    if problem.task.kind == "regression":
        mean, scale = problem.codes[fold.train].mean(0), problem.codes[fold.train].std(0)
        scale = np.where(scale > 0, scale, 1.0)

    weights, drawn = problem.balance(number), problem.config.training.balance_by == "sample"

    def part(
        rows: RowNumbers, labels: bool, weight: NDArray[Any] | None = None, in_layers: NDArray[Any] | None = None
    ) -> Part:
        metadata = torch.from_numpy(design.encode(problem.table_at(rows, labels)))
        target = targets(problem.task, problem.codes[rows], mean, scale)
        counts = [None if each is None else torch.from_numpy(each.astype(np.float32)) for each in (weight, in_layers)]
        controls = torch.from_numpy(controls_at(problem, rows)) if problem.config.data.controls else None
        return Part(rows, metadata, target, controls, counts[0], counts[1], _stratum(problem, rows))

    if weights is None:
        train, validation = part(fold.train, True), part(fold.validation, True)
        shift = np.zeros(problem.task.outputs)
    else:
        own, by_row = weights.train.weights, weights.train.row_weight
        draw, rest = drawn_weights(own, by_row) if drawn else (None, own)
        in_layers = by_row if draw is None else None if rest is None else np.ones(len(own))
        train = replace(part(fold.train, True, rest, in_layers), draw=draw)
        validation, shift = part(fold.validation, True, *weights.validation), weights.prior_shift
    parts = train, validation, part(fold.test, False)
    units = {"target_mean": mean.tolist(), "target_scale": scale.tolist(), "prior_shift": shift.tolist()}
    return FoldData(problem, fold, design, _scaler(problem, fold), units, *parts)


def _scaler(problem: Problem, fold: Fold) -> Scaler:
    data, source = problem.config.data, problem.source
    if data.scale == "none" and data.missing_features == "error":
        return Scaler()
    at_once = max(1, min(AT_ONCE, NUMBERS_AT_ONCE // math.prod(source.shape)))
    blocks = (fold.train[start : start + at_once] for start in range(0, len(fold.train), at_once))
    fitted = fit_scaler((source.read(block) for block in blocks), by_channel=data.scale == "channels")
    return fitted if data.scale != "none" else Scaler(fitted.mean)


def _stratum(problem: Problem, rows: RowNumbers) -> Tensor | None:
    name = problem.config.training.within
    if name is None:
        return None
    return torch.from_numpy(stratum_codes([np.asarray(problem.source.table[name])])[rows].astype(np.int64))
