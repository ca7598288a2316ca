"""β learned anew from rows that the network is not trained on, with the network standing still.

While a network learns, β follows it with some noise and delay, and it follows the features of the training rows,
which a network that memorises makes unlike those of new people. Both leave a part of the confound in eval, and
choosing the epoch with the best validation loss chooses the epoch in which that part is largest. Held-out rows have
neither fault:

    β ← β + (RᵀWR + k I)⁺ RᵀW(f − Rβ)

is the exact fit to them, in which the β learned in training counts for k rows: a handful of rows, or a site that is
not among them, moves it little. The intercept is free of k: held-out features may have another mean. A fit to n rows
leaves a squared correlation of 1 / n per direction of the confounds, q_C / n in all, and a β that leaves E without it
is best moved by E / (E + q_C / n): that is k = q_C / E.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from deconfound.layers.base import MetadataLayer
from deconfound.layers.erase import Erase
from deconfound.layers.erasure import GroupMoments, erase
from deconfound.layers.functional import Moments, least_squares, pool_positions, residualize
from deconfound.layers.whitened import WhitenedBatch

# For how many held-out rows the training's β counts, for each direction of the confounds: 1 / E. The correlation that
# it left between outputs and confound was .05 to .1 where the network had begun to memorise (`docs/decisions/0004`).
ROWS_PER_DIRECTION = 100.0


def refitted_coefficients(beta: Tensor, seen: Moments, prior: float) -> Tensor:
    """`β + (RᵀWR + k I)⁺ RᵀW(f − Rβ)`, where k does not hold the intercept.

    Args:
        beta: `(q, d)`, from training.
        seen: The moments of the held-out rows.
        prior: k, for how many rows `beta` counts.
    """
    unexplained = seen.cross - (seen.gram @ beta.to(seen.gram)).to(seen.cross)
    return beta + least_squares(Moments(seen.gram, unexplained, seen.rows), prior)


class Refitter:
    """Stands in for a layer's own estimator while held-out rows go through it."""

    def __init__(self, layer: MetadataLayer, prior: float, at_once: bool, reached: list[Any]) -> None:
        self.layer = layer
        self.prior = prior
        self.at_once = at_once
        self._reached = reached
        self._start = layer._beta().detach().clone()
        self._seen: Moments | None = None

    def __call__(self, features: Tensor, batch: WhitenedBatch) -> Tensor:
        """Take in one batch; its residual with the β that holds so far."""
        new = batch.moments(pool_positions(features), exact=True)
        seen = self._seen
        if seen is None:
            self._reached.append(self)
            self._seen = new
        else:
            self._seen = Moments(seen.gram + new.gram, seen.cross + new.cross, seen.rows + new.rows)
        if self.at_once:
            self.finish()
        return residualize(features, batch.confounds, self.layer._beta()[: batch.confounds.shape[1]])

    def finish(self) -> None:
        """Give the layer the β of all rows seen; non-finite ones leave it as it was."""
        assert self._seen is not None
        found = refitted_coefficients(self._start, self._seen, self.prior)
        self.layer.set_beta(torch.where(torch.isfinite(found).all(), found, self._start))


class EraseRefitter:
    """The same for `Erase`: its map is that of the held-out rows, among which the moments of training count k rows."""

    def __init__(self, layer: Erase, prior: float, at_once: bool, reached: list[Any]) -> None:
        self.layer = layer
        self.at_once = at_once
        self._reached = reached
        self._seen: GroupMoments = layer._moments().exact().counting(prior)
        self._none_yet = True

    def __call__(self, features: Tensor, batch: WhitenedBatch) -> Tensor:
        """Take in one batch; its residual with the map that holds so far."""
        if self._none_yet:
            self._reached.append(self)
            self._none_yet = False
        self._seen = self.layer.learned_from(self._seen, features, batch, math.inf)
        if self.at_once:
            self.finish()
        return erase(features, pool_positions(features), self.layer._beta())

    def finish(self) -> None:
        """Give the layer the map of all rows seen; one that is not finite leaves it as it was."""
        erasing = self.layer.solve(self._seen)
        self.layer.adopt(self._seen, erasing, torch.isfinite(erasing).all())


@contextmanager
def refitting(layers: Sequence[MetadataLayer], prior: float, at_once: bool) -> Iterator[list[Refitter | EraseRefitter]]:
    """Let these layers take in the rows that pass; they are in training mode meanwhile, the network need not be.

    Args:
        layers: The layers.
        prior: k.
        at_once: Whether each batch moves β, so that later layers see it; else `Refitter.finish` does.

    Yields:
        A list that the refitters join in the order in which features reach them.
    """
    modes = [layer.training for layer in layers]
    reached: list[Refitter | EraseRefitter] = []
    try:
        for layer in layers:
            if isinstance(layer, Erase):
                layer.refitter = EraseRefitter(layer, prior, at_once, reached)
            else:
                layer.refitter = Refitter(layer, prior, at_once, reached)
            layer.training = True
        yield reached
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.refitter = None
            layer.training = mode
