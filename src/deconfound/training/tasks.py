"""What is predicted: found from the label columns, turned into targets, and logits turned back into answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.auditing import directed
from deconfound.errors import OptionError
from deconfound.metrics.columns import Column, column
from deconfound.metrics.performance import accuracy, auc, balanced_accuracy, group_accuracy, macro_auc, r_squared

Kind = Literal["binary", "multilabel", "multiclass", "regression"]
# Up to so many distinct whole numbers are classes, as in an audit.
CODES = 10


@dataclass(frozen=True)
class Task:
    """A task and how its labels are coded.

    Attributes:
        kind: "binary", "multilabel" (several binary labels), "multiclass" or "regression".
        labels: The columns.
        levels: For each label its levels in the order of their codes, the positive one last; empty for a number.
    """

    kind: Kind
    labels: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]

    @property
    def outputs(self) -> int:
        """How many logits the network has."""
        return len(self.levels[0]) if self.kind == "multiclass" else len(self.labels)

    @property
    def output_names(self) -> tuple[str, ...]:
        """A name for each logit: its label, or its class."""
        return self.levels[0] if self.kind == "multiclass" else self.labels

    @property
    def positive(self) -> dict[str, str]:
        """The level that a high score stands for, of each binary label."""
        if self.kind not in ("binary", "multilabel"):
            return {}
        return {label: levels[1] for label, levels in zip(self.labels, self.levels, strict=True)}

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Task:
        """What `to_dict` gave."""
        return cls(data["kind"], tuple(data["labels"]), tuple(tuple(levels) for levels in data["levels"]))


def read_task(
    table: Mapping[str, Any], labels: Sequence[str], kind: str, types: Mapping[str, str], positive: str | None
) -> tuple[Task, NDArray[np.float64]]:
    """The task, and its labels as codes or numbers `(n, labels)`, NaN where a row has none."""
    forced = {"regression": "numeric", "binary": "categorical", "multilabel": "categorical"}
    columns = [
        column(
            name,
            table[name],
            types.get(name) or forced.get(kind),
            codes_to=10**9 if kind == "multiclass" else CODES,
        )
        for name in labels
    ]
    columns = [directed(item, positive if len(labels) == 1 else None) for item in columns]
    found = _kind(columns)
    if kind not in ("auto", found):
        seen = "; ".join(f"{item.name} is {item.kind} with {len(item.levels) or 'many'} values" for item in columns)
        raise OptionError(f"training.task must fit the labels; got {kind!r}, but {seen}. It looks like {found!r}.")
    task = Task(found, tuple(labels), tuple(item.levels for item in columns))
    return task, np.column_stack([item.values.numpy() for item in columns])


def _kind(columns: Sequence[Column]) -> Kind:
    kinds = {item.kind for item in columns}
    if kinds == {"numeric"}:
        return "regression"
    if kinds == {"binary"}:
        return "binary" if len(columns) == 1 else "multilabel"
    if kinds == {"categorical"} and len(columns) == 1:
        if len(columns[0].levels) < 2:
            seen = ", ".join(map(repr, columns[0].levels)) or "none"
            raise OptionError(
                f"label {columns[0].name!r} must have two levels or more; got {seen} alone. Choose another label, or "
                "add rows of the other level."
            )
        return "multiclass"
    seen = ", ".join(f"{item.name}: {item.kind} ({len(item.levels)} levels)" for item in columns)
    raise OptionError(
        f"several labels must all have two levels, or all be numbers; got {seen}. Choose others, or set data.types."
    )


def targets(
    task: Task, codes: NDArray[np.float64], mean: float | NDArray[Any] = 0.0, scale: float | NDArray[Any] = 1.0
) -> Tensor:
    """What the criterion compares logits with: class codes `(n,)`, or `(n, outputs)` floats."""
    if task.kind == "multiclass":
        return torch.from_numpy(codes[:, 0].astype(np.int64))
    return torch.from_numpy(((codes - mean) / scale).astype(np.float32))


def scores_of(task: Task, logits: Tensor) -> Tensor:
    """Probabilities `(n, outputs)`, or the predicted numbers themselves."""
    if task.kind == "multiclass":
        return logits.softmax(1)
    return logits if task.kind == "regression" else logits.sigmoid()


def classes_of(task: Task, scores: Tensor) -> dict[str, list[str]]:
    """The predicted level of each row, by label; empty where a row has no finite score. Nothing for numbers."""
    if task.kind == "regression":
        return {}
    finite = scores.isfinite()
    if task.kind == "multiclass":
        codes, known = scores.argmax(1)[:, None], finite.all(1)[:, None]
    else:
        codes, known = (scores > 0.5).long(), finite
    return {
        label: [
            levels[code] if sure else "" for code, sure in zip(codes[:, k].tolist(), known[:, k].tolist(), strict=True)
        ]
        for k, (label, levels) in enumerate(zip(task.labels, task.levels, strict=True))
    }


def output_columns(task: Task) -> list[str]:
    """What the columns of a network's outputs are called in a table of predictions."""
    return [f"{'prediction' if task.kind == 'regression' else 'logit'}_{name}" for name in task.output_names]


def prediction_table(task: Task, logits: Tensor) -> dict[str, list[Any]]:
    """Outputs, scores and classes of rows as columns of a table."""
    table: dict[str, list[Any]] = dict(zip(output_columns(task), logits.T.tolist(), strict=True))
    if task.kind == "regression":
        return table
    scores = scores_of(task, logits)
    table |= {f"score_{name}": values for name, values in zip(task.output_names, scores.T.tolist(), strict=True)}
    return table | {f"predicted_{label}": levels for label, levels in classes_of(task, scores).items()}


def has_score(scores: Tensor) -> Tensor:
    """Which rows have finite scores throughout: only these have a class, and count in measures."""
    return scores.isfinite().all(1)


def performance(task: Task, logits: Tensor, codes: NDArray[np.float64]) -> dict[str, float]:
    """The task's measures on the rows of `logits (n, outputs)` that are finite; the first is the headline.

    NaN where a measure does not exist.
    """
    known = has_score(logits)
    true, logits = torch.from_numpy(codes)[known], logits.double()[known]
    if not len(logits):
        names = ("r2", "mean_absolute_error") if task.kind == "regression" else ("auc", "balanced_accuracy", "accuracy")
        return dict.fromkeys(names, float("nan"))
    if task.kind == "regression":
        return {
            "r2": float(r_squared(logits, true).mean()),
            "mean_absolute_error": float((logits - true).abs().mean()),
        }
    if task.kind == "multiclass":
        found, classes = logits.argmax(1).double(), true[:, 0]
        area = macro_auc(logits.softmax(1), classes)
        return {
            "auc": float(area),
            "balanced_accuracy": float(balanced_accuracy(found, classes)),
            "accuracy": float(accuracy(found, classes)),
        }
    found = (logits > 0).double()
    area = torch.stack([auc(logits[:, i], true[:, i]) for i in range(logits.shape[1])]).nanmean()
    groups = (true * 2.0 ** torch.arange(true.shape[1])).sum(1)
    return {
        "auc": float(area),
        "balanced_accuracy": float(group_accuracy(found, true, groups)),
        "accuracy": float(accuracy(found, true)),
    }
