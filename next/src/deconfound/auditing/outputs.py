"""What a model puts out: numbers, and the label and class that each column stands for.

The meaning of a column is stated, never guessed: it follows from `classes`, from the name of the
column, or from its position among columns without names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deconfound.auditing.intake import Column
from deconfound.errors import DeconfoundError, OptionError, ShapeError, TableError
from deconfound.table import format_names, format_rows, level_text, read_columns, to_numbers

Array = NDArray[np.float64]

# A column is called by a level or a label, with or without one of these words before it.
PREFIXES = ("score_", "prob_", "")
# For labels with these levels, a high score stands for the second one.
KNOWN_ORDERS = (("0", "1"), ("False", "True"))
# The square of a larger number would overflow.
LARGEST = 1e100
# Probabilities in float32 leave [0, 1] by less than this.
ROUNDING = 1e-6
# Probabilities with two digits add up to 1 within this for each class.
ROUNDED_DIGITS = 0.01


@dataclass(frozen=True, eq=False)
class LabelOutputs:
    """The outputs of a model for one label.

    Attributes:
        label: The label.
        scores: For two classes the score of the second one, shape `(n,)`; for several classes one
            column per class, shape `(n, k)`; for a numeric label its prediction, shape `(n,)`.
        classes: The classes: `(negative, positive)`, or those of the columns of `scores`; empty
            for a numeric label. A class may be absent from the table.
        threshold: The score from which a row is predicted positive, .5 for a probability and 0 for
            other scores; None for several classes and for a numeric label.
        is_probability: Whether all scores lie in [0, 1], and add up to 1 for several classes.
    """

    label: str
    scores: Array
    classes: tuple[str, ...]
    threshold: float | None
    is_probability: bool


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """The outputs of one model.

    Attributes:
        name: The model.
        matrix: All its columns, shape `(n, d)`.
        labels: The outputs for each label, in the order of the labels; empty without labels.
        reading: One sentence per label on how the columns were read.
    """

    name: str
    matrix: Array
    labels: tuple[LabelOutputs, ...]
    reading: tuple[str, ...]


def read_outputs(
    outputs: Any,
    labels: Sequence[Column],
    *,
    classes: Sequence[str] = (),
    positive: str | None = None,
    rows: int | None = None,
) -> tuple[ModelOutputs, ...]:
    """Read the outputs of one or several models.

    A column called `score_<level>`, `prob_<level>` or `<level>` is the score of that level; the
    same with the name of a label is the score of its level 1 or True, or its predicted number.
    Columns without names, or a single column with another name, are one per label in the order of
    `labels`, or one per level of a single label in sorted order.

    Args:
        outputs: An array, tensor or DataFrame with one row per row of the table, or a mapping from
            the name of a model to one of these.
        labels: The labels that the models predict.
        classes: The class of each column of a single label, in their order; for a single column
            the negative and the positive class.
        positive: The level that a high score stands for, for a label with two levels.
        rows: The number of rows of the table; None takes it from the labels.

    Raises:
        DeconfoundError: Lists the faults of all models.
    """
    if isinstance(classes, str):
        raise OptionError(
            f"classes must be a list; got {classes!r}. Write classes=[{classes!r}, …]."
        )
    words = [level_text(class_) for class_ in classes]
    high = None if positive is None else level_text(positive)
    if rows is None and labels:
        rows = len(labels[0].values)
    models, faults = [], []
    for name, values in _name_arrays(outputs, "outputs", "model").items():
        try:
            matrix, names = _read_matrix(values, f"The outputs of model {name!r}", rows)
            reader = _ColumnReader(name, matrix, names, tuple(labels), words, high)
            models.append(reader.read())
        except DeconfoundError as error:
            faults.append(error)
    if faults:
        raise type(faults[0])("\n".join(map(str, faults)))
    return tuple(models)


def read_features(features: Any, rows: int) -> dict[str, Array]:
    """Read features by name: an array, tensor or DataFrame, or a mapping from names to these.

    Args:
        features: One row per row of the table. A single array is called "features".
        rows: The number of rows of the table.
    """
    arrays = _name_arrays(features, "features", "features").items()
    return {name: _read_matrix(values, f"Features {name!r}", rows)[0] for name, values in arrays}


def _name_arrays(values: Any, argument: str, name: str) -> Mapping[str, Any]:
    """Return arrays by name; a single array is called `name`."""
    if isinstance(values, str | os.PathLike):
        raise OptionError(
            f"{argument} is the path of a file. Read files with audit_files(path, …)."
        )
    if not isinstance(values, Mapping):
        return {name: values}
    if not values or not all(isinstance(key, str) and key.strip() for key in values):
        raise OptionError(f"{argument} must map names to arrays. Write {argument}={{'{name}': …}}.")
    return values


def _read_matrix(values: Any, what: str, rows: int | None) -> tuple[Array, list[str] | None]:
    """Return the numbers of an array or table, shape `(n, d)`, and the names of its columns."""
    given = values
    try:
        if "bfloat16" in str(getattr(values, "dtype", "")):  # NumPy has no bfloat16.
            values = values.float()
        if hasattr(values, "detach"):  # A tensor of PyTorch.
            values = values.detach().cpu().numpy()
        # Tables of polars and pyarrow have columns as well.
        is_table = hasattr(values, "columns")
        if not is_table and not isinstance(values, np.ndarray | pd.Series):
            values = np.asarray(values)
        frame = values if is_table else pd.DataFrame(values)
        raw = read_columns(frame)
        matrix = np.stack([to_numbers(cells, name) for name, cells in raw.items()], axis=1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TableError(_describe_fault(given, what, error)) from None
    if rows is not None and len(matrix) != rows:
        raise ShapeError(
            f"{what} have {len(matrix)} rows and the table has {rows}. "
            "Pass one row per row of the table, in the same order."
        )
    # pandas counts the columns of an array from 0.
    names = None if isinstance(frame.columns, pd.RangeIndex) else list(raw)
    wrong = ~(np.abs(matrix) <= LARGEST)
    if wrong.any():
        columns = np.array(list(raw))[wrong.any(axis=0)].tolist()
        where = f" in the columns {format_names(columns)}" if names else ""
        raise TableError(
            f"{what} are missing, NaN or beyond {LARGEST:g}{where} in "
            f"{format_rows(np.flatnonzero(wrong.any(axis=1)).tolist())}. "
            "Leave these rows out of the outputs and of the table."
        )
    return matrix, names


def _describe_fault(values: Any, what: str, error: Exception) -> str:
    """Return a message without the cells, which may be names of people."""
    notes = getattr(error, "faults", ())
    given = [
        f"Column {x.column!r} has other cells in {format_rows(x.rows)}." for x in notes if x.rows
    ]
    given += [note.text for note in notes if not note.rows]
    if not given:
        shape = getattr(values, "shape", "unknown")
        given = [f"Got an object of type {type(values).__name__} and shape {shape}."]
    return (
        f"{what} must be finite real numbers. {' '.join(given)} "
        "Pass an array of shape (n,) or (n, d), or a table of numbers."
    )


@dataclass(frozen=True, eq=False)
class _ColumnReader:
    """The columns of a model, and what was stated about them.

    Attributes:
        model: The model.
        matrix: Its columns, shape `(n, d)`.
        names: Their names; None for an array.
        labels: The labels.
        classes: The classes of the columns, or an empty list.
        positive: The level that a high score stands for, or None.
    """

    model: str
    matrix: Array
    names: list[str] | None
    labels: tuple[Column, ...]
    classes: list[str]
    positive: str | None

    def read(self) -> ModelOutputs:
        """Return the outputs for each label, or raise an error that shows what to write."""
        if not self.labels:
            return ModelOutputs(self.model, self.matrix, (), ())
        if self.positive is not None:
            levels = [label.levels for label in self.labels if self.positive in label.levels]
            if len(levels) != 1 or len(levels[0]) > 2:
                raise self._fault(
                    f"positive={self.positive!r} is no level of a label with two levels."
                )
        places = self._find_places()
        parts, reading = [], []
        for label in self.labels:
            place_of_class = {
                key[1]: place for key, place in places.items() if key[0] == label.name
            }
            part = self._read_label(label, place_of_class)
            parts.append(part)
            columns = format_names(self.texts[place] for place in place_of_class.values())
            reading.append(f"Model {self.model!r} gives {_describe_part(part, columns)}")
        return ModelOutputs(self.model, self.matrix, tuple(parts), tuple(reading))

    @property
    def texts(self) -> list[str]:
        """The names of the columns, or their numbers."""
        return self.names or [f"column {place}" for place in range(self.matrix.shape[1])]

    def _find_places(self) -> dict[tuple[str, str], int]:
        """Return the place of the column of each label and class."""
        known = self._list_meanings()
        words = self._name_columns(known)
        places: dict[tuple[str, str], int] = {}
        for place, (word, text) in enumerate(zip(words, self.texts, strict=True)):
            meanings = known.get(word, [])
            if len(meanings) != 1 or meanings[0] in places:
                raise self._fault(f"It is not clear which class {text!r} stands for.")
            if known.get(text, meanings) != meanings:
                raise self._fault(f"The name of {text!r} contradicts the class {word!r}.")
            places[meanings[0]] = place
        return places

    def _list_meanings(self) -> dict[str, list[tuple[str, str]]]:
        """Return the label and class that each possible name of a column stands for."""
        known: dict[str, list[tuple[str, str]]] = {}
        for label in self.labels:
            class_of_word = {level: level for level in (*label.levels, *self.classes)}
            high = self._find_high_class(label)
            if high is not None:
                class_of_word.setdefault(label.name, high)
            for word, class_ in class_of_word.items():
                for prefix in PREFIXES:
                    known.setdefault(prefix + word, []).append((label.name, class_))
        return known

    def _find_high_class(self, label: Column) -> str | None:
        """Return the class that a high score stands for: "" for a number, None if unknown."""
        if not label.is_categorical:
            return ""
        if self.positive in label.levels and len(label.levels) == 2:
            return self.positive
        return next((pair[1] for pair in KNOWN_ORDERS if {*label.levels} <= {*pair}), None)

    def _name_columns(self, known: Mapping[str, object]) -> list[str]:
        """Return a name with a meaning for each column; columns without names have positions."""
        count, label = len(self.texts), self.labels[0]
        if self.classes:
            words = self.classes[1:] if count == 1 and len(self.classes) == 2 else self.classes
            is_complete = {*label.levels} <= {*self.classes} and len({*words}) == count
            if len(self.labels) > 1 or len(words) != count or not is_complete:
                raise self._fault(f"classes={self.classes} do not name each column and level once.")
            return words
        if self.names and (count > 1 or self.names[0] in known):
            return self.names
        if len(self.labels) == 1 and count == len(label.levels) > 1:
            return list(label.levels)
        if count != len(self.labels):
            raise self._fault(f"{count} columns are neither one per label nor one per level.")
        return [label.name for label in self.labels]

    def _read_label(self, label: Column, places: Mapping[str, int]) -> LabelOutputs:
        """Return the scores of a label from the place of the column of each class."""
        scores, classes = self.matrix[:, list(places.values())], list(places)
        if not label.is_categorical and classes == [""]:
            return LabelOutputs(label.name, scores[:, 0], (), None, False)
        lacking = {*label.levels} - {*classes}
        if not (label.is_categorical and classes) or len(lacking) > (len(classes) == 1):
            raise self._fault(f"Label {label.name!r} lacks the column of a level.")
        is_within_unit = bool((np.abs(scores - 0.5) <= 0.5 + ROUNDING).all())
        sums_to_1 = (np.abs(scores.sum(axis=1) - 1) <= ROUNDED_DIGITS * len(classes)).all()
        is_probability = is_within_unit and (len(classes) == 1 or bool(sums_to_1))
        if is_probability:
            scores = np.clip(scores, 0, 1)
        if len(classes) > 2:
            return LabelOutputs(label.name, scores, tuple(classes), None, is_probability)
        negative, positive = self._order_classes(label, classes)
        score = scores[:, classes.index(positive)]
        if len(classes) == 2 and not is_probability:
            # The class with the higher one of two scores is the prediction.
            score = score - scores[:, classes.index(negative)]
        threshold = 0.5 if is_probability else 0.0
        return LabelOutputs(label.name, score, (negative, positive), threshold, is_probability)

    def _order_classes(self, label: Column, classes: list[str]) -> tuple[str, str]:
        """Return the negative and the positive class of one or two columns."""
        orders = [pair for pair in KNOWN_ORDERS if {*label.levels} <= {*pair}]
        pair = self.classes or (label.levels if len(label.levels) == 2 else [*orders, classes][0])
        wanted = self.positive if self.positive in label.levels else None
        positive = classes[0] if len(classes) == 1 else wanted or pair[1]
        negative = [class_ for class_ in pair if class_ != positive]
        if wanted not in (None, positive) or not negative:
            raise self._fault(f"The only column of label {label.name!r} stands for {positive!r}.")
        return negative[0], positive

    def _fault(self, reason: str) -> OptionError:
        """Return an error with the columns, the labels and what to write."""
        label = self.labels[0]
        known = [
            f"{item.name!r} with {format_names(item.levels) or 'numbers'}" for item in self.labels
        ]
        advice = (
            f"Call the columns {format_names('score_' + word for word in self._advise_words())}"
        )
        if len(self.labels) == 1 and label.is_categorical:
            advice += f", or write classes={list(label.levels)} in the order of the columns"
        if len(self.labels) == 1 and len(label.levels) == 2:
            first, second = label.levels
            advice += (
                f", or for a single column positive={second!r} or positive={first!r}, whichever a "
                "high score stands for"
            )
        if self.names and len(self.names) > 1:
            name = self.names[0]
            advice += f". If each column is another model, write outputs={{{name!r}: …}}"
        return OptionError(
            f"{reason} Model {self.model!r} has the columns {format_names(self.texts)}; "
            f"the labels are {'; '.join(known)}. {advice}."
        )

    def _advise_words(self) -> Sequence[str]:
        """Return the words that the names of columns should end with."""
        if len(self.labels) == 1 and self.labels[0].is_categorical:
            return self.labels[0].levels
        words = []
        for label in self.labels:
            is_known = self._find_high_class(label) is not None
            words.append(label.name if is_known else label.levels[-1])
        return words


def _describe_part(part: LabelOutputs, columns: str) -> str:
    """Return the end of a sentence on how the columns of a label were read."""
    kind = "probability" if part.is_probability else "score"
    if not part.classes:
        return f"the number {part.label!r} in {columns}."
    if part.threshold is None:
        return f"a {kind} of each class of {part.label!r} in {columns}; the highest is predicted."
    positive = repr(part.classes[1])
    return (
        f"the {kind} that {part.label!r} is {positive} in {columns}; "
        f"{positive} is predicted from {part.threshold:g} on."
    )
