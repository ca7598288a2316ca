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

from deconfound.layers.functional import cross_products, positive
from deconfound.layers.tensors import Number, sum_over_processes
from deconfound.layers.whitened import WhitenedBatch

# How many samples β = 0 counts for at the start: a β known from a handful of samples is noise that can kill a network.
PRIOR = 30.0
# And S = 0, the start of the implicit gradient: an S known from a few samples pushes every feature the same wrong way.
GRADIENT_PRIOR = 300.0
# A step this many times 1 / ‖RᵀWR‖_F is below its cap, whatever the rounding.
SURELY_UNCAPPED = 0.999


Rates = tuple[float, float, float, float] | Tensor


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
    - `unit`, `own_entry` and `entries_above`, `(q, q)`: the identity, the intercept's own entry, and those above it.
    """
    rates = [[PRIOR, 0.0, 0.0, GRADIENT_PRIOR], [0.0, 0.0, 0.0, 1.0], [1.0, math.inf, math.inf, math.inf]]
    own, above = torch.zeros(q, q), torch.zeros(q, q)
    own[-1, -1] = 1
    above[:-1, -1] = 1
    found = {"rate_constants": torch.tensor(rates), "unit": torch.eye(q), "own_entry": own, "entries_above": above}
    return {name: value.to(like) for name, value in found.items()}


def rates(samples: Number, batch: WhitenedBatch, rule: UpdateRule, constants: Tensor) -> Rates:
    """How far a batch moves things: η / n of confounds and keep, η / n of the intercept, h, and the share in S.

    h is how far the intercept moves before the other rows, per sample; 0 for a fixed step, in which all move at once.

    Args:
        samples: How many were seen before.
        batch: The metadata.
        rule: What the layer fixes.
        constants: `rate_constants`.

    Returns:
        Four numbers, or a tensor of them, `(4,)`, where the number of samples is one.
    """
    if isinstance(samples, float):
        return _plain_rates(samples, batch, rule)
    if rule.step is not None:
        return _fixed_rates(batch, rule.step, constants)
    top, bottom, cap = batch.once("bounds", lambda: _bounds(batch, constants))
    return torch.minimum(top / (samples.clamp(max=rule.memory) + bottom), cap)


def _plain_rates(samples: float, batch: WhitenedBatch, rule: UpdateRule) -> Rates:
    rows = float(batch.rows())
    count = rows or 1.0
    if rule.step is not None:
        of_beta = min(float(batch.largest_step()), rule.step) / count
        return of_beta, of_beta, 0.0, rule.step
    total = min(samples, rule.memory) + count
    slope = 1 / (total + PRIOR)
    if not batch.gram_norm() * slope < SURELY_UNCAPPED:  # in this order NaN has its cap
        slope = min(float(batch.largest_step()) / count, slope)
    return slope, 1 / total, 1 / total, rows / (total + GRADIENT_PRIOR)


def _bounds(batch: WhitenedBatch, constants: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rates' numerators, denominators without the samples seen, and caps."""
    prior, is_share, limit = constants.unbind()
    rows = batch.rows()
    count = positive(rows)
    return rows**is_share, count + prior, batch.largest_step() / count * limit


def _fixed_rates(batch: WhitenedBatch, step: float, constants: Tensor) -> Tensor:
    of_beta = (constants[2, 0] * batch.largest_step()).clamp(max=step) / positive(batch.rows())
    return torch.stack([of_beta, of_beta, torch.zeros_like(of_beta), torch.full_like(of_beta, step)])


def usable_rows(batch: WhitenedBatch) -> Number:
    """How many samples a batch adds to those seen; none where metadata are not finite: nothing is learned there."""
    if batch.on_host:
        return batch.rows() * math.isfinite(batch.gram_norm())
    return batch.once("usable", lambda: batch.rows() * (batch.largest_step() > 0))


class Plan(NamedTuple):
    """What layers that have seen as many samples do alike with a batch.

    Attributes:
        rates: See `rates`.
        by: How β moves; None where it does not, or where kernels move it.
        usable: How many samples are seen.
        through: `z_C`, by which the gradient goes through β; c where it does not, or weights make it each layer's own.
    """

    rates: Rates
    by: Moves | None
    usable: Number
    through: Tensor


class Moves(NamedTuple):
    """A step as two matrices, `(q, q)` and `(n, q)`: `β ← kept β + Pᵀf`."""

    kept: Tensor
    projection: Tensor


def moves(rates: Rates, batch: WhitenedBatch, unit: Tensor, own: Tensor, above: Tensor) -> Moves:
    """`β ← β + D (I − h G₀) (RᵀWf − Gβ)`, with D the rates, and G₀ the intercept's column of G above its own entry.

    Args:
        rates: See `rates`.
        batch: The metadata, with `G = RᵀWR` of all processes.
        unit: The identity, `(q, q)`.
        own: The intercept's own entry of it alone.
        above: Ones above that entry.
    """
    slope, intercept, first, _ = rates
    gram = batch.gram()
    if isinstance(slope, Tensor):
        taken = slope * (unit - first * (gram * above)) + (intercept - slope) * own
    else:  # the same by operations that take plain numbers
        taken = torch.addcmul(unit, gram, above, value=-first).mul_(slope).add_(own, alpha=intercept - slope)
    return Moves(torch.addmm(unit, taken, gram, alpha=-1), torch.mm(batch.weighted, taken.T))


def descend(beta: Tensor, skipped: Tensor, features: Tensor, by: Moves, batch: WhitenedBatch) -> None:
    """Move β, `(q, d)`, in place, each feature by itself: what the others are changes nothing for it.

    A feature whose new β is not finite keeps the old one, and the batch counts as skipped.
    """
    towards = cross_products(features, by.projection)
    if not batch.alone:
        (towards,) = sum_over_processes(towards)
    moved = torch.addmm(towards, by.kept, beta)
    if batch.on_host and math.isfinite(moved.sum().item()):
        beta.copy_(moved)
        return
    finite = torch.isfinite(moved).all(0)
    beta.copy_(torch.where(finite, moved, beta))
    skipped.add_((~finite.all()).to(skipped.dtype))
