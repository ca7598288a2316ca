"""How far a running average should move towards a new batch: a gain that measures drift and noise itself.

An average `m` follows a mean `μ` that drifts. Sample i says that `m` should move by `v_i`, which is `μ − m` plus noise
of variance N. If `μ − m` has squared size E, then moving by η times the mean of n such votes leaves
`(1 − η)² E + η² N / n`, which is least at

    η = E / (E + N / n) = n ρ / (1 + (n − 1) ρ),   ρ = E / (E + N)

ρ is the correlation between the votes of two samples, and is measured as their mean cosine, over all pairs within a
batch and all pairs with samples of the recent past. Cosines have no units and no outliers. For a mean that stands
still ρ falls like 1 / samples and η is the plain average; when the mean moves the votes agree, and the average
forgets. Nothing is left to tune.

Parts of an average may drift at different speeds: features' means move fastest, then the label's effect, then the
confounds'. Rows of the average are therefore put in groups with a gain each, so that one part's drift does not make
another part noisy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Samples over which ρ is averaged and votes are remembered: few enough to notice a drift soon.
WINDOW = 300.0
# And at least so many batches.
BATCHES = 5.0
# The plain average never reaches further back than this many samples.
LONGEST = 20_000.0


class GainState(NamedTuple):
    """What the gain remembers, all of it tensors.

    Attributes:
        agreement: ρ of each group, `(groups,)`.
        samples: Samples seen, a scalar, at most `LONGEST`.
        step: How far one sample has moved the average lately, η / n, `(groups,)`.
        trend: Mean of recent votes of length one, `(q, measured features)`.
    """

    agreement: Tensor
    samples: Tensor
    step: Tensor
    trend: Tensor


def new_state(sizes: Sequence[int], measured: int) -> GainState:
    """The state before the first batch, for groups of so many rows each and so many measured features."""
    trend = torch.zeros(sum(sizes), measured)
    return GainState(torch.zeros(len(sizes)), torch.zeros(()), torch.zeros(len(sizes)), trend)


def spread(gains: Tensor, sizes: Sequence[int]) -> Tensor:
    """One gain per group as one per row, `(q, 1)`."""
    return torch.cat([gain.expand(size) for gain, size in zip(gains, sizes, strict=True)]).unsqueeze(1)


def adaptive_gain(
    state: GainState, votes: Tensor, rows: Tensor, sizes: Sequence[int], prior: Tensor | float = 0.0
) -> tuple[Tensor, GainState]:
    """The gain of each group for a batch, `(groups,)`, and the state after it.

    Args:
        state: What earlier batches said.
        votes: `Σ_i v̂_i`, the summed votes over the measured features, `(q, measured features)`; each sample's votes
            have length one in each group.
        rows: n, a scalar.
        sizes: How many rows each group has.
        prior: How many samples the start at zero counts for; one number, or one per group.
    """
    others = (rows - 1).clamp(min=0)
    within = (_by_group(votes * votes, sizes) - rows) / (rows * others).clamp(min=1)
    # A vote has moved the average by `step` times itself, so what later samples say is less by what is left of that.
    undone = state.step / (1 + state.step * WINDOW)
    across = _by_group(votes * state.trend, sizes) / rows.clamp(min=1) + undone
    past = state.samples.clamp(max=WINDOW)
    pairs = (others / 2 + past).clamp(min=1)
    measured = torch.where(state.samples + others > 0, (others / 2 * within + past * across) / pairs, 1.0)

    average = rows / (state.samples + rows + prior).clamp(min=1)
    recent = torch.maximum(average, (rows / WINDOW).clamp(max=1 / BATCHES))
    agreement = torch.lerp(state.agreement, measured, recent)
    rho = agreement.clamp(min=0, max=1)
    gain = torch.maximum(rows * rho / (1 + others * rho), average)

    forget = torch.maximum(rows / (state.samples + rows).clamp(min=1), (rows / WINDOW).clamp(max=1))
    trend = torch.lerp(state.trend, votes / rows.clamp(min=1), forget)
    samples = (state.samples + rows).clamp(max=LONGEST)
    return gain, GainState(agreement, samples, gain / rows.clamp(min=1), trend)


def _by_group(products: Tensor, sizes: Sequence[int]) -> Tensor:
    return torch.stack([group.sum() for group in products.split(list(sizes))])
