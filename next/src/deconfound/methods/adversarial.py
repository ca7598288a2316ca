"""CF-Net: heads look for the confounds in the features, and the network learns to hide them.

Zhao, Adeli and Pohl, "Training confounder-free deep learning models for medical applications",
Nature Communications 2020. Differs from the paper: the two sides take their steps together, with a
reversed gradient, and correlations are taken column by column, never over a flattened table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from deconfound.attach import collect, plan
from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers import check_metadata
from deconfound.methods.base import Batch, Criterion, Method, Setting, default_modules

# Added to the variance of predictions, so that a constant prediction has a finite gradient. It must
# lie far below the variance of any head's predictions: a network could otherwise hide the confounds
# by shrinking its features, and the labels with them.
FLAT = 1e-12
# Below this variance a confound column is constant in the batch and has no correlation.
CONSTANT = 1e-6
# The squared correlation of two rows is always 1.
FEWEST_ROWS = 3


class AdversarialMethod(Method):
    """Heads that look for the confounds in the features, which the network hides (CF-Net).

    For each module of `setting.at` and each confound, a head predicts the confound from the
    module's features. With the correlation loss

        L = −Σ_confounds mean_modules corr²(head(features), confound)

    one backward pass trains both sides:

        gradient of the heads:     ∇ L              they raise the correlation
        gradient of the network:   ∇ task − w ∇ L   it lowers the correlation

    corr² is the mean over the columns of a confound; a category of three or more levels has one
    column for each level. Rows count by `layer_weight`. A batch with fewer than three rows that
    count has no correlation and trains the task alone. Evaluation uses neither heads nor confounds.

    Args:
        network: Any module that maps `(n, …)` to logits.
        setting: The problem. Heads read all numbers that a module of `at` returns, so that modules
            with few features suit best.
        weight: w. The larger, the more the network hides; too large a weight leaves outputs that
            are constant.
        warmup: During this many steps w is 0 and the heads learn alone; over the same number again
            w rises to `weight`.
        hidden: The number of hidden units of each head; 0 makes it linear.
    """

    steps: Tensor

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        weight: float = 0.2,
        warmup: int = 0,
        hidden: int = 32,
    ) -> None:
        _check_options(weight, warmup, hidden)
        super().__init__(network, setting)
        self.design = setting.design
        self.weight = weight
        self.warmup = warmup
        at = default_modules(network) if setting.at is None else setting.at
        points = plan(network, setting.design, at, setting.example, per="feature").points
        pairs = [(point, columns) for point in points for columns in confound_columns(self.design)]
        self.heads = nn.ModuleList(
            Head(math.prod(point.shape), columns, hidden).to(point.device)
            for point, columns in pairs
        )
        # The module that each head reads.
        self.modules_of_heads = [point.name for point, _ in pairs]
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        """Return the task's loss, whose gradient is that of both sides."""
        metadata = check_metadata(batch.metadata, self.design, len(batch.x), training=False)
        confounds = metadata[:, : len(self.design.confound_columns)]
        rows = batch.layer_weight
        if rows is None:
            rows = torch.ones_like(confounds[:, 0])
        names = list(dict.fromkeys(self.modules_of_heads))
        with collect(self.network, names, detach=False) as collector:
            task = criterion(self(batch.x), batch)
        weight = self._weight_of_step()
        features = {name: reverse_gradient(collector.features(name), weight) for name in names}
        heads = zip(self.heads, self.modules_of_heads, strict=True)
        squares = [head(features[name], confounds, rows) for head, name in heads]
        correlation_loss = -torch.stack(squares).sum() / len(names)
        # Subtracting its value leaves the gradient, and a loss that compares with other methods'.
        return task + (correlation_loss - correlation_loss.detach())

    def _weight_of_step(self) -> Tensor:
        """Return w of this step, a tensor, and count the step."""
        share = (self.steps + 1 - self.warmup) / max(self.warmup, 1)
        self.steps += int(self.training)
        return self.weight * share.clamp(0, 1)


def reverse_gradient(features: Tensor, weight: Tensor) -> Tensor:
    """Return the same features, whose gradient is multiplied by −weight."""
    constant = features.detach()
    return constant - weight.to(features) * (features - constant)


class Head(nn.Module):
    """Predicts one confound from the features of one module, in single precision at least.

    Args:
        features: The number of features.
        columns: The map from encoded confounds to the columns to predict, shape `(p_C, k)`.
        hidden: The number of hidden units; 0 for none.
    """

    columns: Tensor

    def __init__(self, features: int, columns: Tensor, hidden: int) -> None:
        super().__init__()
        first = [nn.Linear(features, hidden), nn.Tanh()] if hidden else []
        self.predictor = nn.Sequential(*first, nn.Linear(hidden or features, columns.shape[1]))
        self.register_buffer("columns", columns, persistent=False)

    def forward(self, features: Tensor, confounds: Tensor, weight: Tensor) -> Tensor:
        """Return corr² of the prediction and the confound.

        Args:
            features: Shape `(n, …)`.
            confounds: The encoded confounds, shape `(n, p_C)`.
            weight: What each row counts for, shape `(n,)`.
        """
        # Half precision rounds off the small differences between rows.
        with torch.autocast(features.device.type, enabled=False):
            predictions = self.predictor(features.flatten(1).to(self.columns))
            targets = confounds.to(self.columns) @ self.columns
            return squared_correlation(predictions, targets, weight.to(self.columns))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and cast the head, but not to half precision."""

        def at_least_float32(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            is_half = result.is_floating_point() and result.dtype.itemsize < 4
            return tensor.to(result.device) if is_half else result

        super()._apply(at_least_float32, recurse)
        return self


def squared_correlation(predictions: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted corr² of each column, averaged over the target columns that vary.

    Args:
        predictions: Shape `(n, k)`.
        targets: Shape `(n, k)`.
        weight: Shape `(n,)`. With fewer than three positive weights the result is 0.
    """
    share = (weight / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)).unsqueeze(1)
    centred = predictions - (share * predictions).sum(0)
    centred_targets = targets - (share * targets).sum(0)
    covariance = (share * centred * centred_targets).sum(0)
    variance = (share * centred.square()).sum(0)
    target_variance = (share * centred_targets.square()).sum(0)
    does_vary = (target_variance > CONSTANT) & ((weight > 0).sum() >= FEWEST_ROWS)
    squares = covariance.square() / ((variance + FLAT) * target_variance.clamp(min=CONSTANT))
    return torch.where(does_vary, squares, 0.0).sum() / does_vary.sum().clamp(min=1)


def confound_columns(design: Design) -> list[Tensor]:
    """Return for each confound the map from encoded confounds to its columns, shape `(p_C, k)`."""
    columns = design.confound_columns
    maps = []
    for term in design.confounds:
        places = [place for place, column in enumerate(columns) if column.term == term]
        own = torch.eye(len(columns))[:, places]
        if len(design.levels.get(str(term), ())) > 2:
            # A row belongs to the reference level if it belongs to no other.
            units = torch.tensor([columns[place].unit for place in places])
            own = torch.cat([-(own * units).sum(1, keepdim=True), own], dim=1)
        maps.append(own)
    return maps


def _check_options(weight: object, warmup: object, hidden: object) -> None:
    faults = []
    if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        faults.append(f"weight must be a number, 0 or more; got {weight!r}.")
    for name, value in (("warmup", warmup), ("hidden", hidden)):
        if not isinstance(value, int) or value < 0:
            faults.append(f"{name} must be a whole number, 0 or more; got {value!r}.")
    if faults:
        raise OptionError("\n".join(faults))
