"""What the labels ask of a network: how many outputs, which loss, and how they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from deconfound.design.codecs import Kind
from deconfound.errors import ShapeError
from deconfound.sklearn.loop import Criterion


@dataclass(frozen=True)
class Task:
    """The labels of a fit, ready for a network.

    Attributes:
        outputs: How many numbers per sample a network that the estimator builds returns.
        target: What the criterion compares the outputs with, `(n,)`.
        kept: The labels as they enter the design.
        kind: How the design reads them.
        classes: How many classes there are; None for a quantity.
        criterion: The loss.
    """

    outputs: int
    target: NDArray[Any]
    kept: NDArray[Any]
    kind: Kind
    classes: int | None
    criterion: Criterion

    def check_output(self, output: Tensor) -> None:
        """Refuse a network whose outputs cannot be compared with the labels."""
        width = output.shape[1] if output.ndim == 2 else 1 if output.ndim == 1 else None
        allowed = {1} if self.classes is None else {1, 2} if self.classes == 2 else {self.classes}
        if width not in allowed:
            wanted = " or ".join(f"(n, {size})" for size in sorted(allowed))
            what = "a quantity" if self.classes is None else f"{self.classes} classes"
            raise ShapeError(f"the network must return {wanted} for {what}; got shape {tuple(output.shape)}.")


def classification(codes: NDArray[np.int64], classes: int) -> Task:
    """Labels as class numbers from 0; two classes take one logit."""
    return Task(1 if classes == 2 else classes, codes, codes, "categorical", classes, _class_loss)


def regression(standardised: NDArray[np.float64]) -> Task:
    """A quantity with mean 0 and sd 1."""
    return Task(1, standardised, standardised, "numeric", None, _squared_error)


def logits(output: Tensor, classes: int) -> Tensor:
    """`(n,)` for two classes, positive for the second; `(n, classes)` for more."""
    if classes > 2:
        return output
    return output.reshape(-1) if output.ndim == 1 or output.shape[1] == 1 else output[:, 1] - output[:, 0]


def hold_out(task: Task, fraction: float, rng: np.random.RandomState) -> tuple[Tensor, Tensor]:
    """Row numbers to train on and to stop on; each class is held out in the same share, but for one row at least."""
    groups = np.zeros(len(task.target), dtype=np.int64) if task.classes is None else task.target
    held = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups):
        rows = rng.permutation(np.flatnonzero(groups == group))
        held[rows[: min(round(fraction * len(rows)), len(rows) - 1)]] = True
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def _class_loss(output: Tensor, target: Tensor) -> Tensor:
    if output.ndim == 1 or output.shape[1] == 1:
        return binary_cross_entropy_with_logits(output.reshape(-1), target.to(output.dtype))
    return cross_entropy(output, target)


def _squared_error(output: Tensor, target: Tensor) -> Tensor:
    return mse_loss(output.reshape(-1), target.to(output.dtype))
