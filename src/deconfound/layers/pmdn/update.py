"""PMDN's update of β: one descent step on the penalty, with a memory that is counted in samples.

    η = n / (min(samples, memory) + n + prior)

is the share of a batch of n samples in a running average that reaches `memory` samples back: a plain average at first,
in which the start at zero counts for `prior` samples, and later one that forgets. Features move while a network learns,
so a long memory lags behind them, which the network learns to profit from; a short one is noisy, which a refit on
held-out rows takes away ([decision 0008](../../../../docs/decisions/0008-a-fixed-memory.md)).

The intercept has no prior and moves first; the other coefficients see what is left: means of a hundred sd would
otherwise pass for effects. Their step is at most 1 / λmax of the batch's Gram matrix, so that a rare level, with its
huge leverage, cannot make β overshoot; the intercept's own entry is 1, and η is not above it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deconfound.layers.functional import Moments
from deconfound.layers.whitened import WhitenedBatch, positive

# How many samples β = 0 counts for at the start: a β known from a handful of samples is noise that can kill a network.
PRIOR = 30.0
# And S = 0, the start of the implicit gradient: an S known from a few samples pushes every feature the same wrong way.
GRADIENT_PRIOR = 300.0


class UpdateRule(NamedTuple):
    """What a layer fixes about its updates.

    Attributes:
        memory: How many samples the averages reach back; without meaning for a fixed step.
        step: A fixed η, or None.
    """

    memory: float
    step: float | None


class _Bounds(NamedTuple):
    """What a batch says about rates, each `(q + 2,)`: those are `min(top / (seen + bottom), cap)`."""

    top: Tensor
    bottom: Tensor
    cap: Tensor


def rates(samples: Tensor, batch: WhitenedBatch, rule: UpdateRule) -> Tensor:
    """How far a batch moves things, `(q + 2,)`: η / n of each row of β, h, and the share of the batch in S.

    h is how far the intercept moves before the other rows, per sample; 0 for a fixed step, in which all move at once.

    Args:
        samples: How many were seen before, a scalar.
        batch: The metadata.
        rule: What the layer fixes.
    """
    if rule.step is not None:
        return batch.once(("rates", rule.step), lambda: _fixed_rates(batch, float(rule.step or 0)))
    top, bottom, cap = batch.once("rates", lambda: _bounds(batch))
    return torch.minimum(top / (samples.clamp(max=rule.memory) + bottom), cap)


def _bounds(batch: WhitenedBatch) -> _Bounds:
    q, rows = batch.regressors.shape[1], batch.rows()
    count = positive(rows)
    ones = count.new_ones(q + 2)  # filled on the device: a copy from the host would break the capture of a graph
    prior = torch.cat([ones[: q - 1] * PRIOR, ones[:2] * 0, ones[:1] * GRADIENT_PRIOR])
    top = torch.cat([ones[:-1], rows.reshape(1)])
    cap = torch.cat([ones[: q - 1] * (batch.largest_step() / count), ones[:3] * math.inf])
    return _Bounds(top, count + prior, cap)


def _fixed_rates(batch: WhitenedBatch, step: float) -> Tensor:
    q, count = batch.regressors.shape[1], positive(batch.rows())
    of_beta = batch.largest_step().clamp(max=step) / count
    return torch.cat([of_beta.expand(q), count.new_zeros(1), count.new_full((1,), step)])


def usable_rows(batch: WhitenedBatch) -> Tensor:
    """How many samples a batch adds to those seen; none where metadata are not finite: nothing is learned there."""
    return batch.once("usable", lambda: torch.where(torch.isfinite(batch.largest_step()), batch.rows(), 0.0))


@torch.no_grad()
def descend(beta: Tensor, skipped: Tensor, batch: Moments, rates: Tensor) -> None:
    """Move β, `(q, d)`, in place, each feature by itself: what the others are changes nothing for it.

    A feature whose new β is not finite keeps the old one, and the batch counts as skipped.
    """
    q = len(beta)
    directions = torch.addmm(batch.cross, batch.gram, beta, alpha=-1)
    directions[:-1].addr_(batch.gram[:-1, -1] * rates[q], directions[-1], alpha=-1)
    moved = torch.addcmul(beta, rates[:q, None], directions)
    finite = torch.isfinite(moved).all(0)
    beta.copy_(torch.where(finite, moved, beta))
    skipped.add_((~finite.all()).to(skipped.dtype))
