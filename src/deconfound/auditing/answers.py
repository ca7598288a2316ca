"""Outputs as answers to the labels, and their performance for many weightings of the rows at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.design.table import in_rows, is_missing, plain
from deconfound.errors import ShapeError, TableError
from deconfound.metrics.columns import Column, cells_of, column
from deconfound.metrics.performance import weighted_auc
from deconfound.metrics.resampling import Estimate, Resampling, bootstrap_weights, interval

# Texts that are more different numbers than this are a quantity with slips of the pen, no class names.
MOST_CODES = 20


@dataclass(frozen=True)
class Answers:
    """What the outputs say about every label, beside the truth; rows without a label have NaN there.

    `right (n,)` is 1 where all labels are met (empty for a numeric label), `groups (n,)` the combination of
    labels, `scores` one `(n,)` score and one 0/1 truth per label and class, `reading` how the outputs were
    read.
    """

    right: Tensor
    groups: Tensor
    scores: tuple[tuple[str, Tensor, Tensor], ...]
    reading: str
    predicted: Tensor | None = None
    true: Tensor | None = None

    def take(self, rows: Tensor) -> "Answers":
        """The answers at these rows."""
        return Answers(
            self.right[rows],
            self.groups[rows],
            tuple((name, score[rows], positive[rows]) for name, score, positive in self.scores),
            self.reading,
            None if self.predicted is None else self.predicted[rows],
            None if self.true is None else self.true[rows],
        )


def numbers_of(outputs: Any, labels: Sequence[Column], model: str, space: str = "outputs") -> Tensor:
    """Outputs as `(n, k)` float64; predicted classes given as text become one column per class."""
    what = f"{space} of {model!r}"
    try:
        array = outputs.detach().cpu().double().numpy() if isinstance(outputs, Tensor) else np.asarray(outputs)
    except ValueError as error:
        raise ShapeError(f"{what} must have shape (n,) or (n, k); got {error}.") from error
    if array.ndim == 0:
        raise ShapeError(f"{what} must have shape (n,) or (n, k); got a single {array.item()!r}.")
    if not array.size:
        raise ShapeError(f"{what} must have shape (n,) or (n, k); got {array.shape}, which is empty.")
    if array.dtype.kind not in "biuf":
        array = _from_objects(array, labels, what)
    if array.ndim > 2:
        array = array.reshape(len(array), -1)
    numbers = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))
    numbers = numbers[:, None] if numbers.ndim == 1 else numbers
    if not numbers.isfinite().all():
        wrong = (~numbers.isfinite()).any(1).nonzero()[:, 0].tolist()
        raise ShapeError(
            f"{what} must be finite; got {numbers[wrong[0]].tolist()[:3]} {in_rows(wrong)}. Leave these "
            "rows out of outputs and table."
        )
    return numbers


def _from_objects(array: NDArray[Any], labels: Sequence[Column], what: str) -> NDArray[np.float64]:
    """Cells of any kind as numbers where all of them are, else one column per class that they name."""
    cells = [None if is_missing(value) else plain(value) for value in array.ravel().tolist()]
    text = [place for place, cell in enumerate(cells) if isinstance(cell, str)]
    if not text and all(cell is None or isinstance(cell, int | float) for cell in cells):
        return np.array([np.nan if cell is None else cell for cell in cells], np.float64).reshape(array.shape)
    width = array.size // len(array)
    slips = [place for place in text if not _is_number(cells[place])]
    spoilt = slips and len({cells[place] for place in text}) - len({cells[place] for place in slips}) > MOST_CODES
    if width > 1 or spoilt or array.dtype.kind in "mMcV":
        place = (slips or text or [0])[0]
        raise TableError(
            f"{what} must be numbers, or one column of class names; got {cells[place]!r} "
            f"{in_rows([slip // width for slip in slips or [place]])}. Correct these cells, or choose other columns."
        )
    empty = [row for row, cell in enumerate(cells) if cell is None]
    if empty:
        raise TableError(
            f"{what} must name a class in every row; got nothing {in_rows(empty)}. Leave these rows out "
            "of outputs and table."
        )
    named = column(what, array.ravel().tolist(), "categorical")
    levels = labels[0].levels if len(labels) == 1 else ()
    classes = levels if set(named.levels) <= set(levels) else named.levels
    codes = [classes.index(named.levels[int(code)]) for code in named.values.tolist()]
    return np.eye(len(classes))[codes]


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def answers(outputs: Tensor, labels: Sequence[Column]) -> Answers | None:
    """Read `outputs (n, k)` as answers: a score per binary label, a score per class, or a predicted quantity.

    None where their number fits neither, as for hidden features, or where a label has a single level.
    """
    k = outputs.shape[1]
    if not labels or any(len(label.levels) == 1 for label in labels):
        return None
    groups = cells_of(labels)[0]
    if len(labels) == 1 and labels[0].kind == "numeric":
        if k != 1:
            return None
        reading = f"the output is the predicted {labels[0].name}"
        return Answers(outputs[:, 0] * 0, groups * 0, (), reading, outputs[:, 0], labels[0].values)
    if k == len(labels) and all(label.kind == "binary" for label in labels):
        probabilities = bool(((outputs >= 0) & (outputs <= 1)).all())
        cut = 0.5 if probabilities else 0.0
        truth = torch.stack([label.values for label in labels], dim=1)
        right = ((outputs > cut).double() == truth).all(1).double()
        scores = tuple((label.name, outputs[:, i], (truth[:, i] == 1).double()) for i, label in enumerate(labels))
        high = ", ".join(f"{label.name} = {label.levels[1]}" for label in labels)
        sort = "probabilities" if probabilities else "scores"
        return Answers(right, groups, scores, f"{sort} above {cut:g} mean {high}")
    if len(labels) == 1 and k == len(labels[0].levels):
        label = labels[0]
        right = (outputs.argmax(1) == label.values).double()
        chance = _probabilities(outputs)
        scores = tuple((level, chance[:, i], (label.values == i).double()) for i, level in enumerate(label.levels))
        order = ", ".join(label.levels)
        return Answers(right, groups, scores, f"the highest of {k} outputs is the predicted {label.name} ({order})")
    return None


def measures(given: Answers, weights: Tensor) -> dict[str, Tensor]:
    """Every performance measure `(R,)` for each weighting `(R, n)` of the rows; NaN where a class is absent.

    Accuracy: the weighted share of right rows. Balanced accuracy: the mean of that over the label groups
    (with several labels the paper's mean of group accuracies). AUC: the mean over labels, or over classes
    against the rest. For a numeric label: R² and mean absolute error.
    """
    weights = weights.double()
    total = weights.sum(1)
    if given.predicted is not None and given.true is not None:
        error = given.true - given.predicted
        mean = (weights @ given.true) / total
        spread = weights @ given.true.square() - total * mean.square()
        return {"r2": 1 - weights @ error.square() / spread, "mean_absolute_error": weights @ error.abs() / total}
    member = (given.groups[:, None] == torch.unique(given.groups)).double()
    per_group = (weights @ (given.right[:, None] * member)) / (weights @ member)
    found = {"accuracy": weights @ given.right / total, "balanced_accuracy": per_group.nanmean(1)}
    each = [weighted_auc(score, positive, weights) for _, score, positive in given.scores]
    found["auc"] = torch.stack(each).nanmean(0)
    return found


def performance(
    given: Answers, units: Tensor, resampling: Resampling, folds: Tensor | None = None
) -> tuple[Estimate, ...]:
    """Every measure with its bootstrap interval; AUC within each fold and then averaged where folds are given."""
    n = len(given.right)
    drawn = bootstrap_weights(torch.zeros(n), units, resampling.bootstraps, resampling.generator())
    weights = torch.cat([torch.ones(1, n, dtype=drawn.dtype), drawn])
    found = measures(given, weights)
    if folds is not None and "auc" in found:
        each = [
            measures(given.take(rows), weights[:, rows])["auc"]
            for rows in ((folds == fold).nonzero()[:, 0] for fold in torch.unique(folds))
        ]
        found["auc"] = torch.stack(each).nanmean(0)
    out = []
    for statistic, values in found.items():
        value = float(values[0])
        least, most = {"r2": (-float("inf"), 1.0), "mean_absolute_error": (0.0, float("inf"))}.get(
            statistic, (0.0, 1.0)
        )
        low, high = interval(value, values[1:], least, most)
        out.append(Estimate(statistic, value, n, low, high))
    return tuple(out)


def _probabilities(outputs: Tensor) -> Tensor:
    """Class probabilities: the outputs themselves where they already are, else their softmax."""
    sums_to_one = (outputs.sum(1) - 1).abs().max() < 1e-3
    return outputs if bool(sums_to_one) and bool((outputs >= 0).all()) else outputs.softmax(1)
