"""Outputs read as answers to the labels: which number stands for which class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.auditing.class_names import (
    NamedOutputs,
    class_order,
    listed_names,
    names_of,
    places_of,
    same_class,
    sorted_levels,
    with_other_classes,
)
from deconfound.design.table import as_array, in_rows, is_missing, level_text, plain
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
# A probability that was rounded to two digits is wrong by this at most, and a row's sum by so much for each of them.
ROUNDING = 0.005
# Sums of float16 miss 1 by less than this, and probabilities of float32 leave [0, 1] by less than the other.
NEAR_ONE, NEAR = 1e-3, 1e-6
# One spoilt row does not make logits of all the others.
NEARLY_ALL = 0.99
Score = tuple[str, Tensor, Tensor]


@dataclass(frozen=True)
class Answers:
    """What the outputs say about every label, beside the truth.

    `right (n,)` is 1 where all labels are met, `scores` one `(n,)` score and one 0/1 truth per label and class (for a
    numeric label the predicted and the true number), `reading` how the outputs were read, `probabilities` whether the
    scores are some, `groups (n,)` the combination of labels, `units` and `folds` the person and test fold of each row,
    `other` is 1 where the predicted class is none of the label's.
    """

    right: Tensor
    scores: tuple[Score, ...]
    reading: str
    groups: Tensor
    units: Tensor
    folds: Tensor
    other: Tensor
    probabilities: bool = False
    numeric: bool = False

    @property
    def binary(self) -> bool:
        """Whether there is one score for one label of two levels."""
        return len(self.scores) == 1 and not self.numeric

    def take(self, rows: Tensor) -> "Answers":
        """The answers at these rows."""
        columns = {name: getattr(self, name)[rows] for name in ("right", "groups", "units", "folds", "other")}
        scores = tuple((name, score[rows], truth[rows]) for name, score, truth in self.scores)
        return replace(self, scores=scores, **columns)


@dataclass(frozen=True)
class Outputs:
    """Outputs as `values (n, k)` float64, and the class of each column where names tell it; () where the order does.

    `names` are those of columns that were neither classes nor brought into another order.
    """

    values: Tensor
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def read_outputs(
    outputs: Any, labels: Sequence[Column], model: str, space: str = "outputs", classes: Sequence[str] = ()
) -> Outputs:
    """Outputs as numbers; predicted classes given as text become one column per class, as `classes` has them.

    Columns of a DataFrame that are called by the classes, or by several labels, are brought into their order, unless
    `classes` says what each of them stands for.
    """
    what = f"{space} of {model!r}"
    called = [] if classes else names_of(outputs)
    if isinstance(outputs, Tensor):
        outputs = tensor(outputs.detach(), what).cpu().double().numpy()
    elif np.ma.is_masked(outputs):
        raise ShapeError(f"{what} must be there in every row; got masked ones. Leave these rows out.")
    elif hasattr(outputs, "iloc") and getattr(outputs, "ndim", 1) == 2 and labels and not classes:
        wanted = [label.name for label in labels] if len(labels) > 1 else sorted_levels(labels[0].levels)
        places = places_of(wanted, [str(name) for name in outputs.columns])
        called = [] if class_order(called, wanted) else called
        outputs = outputs.iloc[:, places]
    elif isinstance(outputs, NamedOutputs):
        outputs = outputs.values
    try:
        array = np.asarray(outputs)
    except (ValueError, TypeError) as error:
        raise ShapeError(f"{what} must have shape (n,) or (n, k); got {error}.") from error
    if array.ndim == 0:
        raise ShapeError(f"{what} must have shape (n,) or (n, k); got a single {array.item()!r}.")
    if not array.size:
        raise ShapeError(f"{what} must have shape (n,) or (n, k); got {array.shape}, which is empty.")
    found = tuple(classes)
    if array.dtype.kind not in "biuf":
        array, found = _from_objects(array, labels, what, classes)
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
    if len(labels) == 1 and not found:
        found = with_other_classes(called, labels[0].levels, _are_probabilities(numbers))
    if len(labels) == 1 and labels[0].kind == "categorical" and (odd := other_codes(numbers, labels[0])):
        found = (*labels[0].levels, *odd)
        numbers = (numbers == torch.tensor([float(name) for name in found], dtype=torch.float64)).double()
    return Outputs(numbers, found, tuple(called) if len(called) == numbers.shape[1] else ())


def other_codes(outputs: Tensor, label: Column) -> list[str]:
    """The whole numbers in one column of few, two of them codes of the label, that are none of its codes; else []."""
    if outputs.shape[1] > 1 or not all(map(reads_as_number, label.levels)) or bool((outputs != outputs.round()).any()):
        return []
    found, levels = torch.unique(outputs).tolist(), {float(level) for level in label.levels}
    few = len(found) <= MOST_CODES and len(levels & set(found)) > 1
    return [level_text(number) for number in found if number not in levels] if few else []


def _from_objects(
    array: NDArray[Any], labels: Sequence[Column], what: str, order: Sequence[str]
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Cells of any kind as numbers where all of them are, else one column per class that they name, and the classes.

    Names that the label does not have stand behind its own classes.
    """
    cells = [None if is_missing(value) else plain(value) for value in array.ravel().tolist()]
    text = [place for place, cell in enumerate(cells) if isinstance(cell, str)]
    if not text and all(cell is None or isinstance(cell, int | float) for cell in cells):
        numbers = np.array([np.nan if cell is None else cell for cell in cells], np.float64)
        return numbers.reshape(array.shape), tuple(order)
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
    names = [same_class(name, levels) for name in named.levels]
    if levels and not set(names) & set(levels):
        raise TableError(
            f"{what} must name classes of {labels[0].name!r} ({listed_names(levels)}); got {listed_names(names)}. "
            "Write both alike, or choose other columns."
        )
    classes = (*levels, *dict.fromkeys(name for name in names if name not in levels))
    codes = [classes.index(names[int(code)]) for code in named.values.tolist()]
    return np.eye(len(classes))[codes], classes


def answers(
    outputs: Tensor,
    labels: Sequence[Column],
    classes: Sequence[str] = (),
    units: Tensor | None = None,
    folds: Tensor | None = None,
) -> Answers | None:
    """Read `outputs (n, k)` as answers: a score per binary label, a score per class, or a predicted number.

    Columns of classes are in the order of `classes`, by default the sorted one, as scikit-learn's; a row for which a
    class is predicted that the label lacks is wrong. Each row is a person of its own, and all are one test fold, where
    nothing else is said. None where the number of columns fits neither, as for hidden features, where no column stands
    for a class of the label, or where a label has a single level.
    """
    n, k = outputs.shape
    if not labels or any(len(label.levels) == 1 for label in labels) or (classes and len(labels) > 1):
        return None
    rows: dict[str, Any] = {
        "groups": category_codes(labels, n),
        "units": torch.arange(n) if units is None else units,
        "folds": torch.zeros(n, dtype=torch.long) if folds is None else folds,
        "other": torch.zeros(n),
    }
    label = labels[0]
    if any(label.kind == "numeric" for label in labels):
        if len(labels) > 1 or k > 1 or classes:
            return None
        number = ((label.name, outputs[:, 0], label.values),)
        return Answers(torch.zeros(n), number, f"the output is the predicted {label.name}", **rows, numeric=True)
    if k == 1 and len(labels) == 1 and (codes := _class_codes(outputs[:, 0], label)) is not None:
        chosen = torch.nn.functional.one_hot(codes, len(label.levels)).double()
        reading = f"the output is the predicted class of {label.name} ({', '.join(label.levels)})"
        return _classes(chosen, label, label.levels, reading, rows)
    if (cut := binary_cut(outputs, labels)) is not None:
        return _binary(outputs, labels, cut, rows)
    order = tuple(classes) or sorted_levels(label.levels)
    if len(labels) == 1 and k == len(order) and set(label.levels) <= set(order):
        reading = f"the highest of {k} columns is the predicted {label.name} ({', '.join(order)}, in this order)"
        return _classes(outputs, label, order, reading, rows)
    return None


def binary_cut(outputs: Tensor, labels: Sequence[Column]) -> float | None:
    """Above what an output means the later level, where each column is the score of a binary label; else None."""
    if not labels or outputs.shape[1] != len(labels) or any(label.kind != "binary" for label in labels):
        return None
    if len(labels) == 1 and _class_codes(outputs[:, 0], labels[0]) is not None:
        return None
    return 0.5 if _from_0_to_1(outputs, NEAR) else 0.0


def _binary(outputs: Tensor, labels: Sequence[Column], cut: float, rows: dict[str, Any]) -> Answers:
    probabilities = cut > 0
    outputs = outputs.clamp(0, 1) if probabilities else outputs
    truth = torch.stack([label.values for label in labels], dim=1)
    right = ((outputs > cut).double() == truth).all(1).double()
    scores = tuple((label.name, outputs[:, i], (truth[:, i] == 1).double()) for i, label in enumerate(labels))
    high = ", ".join(f"{label.name} = {label.levels[1]}" for label in labels)
    reading = f"{'probabilities' if probabilities else 'scores'} above {cut:g} mean {high}"
    return Answers(right, scores, reading, **rows, probabilities=probabilities)


def _classes(outputs: Tensor, label: Column, order: Sequence[str], reading: str, rows: dict[str, Any]) -> Answers:
    """One column per class, in this order; for two classes one score says it all."""
    levels = [*label.levels, *(name for name in order if name not in label.levels)]
    chance, made = _probabilities(outputs)
    chance, reading = chance[:, torch.tensor([order.index(level) for level in levels])], reading + made
    chosen = chance.argmax(1)
    right = (chosen == label.values).double()
    rows = rows | {"other": (chosen >= len(label.levels)).double()}
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


def _probabilities(outputs: Tensor) -> tuple[Tensor, str]:
    """Class probabilities and how they were made: the outputs where they already are some, else their softmax."""
    if not _are_probabilities(outputs):
        return outputs.softmax(1), "; their softmax is taken as probabilities"
    sums = outputs.sum(1, keepdim=True)
    if bool(((sums - 1).abs() < NEAR_ONE).all()):
        return outputs, ""
    return outputs / sums.clamp_min(NEAR), "; rounded probabilities, each row divided by its sum"


def _are_probabilities(outputs: Tensor) -> bool:
    """Whether nearly every row adds up to 1, but for rounding, and none leaves [0, 1]."""
    near = (outputs.sum(1) - 1).abs() < outputs.shape[1] * ROUNDING + NEAR_ONE
    return _from_0_to_1(outputs, NEAR_ONE) and float(near.double().mean()) >= NEARLY_ALL


def _from_0_to_1(outputs: Tensor, near: float) -> bool:
    return bool(((outputs >= -near) & (outputs <= 1 + near)).all())
