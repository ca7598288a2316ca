"""Samples in memory: what the in-memory driver trains on, and predictions for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.errors import OptionError, ShapeError
from deconfound.methods import Method, TrainingBatch
from deconfound.methods.base import row_weight
from deconfound.networks import hidden_features
from deconfound.training.step import drawn_weights, number_of_batches
from deconfound.training.within import cases_of

# What has one value per sample beside the inputs.
ROWWISE = ("metadata", "target", "controls", "weight", "stratum", "layer_weight")


@dataclass(frozen=True)
class Samples:
    """Rows in memory; their tensors lie on the device that trains.

    Attributes:
        x: Inputs, `(n, …)`.
        metadata: What `design.encode` gives for them, `(n, p)`; None for a method that reads none.
        target: What the criterion compares logits with; not needed for predictions.
        controls: One boolean per row, for methods that learn from controls alone.
        weight: How much a row counts, `(n,)`, or each of its labels, `(n, labels)`; any scale.
        stratum: The number of each row's stratum, for a loss that compares rows within strata.
        layer_weight: How much a row counts in layers and refit, `(n,)`, as `Balance.row_weight`; the mean of `weight`
            over the labels if None.
        rows: Which rows of the tensors these are; None for all. The tensors themselves are shared, not copied.
        read: Makes the network's input of `x[rows]`, such as a type in which it computes.
    """

    x: Tensor
    metadata: Tensor | None = None
    target: Tensor | None = None
    controls: Tensor | None = None
    weight: Tensor | None = None
    stratum: Tensor | None = None
    layer_weight: Tensor | None = None
    rows: Tensor | None = field(default=None, kw_only=True)
    read: Callable[[Tensor], Tensor] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name in ROWWISE:
            value = getattr(self, name)
            if value is not None and len(value) != len(self.x):
                raise ShapeError(f"{name} must have one row per sample; got {len(value)} for {len(self.x)} samples.")
        for name in ("weight", "layer_weight"):
            weight = getattr(self, name)
            if weight is not None and not bool((torch.isfinite(weight) & (weight >= 0)).all() & (weight.sum() > 0)):
                raise OptionError(f"{name} must be finite, not negative, and not 0 in all rows; got one that is not.")

    def __len__(self) -> int:
        return len(self.x if self.rows is None else self.rows)

    def part(self, rows: Tensor) -> Samples:
        """Some of these rows, by their positions."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def batch(self, rows: Tensor) -> TrainingBatch:
        """Some of these rows as a method reads them."""
        at = rows if self.rows is None else self.rows[rows]
        x = self.x[at] if self.read is None else self.read(self.x[at])
        none = torch.empty(len(at), 0, device=x.device)
        given = {name: value[at] for name in ROWWISE if (value := getattr(self, name)) is not None}
        return TrainingBatch(x, **{"metadata": none, "target": none, **given})

    def batches(self, size: int) -> Iterator[TrainingBatch]:
        """All of these rows in order, in batches of nearly equal size."""
        # Numbered on the device: a CUDA graph cannot hold a copy from the CPU.
        everyone = torch.arange(len(self), device=self.x.device)
        for rows in everyone.tensor_split(number_of_batches(len(self), size)):
            yield self.batch(rows)

    def with_mean_weight_one(self) -> Samples:
        """The same with weights whose mean over these rows is 1, for each label that has its own."""

        def scaled(weight: Tensor | None) -> Tensor | None:
            return None if weight is None else weight / self.own(weight).mean(0)

        return replace(self, weight=scaled(self.weight), layer_weight=scaled(self.layer_weight))

    def drawn_by_weight(self) -> tuple[Samples, NDArray[np.float64]]:
        """The same as they count once rows are drawn by their weight, and the probability of each row."""
        assert self.weight is not None
        rows = row_weight(self.weight) if self.layer_weight is None else self.layer_weight
        draw, rest = drawn_weights(*(self.own(each).double().cpu().numpy() for each in (self.weight, rows)))
        if rest is None:
            return replace(self, weight=None, layer_weight=None), draw
        weight = torch.zeros_like(self.weight)
        weight[slice(None) if self.rows is None else self.rows] = torch.from_numpy(rest).to(weight)
        return replace(self, weight=weight, layer_weight=torch.ones_like(rows)), draw

    def pairs(self) -> tuple[NDArray[np.bool_], NDArray[np.intp]] | None:
        """Cases and strata of these rows, for `paired_batches`; None where they are not known."""
        if self.stratum is None or self.target is None:
            return None
        return cases_of(self.own(self.target)), self.own(self.stratum).cpu().numpy()

    def own(self, values: Tensor) -> Tensor:
        """The values of these rows, in their order."""
        return values if self.rows is None else values[self.rows]


@dataclass(frozen=True)
class Predictions:
    """What a method says about samples.

    Attributes:
        logits: In the network's own shape, on the CPU; half precision becomes float32.
        features: `(n, d)`, where they were asked for.
    """

    logits: Tensor
    features: Tensor | None


@torch.no_grad()
def outputs_of(
    method: Method, rows: Iterable[tuple[Tensor, Tensor | None]], features: str | None = None
) -> Predictions:
    """What a method says in eval mode about batches of inputs and their metadata; `features`: see `hidden_features`."""
    method.eval()
    logits: list[Tensor] = []
    with hidden_features(method.network, features) as collected:
        for x, metadata in rows:
            found: Tensor = method(x, metadata)
            logits.append((found.float() if found.itemsize < 4 else found).cpu())
    return Predictions(torch.cat(logits), None if collected is None else collected.features().float())


def predict_in_memory(
    method: Method,
    samples: Samples,
    batch_size: int = 256,
    *,
    features: str | None = None,
    autocast: torch.dtype | None = None,
) -> Predictions:
    """Predict samples in eval mode; their targets and labels are not read.

    Args:
        method: A trained method.
        samples: What is predicted.
        batch_size: Rows at a time.
        features: The name of a module whose output is collected as well; "" for what the last linear layer reads.
        autocast: As in training.
    """
    known = samples.metadata is not None
    rows = ((batch.x, batch.metadata if known else None) for batch in samples.batches(batch_size))
    with nullcontext() if autocast is None else torch.autocast(samples.x.device.type, autocast):
        return outputs_of(method, rows, features)
