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

from deconfound.layers.functional import positive
from deconfound.layers.tensors import on_host
from deconfound.layers.whitened import WhitenedBatch

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


def constants(q: int, like: Tensor) -> dict[str, Tensor]:
    """What the formulas here need, made once for a layer: a copy from the host would break the capture of a graph.

    - `rate_constants`, `(3, 4)`: the priors of the rates, which of them are shares, and which have a cap.
    - `row_masks`, `(3, q, q)`: the identity of all rows but the intercept's, its own entry, and its column.
    """
    rates = [[PRIOR, 0.0, 0.0, GRADIENT_PRIOR], [0.0, 0.0, 0.0, 1.0], [1.0, math.inf, math.inf, math.inf]]
    masks = torch.zeros(3, q, q)
    masks[0, :-1, :-1] = torch.eye(q - 1)
    masks[1, -1, -1] = 1
    masks[2, :-1, -1] = 1
    return {"rate_constants": torch.tensor(rates).to(like), "row_masks": masks.to(like)}


def rates(samples: Tensor, batch: WhitenedBatch, rule: UpdateRule, constants: Tensor) -> Tensor:
    """How far a batch moves things, `(4,)`: η / n of confounds and keep, η / n of the intercept, h, and the share in S.

    h is how far the intercept moves before the other rows, per sample; 0 for a fixed step, in which all move at once.

    Args:
        samples: How many were seen before, a scalar.
        batch: The metadata.
        rule: What the layer fixes.
        constants: `rate_constants`.
    """
    if rule.step is not None:
        return _fixed_rates(batch, rule.step)
    top, bottom, cap = batch.once("bounds", lambda: _bounds(batch, constants))
    return torch.minimum(top / (samples.clamp(max=rule.memory) + bottom), cap)


def _bounds(batch: WhitenedBatch, constants: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rates' numerators, denominators without the samples seen, and caps."""
    prior, is_share, limit = constants.unbind()
    rows = batch.rows()
    count = positive(rows)
    return rows**is_share, count + prior, batch.largest_step() / count * limit


def _fixed_rates(batch: WhitenedBatch, step: float) -> Tensor:
    of_beta = batch.largest_step().clamp(max=step) / positive(batch.rows())
    return torch.stack([of_beta, of_beta, torch.zeros_like(of_beta), torch.full_like(of_beta, step)])


def usable_rows(batch: WhitenedBatch) -> Tensor:
    """How many samples a batch adds to those seen; none where metadata are not finite: nothing is learned there."""
    return batch.once("usable", lambda: batch.rows() * (batch.largest_step() > 0))


class Moves(NamedTuple):
    """A step as two matrices, `(q, q)`: `β ← kept β + taken RᵀWf`."""

    kept: Tensor
    taken: Tensor


def moves(rates: Tensor, gram: Tensor, masks: Tensor) -> Moves:
    """`β ← β + D (I − h G₀) (RᵀWf − Gβ)`, with D the rates, and G₀ the intercept's column of G above its own entry.

    Args:
        rates: See `rates`.
        gram: G, `RᵀWR`.
        masks: `row_masks`.
    """
    others, own, column = masks.unbind()
    slope, intercept, first, _ = rates.unbind()
    taken = slope * (others - first * (gram * column)) + intercept * own
    return Moves(torch.addmm(others + own, taken, gram, alpha=-1), taken)


def descend(beta: Tensor, skipped: Tensor, cross: Tensor, by: Moves) -> None:
    """Move β, `(q, d)`, in place, each feature by itself: what the others are changes nothing for it.

    A feature whose new β is not finite keeps the old one, and the batch counts as skipped.
    """
    moved = torch.addmm(by.taken @ cross, by.kept, beta)
    if on_host(moved) and math.isfinite(moved.sum()):
        beta.copy_(moved)
        return
    finite = torch.isfinite(moved).all(0)
    beta.copy_(torch.where(finite, moved, beta))
    skipped.add_((~finite.all()).to(skipped.dtype))
