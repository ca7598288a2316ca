"""What a network predicts: labels as targets, and outputs as probabilities or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.errors import OptionError, TableError
from deconfound.table import (
    Kind,
    Note,
    Table,
    format_names,
    format_rows,
    level_text,
    read_columns,
    read_table,
)
from deconfound.training.inputs import scale_of

TaskKind = Literal["binary", "classes", "numeric"]

# For labels with these levels the second one is positive, as in an audit.
KNOWN_ORDERS = (("0", "1"), ("False", "True"))


@dataclass(frozen=True)
class Task:
    """The labels that a network predicts, and how they are coded.

    Attributes:
        kind: "binary", one or several labels with two levels; "classes", one label with three or
            more levels; "numeric", one or several numbers.
        labels: Their columns in the table.
        levels: The levels of each label in the order of their codes, of a binary label the
            positive one last; empty for a number.

    Example:
        >>> task = Task("binary", ("dx",), (("CN", "AD"),))
        >>> task.encode({"dx": ["AD", "CN"]}).tolist(), task.column_names()
        ([[1.0], [0.0]], ['prob_AD'])
    """

    kind: TaskKind
    labels: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]

    @property
    def outputs(self) -> int:
        """The number of outputs of the network."""
        return len(self.levels[0]) if self.kind == "classes" else len(self.labels)

    def encode(self, table: Table, *, allow_missing: bool = False) -> NDArray[Any]:
        """Return the targets of the rows of a table.

        Args:
            table: The rows with the columns of the labels.
            allow_missing: Whether a row without a label, or with an unknown level, gets NaN (of
                classes -1) instead of an error.

        Returns:
            For classes their codes, shape `(n,)`, int64; for binary labels 0 and 1, shape `(n, k)`,
            float32; for numbers, shape `(n, k)`, float64, in the units of the table (`Units`).

        Raises:
            TableError: Names the rows without a label, and the unknown levels, of all labels.
        """
        types: dict[str, Kind] = dict.fromkeys(self.labels, "categorical")
        if self.kind == "numeric":
            types = dict.fromkeys(self.labels, "numeric")
        columns = read_table(read_columns(table, self.labels), types=types)
        targets = np.empty((len(columns), len(self.labels)))
        notes = []
        for place, (name, levels) in enumerate(zip(self.labels, self.levels, strict=True)):
            column = columns[name]
            if levels:
                column = column.cat.set_categories(levels).cat.codes
            targets[:, place] = column.where(column >= 0) if levels else column
            if rows := tuple(np.flatnonzero(np.isnan(targets[:, place])).tolist()):
                what = f"none of {format_names(levels)}" if levels else "missing"
                text = f"Label {name!r} is {what} in {format_rows(rows)}."
                fix = "Correct these cells, or leave the rows out of the table."
                notes.append(Note("missing", name, text, fix, rows))
        if notes and not allow_missing:
            raise TableError(*notes)
        if self.kind == "classes":
            return np.nan_to_num(targets[:, 0], nan=-1).astype(np.int64)
        return targets if self.kind == "numeric" else targets.astype(np.float32)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return what outputs `(n, k)` of the network mean: probabilities, or the same numbers."""
        if self.kind == "classes":
            return outputs.softmax(dim=1)
        return outputs if self.kind == "numeric" else outputs.sigmoid()

    def column_names(self) -> list[str]:
        """Return a name for each output in a table of predictions, as `deconfound.audit` reads it.

        A column is called `prob_<level>` after a class or a positive level, `prob_<label>` where
        that level is 1 or True, and `score_<label>` for a number. Where several labels share a
        positive level it is `prob_<label>_<level>`, which an audit cannot read.
        """
        if self.kind == "numeric":
            return [f"score_{label}" for label in self.labels]
        if self.kind == "classes":
            return [f"prob_{level}" for level in self.levels[0]]
        every = [level for levels in self.levels for level in levels]
        words = []
        for label, levels in zip(self.labels, self.levels, strict=True):
            # A label with the levels 1 and 0 must not have the name of one with 0 and 1.
            is_shared = every.count(levels[1]) > 1
            word = f"{label}_{levels[1]}" if is_shared else levels[1]
            words.append(label if levels in KNOWN_ORDERS else word)
        return [f"prob_{word}" for word in words]

    def to_dict(self) -> dict[str, Any]:
        """Return the task as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Task:
        """Return the task that `to_dict` described, also after JSON."""
        levels = tuple(tuple(own) for own in data["levels"])
        return cls(data["kind"], tuple(data["labels"]), levels)


def read_task(
    table: Table,
    labels: Sequence[str],
    positive: str | Mapping[str, str] | None = None,
    types: Mapping[str, Kind] | None = None,
) -> Task:
    """Return the task that the labels of a table make.

    Args:
        table: A table with the columns of the labels; cells may be missing.
        labels: The columns to be predicted.
        positive: The level for which a high score stands: one level, or a mapping from labels to
            levels. It may be left out for labels with the levels 0 and 1, or False and True.
        types: The kind of single columns, "numeric" or "categorical". Whole numbers with 3 to 10
            distinct values need one.

    Raises:
        TableError: Lists all faults of the labels: absent columns, a single level, kinds that do
            not go together, no positive level.

    Example:
        >>> read_task({"dx": ["AD", "CN", "CN"]}, ["dx"], positive="AD")
        Task(kind='binary', labels=('dx',), levels=(('CN', 'AD'),))
    """
    if isinstance(labels, str) or not labels:
        raise OptionError(
            f"labels must be a list with one or more columns; got {labels!r}. Write labels=['dx']."
        )
    names = list(dict.fromkeys(labels))
    columns = read_table(table, names, types=types)
    levels: dict[str, tuple[str, ...]] = {}
    faults = []
    for name in names:
        column = columns[name]
        levels[name] = () if column.dtype == np.float64 else tuple(column.cat.categories)
        if column.nunique() < 2:
            faults.append(
                f"Label {name!r} has {column.nunique()} distinct values, and must have two. "
                "Add rows with another value, or choose another label."
            )
    counts = {len(own) for own in levels.values()}
    if len(names) > 1 and counts not in ({0}, {2}) and not faults:
        words = [f"{name!r} with {format_names(own) or 'numbers'}" for name, own in levels.items()]
        faults.append(
            f"Several labels must all have two levels, or all be numbers; got {'; '.join(words)}. "
            "Train one network for each, or correct types."
        )
    faults += _put_positive_last(levels, positive)
    if faults:
        raise TableError(*faults)
    kinds: dict[int, TaskKind] = {0: "numeric", 2: "binary"}
    return Task(kinds.get(max(counts), "classes"), tuple(names), tuple(levels.values()))


def _put_positive_last(
    levels: dict[str, tuple[str, ...]], positive: str | Mapping[str, str] | None
) -> list[str]:
    """Order the levels of all binary labels in place, and return all faults."""
    binary = {name: own for name, own in levels.items() if len(own) == 2}
    words: dict[str, str] = {}
    if isinstance(positive, Mapping):
        words = {name: level_text(level) for name, level in positive.items()}
    elif positive is not None:
        word = level_text(positive)
        # A level that no label has is reported for the first label.
        owners = [name for name, own in binary.items() if word in own] or list(levels)[:1]
        words = dict.fromkeys(owners, word)
    faults = []
    for name in dict.fromkeys([*binary, *words]):
        own = binary.get(name, ())
        word = words.get(name) or (own[1] if own in KNOWN_ORDERS else "")
        if word in own:
            levels[name] = (*[level for level in own if level != word], word)
            continue
        choices = [f"positive={{{name!r}: {level!r}}}" for level in own] or ["positive=None"]
        faults.append(
            f"The positive level of {name!r}, for which a high score stands, must be one of two "
            f"levels, {format_names(own) or 'which this column does not have'}; got "
            f"{word or None!r}. Write {' or '.join(choices)}."
        )
    return faults


@dataclass(frozen=True)
class Units:
    """The units of numeric labels: a network is trained on (label − mean) / scale.

    Attributes:
        mean: The mean of each label over the training rows.
        scale: Its sd there, 1 for a label that does not vary.

    Example:
        >>> units = Units.fit(np.array([[60.0], [80.0]]))
        >>> units.to_units(np.array([[90.0]])), units.from_units(torch.tensor([[2.0]]))
        (array([[2.]], dtype=float32), tensor([[90.]], dtype=torch.float64))
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def fit(cls, targets: NDArray[Any]) -> Units:
        """Return the units of the training rows, from numbers `(n, k)`."""
        numbers = np.asarray(targets, dtype=np.float64)
        mean, sd = numbers.mean(axis=0), numbers.std(axis=0)
        return cls(tuple(mean.tolist()), tuple(scale_of(mean, sd).tolist()))

    def to_units(self, targets: NDArray[Any]) -> NDArray[np.float32]:
        """Return the numbers that the network is trained on, shape `(n, k)`."""
        numbers = (np.asarray(targets, dtype=np.float64) - self.mean) / self.scale
        return numbers.astype(np.float32)

    def from_units(self, outputs: Tensor) -> Tensor:
        """Return outputs `(n, k)` of the network in the units of the table, as float64."""
        mean, scale = torch.tensor([self.mean, self.scale], dtype=torch.float64).to(outputs.device)
        result: Tensor = outputs * scale + mean
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return the units as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Units:
        """Return the units that `to_dict` described, also after JSON."""
        return cls(tuple(data["mean"]), tuple(data["scale"]))
