"""Outputs read as answers to the labels: which number stands for which class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.design.table import as_array, in_rows, is_missing, plain
from deconfound.design.units import reads_as_number
from deconfound.errors import ShapeError, TableError
from deconfound.metrics.checks import tensor
from deconfound.metrics.columns import Column, category_codes, column

# Texts that are more different numbers than this are numbers with typing errors, no class names.
MOST_CODES = 20
# Many texts of which most have fewer rows than this are names of rows, no class names.
ROWS_OF_A_CLASS = 5
# Squares and products of larger outputs are not numbers.
LARGEST = 1e75
Score = tuple[str, Tensor, Tensor]


@dataclass(frozen=True)
class Answers:
    """What the outputs say about every label, beside the truth.

    `right (n,)` is 1 where all labels are met, `scores` one `(n,)` score and one 0/1 truth per label and class (for a
    numeric label the predicted and the true number), `reading` how the outputs were read, `probabilities` whether the
    scores are some, `groups (n,)` the combination of labels, `units` and `folds` the person and test fold of each row.
    """

    right: Tensor
    scores: tuple[Score, ...]
    reading: str
    groups: Tensor
    units: Tensor
    folds: Tensor
    probabilities: bool = False
    numeric: bool = False

    @property
    def binary(self) -> bool:
        """Whether there is one score for one label of two levels."""
        return len(self.scores) == 1 and not self.numeric

    def take(self, rows: Tensor) -> "Answers":
        """The answers at these rows."""
        columns = {name: getattr(self, name)[rows] for name in ("right", "groups", "units", "folds")}
        scores = tuple((name, score[rows], truth[rows]) for name, score, truth in self.scores)
        return replace(self, scores=scores, **columns)


def numbers_of(
    outputs: Any, labels: Sequence[Column], model: str, space: str = "outputs", classes: Sequence[str] = ()
) -> Tensor:
    """Outputs as `(n, k)` float64; predicted classes given as text become one column per class, as `classes` has them.

    Columns of a DataFrame that are called by the classes, or by several labels, are brought into their order, unless
    `classes` says what each of them stands for.
    """
    what = f"{space} of {model!r}"
    if isinstance(outputs, Tensor):
        outputs = tensor(outputs.detach(), what).cpu().double().numpy()
    elif np.ma.is_masked(outputs):
        raise ShapeError(f"{what} must be there in every row; got masked ones. Leave these rows out.")
    elif hasattr(outputs, "iloc") and getattr(outputs, "ndim", 1) == 2 and labels and not classes:
        wanted = [label.name for label in labels] if len(labels) > 1 else sorted_levels(labels[0].levels)
        outputs = outputs.iloc[:, places_of(wanted, [str(name) for name in outputs.columns])]
    try:
        array = np.asarray(outputs)
    except (ValueError, TypeError) as error:
        raise ShapeError(f"{what} must have shape (n,) or (n, k); got {error}.") from error
    if array.ndim == 0:
        raise ShapeError(f"{what} must have shape (n,) or (n, k); got a single {array.item()!r}.")
    if not array.size:
        raise ShapeError(f"{what} must have shape (n,) or (n, k); got {array.shape}, which is empty.")
    if array.dtype.kind not in "biuf":
        array = _from_objects(array, labels, what, classes)
    if array.ndim > 2:
        array = array.reshape(len(array), -1)
    numbers = torch.from_numpy(as_array(array, what)).double()
    numbers = numbers[:, None] if numbers.ndim == 1 else numbers
    if not numbers.isfinite().all():
        wrong = (~numbers.isfinite()).any(1).nonzero()[:, 0].tolist()
        raise ShapeError(
            f"{what} must be finite; got {numbers[wrong[0]].tolist()[:3]} {in_rows(wrong)}. Leave these "
            "rows out of outputs and table."
        )
    if (largest := float(numbers.abs().max())) > LARGEST:
        raise ShapeError(f"{what} must lie within ±{LARGEST:g}; got {largest:g}. Rescale them, or look why they grew.")
    return numbers


def _from_objects(
    array: NDArray[Any], labels: Sequence[Column], what: str, order: Sequence[str]
) -> NDArray[np.float64]:
    """Cells of any kind as numbers where all of them are, else one column per class that they name."""
    cells = [None if is_missing(value) else plain(value) for value in array.ravel().tolist()]
    text = [place for place, cell in enumerate(cells) if isinstance(cell, str)]
    if not text and all(cell is None or isinstance(cell, int | float) for cell in cells):
        return np.array([np.nan if cell is None else cell for cell in cells], np.float64).reshape(array.shape)
    width = array.size // len(array)
    slips = [place for place in text if not reads_as_number(cells[place])]
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
    levels = tuple(order) or (sorted_levels(labels[0].levels) if len(labels) == 1 else ())
    if len(named.levels) > max(MOST_CODES, len(levels), len(array) // ROWS_OF_A_CLASS):
        raise TableError(
            f"{what} must be numbers, or one column of class names; got {len(named.levels):,} different texts, such as "
            f"{named.levels[0]!r}. Choose other columns."
        )
    classes = levels if set(named.levels) <= set(levels) else named.levels
    codes = [classes.index(named.levels[int(code)]) for code in named.values.tolist()]
    return np.eye(len(classes))[codes]


def answers(
    outputs: Tensor,
    labels: Sequence[Column],
    classes: Sequence[str] = (),
    units: Tensor | None = None,
    folds: Tensor | None = None,
) -> Answers | None:
    """Read `outputs (n, k)` as answers: a score per binary label, a score per class, or a predicted number.

    Columns of classes are in the order of `classes`, by default the sorted one, as scikit-learn's. Each row is a person
    of its own, and all are one test fold, where nothing else is said. None where the number of columns fits neither, as
    for hidden features, or where a label has a single level.
    """
    n, k = outputs.shape
    if not labels or any(len(label.levels) == 1 for label in labels):
        return None
    rows: dict[str, Any] = {
        "groups": category_codes(labels, n),
        "units": torch.arange(n) if units is None else units,
        "folds": torch.zeros(n, dtype=torch.long) if folds is None else folds,
    }
    label = labels[0]
    if any(label.kind == "numeric" for label in labels):
        if len(labels) > 1 or k > 1:
            return None
        number = ((label.name, outputs[:, 0], label.values),)
        return Answers(torch.zeros(n), number, f"the output is the predicted {label.name}", **rows, numeric=True)
    if k == 1 and len(labels) == 1 and (codes := _class_codes(outputs[:, 0], label)) is not None:
        chosen = torch.nn.functional.one_hot(codes, len(label.levels)).double()
        reading = f"the output is the predicted class of {label.name} ({', '.join(label.levels)})"
        return _classes(chosen, label, label.levels, reading, rows)
    if k == len(labels) and all(label.kind == "binary" for label in labels):
        return _binary(outputs, labels, rows)
    if len(labels) == 1 and k == len(label.levels):
        order = tuple(classes) or sorted_levels(label.levels)
        reading = f"the highest of {k} columns is the predicted {label.name} ({', '.join(order)}, in this order)"
        return _classes(outputs, label, order, reading, rows)
    return None


def sorted_levels(levels: Sequence[str]) -> tuple[str, ...]:
    """Levels as scikit-learn sorts classes: numbers by size, text by the alphabet."""
    if all(reads_as_number(level) for level in levels):
        return tuple(sorted(levels, key=float))
    return tuple(sorted(levels))


def class_order(outputs: Sequence[str], levels: Sequence[str]) -> tuple[str, ...]:
    """The class of each output column where their names end in the classes of a label, such as `score_AD`; else ()."""
    order = tuple(_class_at_end(name, levels) for name in outputs)
    return order if len(order) > 1 and sorted(order) == sorted(levels) else ()


def _class_at_end(name: str, levels: Sequence[str]) -> str:
    """The level after the word of outputs, or the longest level after the last separators; "" where there is none."""
    ends = [level for level in levels if name.endswith(level) and not name[: -len(level)][-1:].isalnum()]
    return name.partition("_")[2] if name.partition("_")[2] in levels else max(ends, key=len, default="")


def places_of(wanted: Sequence[str], outputs: Sequence[str]) -> list[int]:
    """The place of the column of each class or label that the names end in; all in their order where they do not."""
    order = class_order(outputs, wanted)
    return [order.index(name) for name in wanted] if order else list(range(len(outputs)))


def _binary(outputs: Tensor, labels: Sequence[Column], rows: dict[str, Any]) -> Answers:
    probabilities = bool(((outputs >= 0) & (outputs <= 1)).all())
    cut = 0.5 if probabilities else 0.0
    truth = torch.stack([label.values for label in labels], dim=1)
    right = ((outputs > cut).double() == truth).all(1).double()
    scores = tuple((label.name, outputs[:, i], (truth[:, i] == 1).double()) for i, label in enumerate(labels))
    high = ", ".join(f"{label.name} = {label.levels[1]}" for label in labels)
    reading = f"{'probabilities' if probabilities else 'scores'} above {cut:g} mean {high}"
    return Answers(right, scores, reading, **rows, probabilities=probabilities)


def _classes(outputs: Tensor, label: Column, order: Sequence[str], reading: str, rows: dict[str, Any]) -> Answers:
    """One column per class, in this order; for two classes one score says it all."""
    place = torch.tensor([order.index(level) for level in label.levels])
    chance = _probabilities(outputs)[:, place]
    right = (chance.argmax(1) == label.values).double()
    scores = tuple((level, chance[:, i], (label.values == i).double()) for i, level in enumerate(label.levels))
    if len(scores) == 2:
        reading, scores = f"{reading}; high: {label.levels[1]}", ((label.name, *scores[1][1:]),)
    return Answers(right, scores, reading, **rows, probabilities=True)


def _class_codes(output: Tensor, label: Column) -> Tensor | None:
    """The class of each row where the outputs are the label's own numbers, such as 1 and 2; not 0 and 1."""
    if not all(reads_as_number(level) for level in label.levels):
        return None
    numbers = torch.tensor([float(level) for level in label.levels], dtype=output.dtype)
    if {0.0, 1.0} >= set(numbers.tolist()) or not bool(torch.isin(output, numbers).all()):
        return None
    return (output[:, None] == numbers).double().argmax(1)


def _probabilities(outputs: Tensor) -> Tensor:
    """Class probabilities: the outputs themselves where they already are, else their softmax."""
    sums_to_one = (outputs.sum(1) - 1).abs().max() < 1e-3
    return outputs if bool(sums_to_one) and bool((outputs >= 0).all()) else outputs.softmax(1)
