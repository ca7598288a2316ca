"""Labels with the outputs of a model, scored in many bootstrap samples of the same rows.

A label of classes is scored by AUCs and balanced accuracy, a numeric one by R², correlation and
absolute error. Both offer the same methods, so honest performance has one form for all labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import nan
from typing import Literal

import numpy as np

from deconfound.errors import OptionError
from deconfound.metrics.arrays import Array
from deconfound.metrics.sampled_scores import (
    Flags,
    RowNumbers,
    absolute_error_of_samples,
    accuracy_of_samples,
    auc_within_cells,
    correlation_within_cells,
    mean_of_classes,
    r_squared_of_samples,
)

LabelKind = Literal["binary", "classes", "numeric"]


class Label(ABC):
    """A label and the outputs of a model for it.

    The weights of all methods have shape `(samples, n)`, and the results shape `(samples,)`.

    Attributes:
        kind: The kind of the label.
        classes: The rows of each class that occurs, shape `(n,)` each; all rows if it is numeric.
        is_predicted: False if there are scores but no predicted classes.
        group_score_is_error: True if a larger score of a group is worse.
    """

    kind: LabelKind
    classes: Sequence[Flags]
    is_predicted: bool = True
    group_score_is_error: bool = False

    @abstractmethod
    def score(self, folds: Sequence[RowNumbers], weights: Array) -> Array:
        """Return the score on all rows, for the rows of each test fold."""

    @abstractmethod
    def score_within(self, cells: Sequence[RowNumbers], weights: Array) -> Array:
        """Return the score within cells, for the rows of each stratum in each test fold."""

    @abstractmethod
    def score_group(self, members: Flags, weights: Array) -> Array:
        """Return the score of the predictions for some rows, shape `(n,)`."""


class ClassLabel(Label):
    """A label of two or more classes.

    Args:
        outputs: Shape `(n, 1)`: the score of being a case. Shape `(n, k)`: a score for each class.
        truth: 0 or 1, or the column of the true class, shape `(n,)`.
        threshold: The score from which a row is predicted to be a case. Several classes need none,
            because the highest score is the prediction.
    """

    def __init__(self, outputs: Array, truth: Array, threshold: float | None) -> None:
        columns = outputs.shape[1]
        members = [truth == code for code in range(max(columns, 2))]
        self.kind = "binary" if columns == 1 else "classes"
        self.classes = [rows for rows in members if rows.any()]
        self._scores = list(outputs.T)
        # Controls against cases would have the same AUC as cases against controls.
        self._cases = members[1:] if columns == 1 else members
        self.is_predicted = columns > 1 or threshold is not None
        cut = nan if threshold is None else threshold
        predicted = outputs.argmax(axis=1) if columns > 1 else outputs[:, 0] >= cut
        self._is_correct = predicted == truth

    def score(self, folds: Sequence[RowNumbers], weights: Array) -> Array:
        """Return the AUC within folds; the mean over classes against the rest if there are more."""
        pairs = zip(self._scores, self._cases, strict=True)
        return mean_of_classes([auc_within_cells(*pair, folds, weights) for pair in pairs])

    def score_within(self, cells: Sequence[RowNumbers], weights: Array) -> Array:
        """Return the AUC within cells; the mean over classes against the rest if there are more."""
        return self.score(cells, weights)

    def score_group(self, members: Flags, weights: Array) -> Array:
        """Return the balanced accuracy."""
        groups = [members & rows for rows in self.classes]
        return mean_of_classes(
            [accuracy_of_samples(self._is_correct, group, weights) for group in groups]
        )


class NumericLabel(Label):
    """A label of numbers.

    Args:
        predicted: Predictions in the unit of the truth, shape `(n,)`.
        truth: Shape `(n,)`.
    """

    kind = "numeric"
    group_score_is_error = True

    def __init__(self, predicted: Array, truth: Array) -> None:
        self.classes = [np.ones(len(truth), dtype=bool)]
        self._predicted = predicted
        self._truth = truth

    def score(self, folds: Sequence[RowNumbers], weights: Array) -> Array:
        """Return R². Folds do not matter, because predictions of all networks have one unit."""
        return r_squared_of_samples(self._predicted, self._truth, weights)

    def score_within(self, cells: Sequence[RowNumbers], weights: Array) -> Array:
        """Return the correlation after both sides lose the means of the cells."""
        return correlation_within_cells(self._predicted, self._truth, cells, weights)

    def score_group(self, members: Flags, weights: Array) -> Array:
        """Return the mean absolute error."""
        return absolute_error_of_samples(self._predicted, self._truth, members, weights)


def read_label(outputs: Array, truth: Array, threshold: float | None) -> Label:
    """Return the label; its kind follows from the shape of the outputs and the values of the truth.

    Args:
        outputs: Shape `(n, k)`.
        truth: Shape `(n,)`.
        threshold: See `ClassLabel`.
    """
    columns = outputs.shape[1]
    if columns == 1 and not np.isin(truth, [0, 1]).all():
        return NumericLabel(outputs[:, 0], truth)
    if columns > 1 and not np.isin(truth, np.arange(columns)).all():
        raise OptionError(
            f"`truth` runs from {truth.min():g} to {truth.max():g}, and `scores` has {columns} "
            f"columns. Pass whole numbers from 0 to {columns - 1}, the columns of the true classes."
        )
    return ClassLabel(outputs, truth, threshold)
