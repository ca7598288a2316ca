"""Adversarial heads: a small network that predicts one confound from features, and how well it does."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from deconfound.layers.functional import pool_positions
from deconfound.layers.precision import full_precision
from deconfound.methods.confounds import Confound
from deconfound.surgery import Place

# Predictions whose variance is below this count as flat: their correlation's gradient would be unbounded. It is far
# below what new networks give, or a network could hide everything, the label too, by shrinking its features.
FLAT = 1e-12


class Head(nn.Module):
    """Predicts one confound from the features of one place; gives the squared correlation of the two.

    A category of three levels or more has one output per level, the reference too. The newest predictions are
    kept, without their graph, and join the correlation where a batch has fewer rows than the window.
    """

    targets: Tensor
    predictions: Tensor
    truths: Tensor
    weights: Tensor

    def __init__(self, place: Place, confound: Confound, hidden: int, window: int) -> None:
        super().__init__()
        assert place.feature_shape is not None
        self.place = place
        self.confound = confound
        self.pooled = None in place.feature_shape
        inputs = math.prod(size or 1 for size in place.feature_shape)
        targets = target_columns(confound)
        outputs = targets.shape[1]
        hidden_layer = [nn.Linear(inputs, hidden), nn.Tanh()] if hidden else []
        self.predictor = nn.Sequential(*hidden_layer, nn.Linear(hidden or inputs, outputs))
        self.register_buffer("targets", targets)
        self.register_buffer("predictions", torch.zeros(window, outputs))
        self.register_buffer("truths", torch.zeros(window, outputs))
        self.register_buffer("weights", torch.zeros(window))

    def forward(self, features: Tensor, metadata: Tensor, weights: Tensor) -> Tensor:
        """`corr²`, a scalar, whose gradient is scaled to that of a batch as large as the window.

        Args:
            features: What the module at the place returned.
            metadata: `(n, p)`.
            weights: `(n,)`, 1 for rows that take part and 0 for the others.
        """
        with full_precision(features.device):  # half precision rounds off what varies little
            new = self._predict(features), self.confound.part(metadata).to(self.targets) @ self.targets, weights
        old = self.predictions, self.truths, self.weights
        missing = max(len(self.weights) - len(weights), 0)
        joined = [torch.cat([now, before[:missing]]) for now, before in zip(new, old, strict=True)]
        correlation = squared_correlation(*joined)
        with torch.no_grad():
            for buffer, values in zip(old, joined, strict=True):
                buffer.copy_(values[: len(buffer)])
        # Only the new rows carry a gradient: a small share of the window would otherwise pull by as small a share.
        scale = joined[2].sum() / weights.sum().clamp(min=1)
        return scale * correlation + ((1 - scale) * correlation).detach()

    def _predict(self, features: Tensor) -> Tensor:
        x = features.movedim(self.place.batch_axis, 0)
        x = pool_positions(x.movedim(self.place.channel_axis, 1).flatten(2)) if self.pooled else x.flatten(1)
        predicted: Tensor = self.predictor(x.to(self.predictions))
        return predicted


def target_columns(confound: Confound) -> Tensor:
    """`(width, outputs)`: metadata columns of a confound times this are what a head predicts."""
    levels = len(confound.levels)
    if levels < 3:
        return torch.eye(confound.width)
    sd = 1 / (confound.codes[1:].diagonal() - confound.codes[0])
    return torch.cat([-sd[:, None], sd.diag()], dim=1)


def squared_correlation(predictions: Tensor, truths: Tensor, weights: Tensor) -> Tensor:
    """The squared correlation of each column with its truth over weighted rows, averaged over the truths that vary.

    Args:
        predictions: `(n, k)`.
        truths: `(n, k)`.
        weights: `(n,)`.
    """
    share = (weights / weights.sum().clamp(min=1))[:, None]
    a = predictions - (share * predictions).sum(0)
    b = truths - (share * truths).sum(0)
    spread = (share * b * b).sum(0)
    varies = spread > 1e-6
    squared = (share * a * b).sum(0) ** 2 / (((share * a * a).sum(0) + FLAT) * spread.clamp(min=1e-6))
    return (squared * varies).sum() / varies.sum().clamp(min=1)
