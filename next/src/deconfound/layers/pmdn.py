"""PMDN in one forward and one backward pass (Vento et al., MICCAI 2022, Algorithm 1).

Algorithm 1 alternates two steps on each batch:

    line 6    β ← β − η₁ ∇_β L*(f; M),   L* = ‖f − Mβ‖²      the network is frozen
    line 8    ŷ = ψ(f − Mβ)                                 with the new β
    line 9    W ← W − η₂ ∇_W L(ŷ, y)                        β is frozen

Line 6 needs the features only, not the output ŷ of line 5. The layer therefore takes it inside the
forward pass: `_train` moves β on the detached features and returns the residual with the new β. The
user's own backward pass and optimiser are line 9. One pass over the network is enough.

Where this file differs from the paper, and why:

- M is whitened by the design, and only its confound part is subtracted. Plain gradient descent on
  raw columns, such as age near 70 beside a 0/1 sex, converges too slowly.
- An intercept is fitted and never subtracted. Otherwise the mean of a feature would pass for an
  effect of the confounds.
- η₁ makes β an average over samples, not over steps, so that one setting serves all batch sizes.
  `step=` fixes η₁ instead, as in the paper.
- With several layers line 6 is taken layer by layer: the second layer's features were made with
  the first layer's new β.
- The network's gradient follows β (`gradient="bilevel"`, in bilevel.py). The paper poses this
  bi-level problem (Eq. 6 and 7), but line 9 treats β as a constant, which is `gradient="frozen"`.
- There is no LayerNorm before the layer. It divides each sample by a norm that mixes label and
  confounds, which no linear layer can undo. A network may have its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers.arithmetic import positive
from deconfound.layers.base import MetadataLayer
from deconfound.layers.batch import WhitenedBatch
from deconfound.layers.bilevel import subtract_bilevel

# β = 0 counts as this many samples. Otherwise the first small batch would decide β alone.
PRIOR_SAMPLES = 30.0


class PMDN(MetadataLayer):
    """Metadata normalisation whose coefficients are learned on all samples (Vento et al., 2022).

    In training each forward pass on n rows moves β by one step of gradient descent on the penalty
    `½ ‖f − Rβ‖²` and returns `r = f − C β_C` with the new β:

        β ← β + η Rᵀ(f − Rβ),   η = min(1 / (min(earlier samples, memory) + n + 30), 1 / λ_max(RᵀR))

    β is thus a running average over about `memory` samples, whatever the batch size. The intercept
    moves first, without the 30 samples of prior. In evaluation β is constant.

    Args:
        design: A fitted design.
        shape: The shape of one sample's features. Axes of size 1 are shared; see `MetadataLayer`.
        gradient: "bilevel" lets the network's gradient account for β following the features, as
            the paper's Eq. 6 and 7 ask. "frozen" treats β as a constant, as Algorithm 1 does: where
            label and confounds are strongly associated, features then grow without bound. Second
            derivatives, as of a gradient penalty, need "frozen".
        memory: The number of samples over which β averages. A short memory follows a network that
            learns fast, but is noisier. `float("inf")` suits features that do not change.
        step: A fixed step size η₁ on the penalty `½ mean (f − Rβ)²`; None averages over `memory`
            samples. With `gradient="frozen"` a fixed step is Algorithm 1 with plain SGD for β,
            except for the order of several layers.

    Example:
        >>> import torch, deconfound as dc
        >>> table = {"age": [61.5, 70.2, 78.9, 55.4]}
        >>> design = dc.Design(confounds=["age"]).fit(table)
        >>> layer = dc.PMDN(design, 1)
        >>> features = 0.5 * torch.tensor(table["age"])[:, None] + 3
        >>> for _ in range(800):  # each forward pass in training mode also learns
        ...     residual = layer(features, design.encode(table))
        >>> residual.ravel().round(decimals=2)  # the effect of age is gone, the mean stays
        tensor([36.2500, 36.2500, 36.2500, 36.2500])
        >>> layer.eval()(features[:1], design.encode({"age": [61.5]})).round(decimals=2)
        tensor([[36.2500]])
    """

    samples: Tensor
    cross_moment: Tensor
    mean_square: Tensor

    def __init__(
        self,
        design: Design,
        shape: int | Sequence[int],
        *,
        gradient: Literal["bilevel", "frozen"] = "bilevel",
        memory: float = 250.0,
        step: float | None = None,
    ) -> None:
        super().__init__(design, shape)
        if gradient not in ("bilevel", "frozen"):
            raise OptionError(f"gradient must be 'bilevel' or 'frozen'; got {gradient!r}.")
        if not memory >= 1:
            raise OptionError(f"memory must be a number of samples, 1 or more; got {memory!r}.")
        if step is not None and not 0 < step <= 1:
            raise OptionError(f"step must lie between 0 and 1; got {step!r}.")
        self.gradient = gradient
        self.memory = memory
        self.step = step
        q, d = self._size
        self.register_buffer("beta", torch.zeros(q, d))
        self.register_buffer("samples", torch.zeros(1))
        self.register_buffer("cross_moment", torch.zeros(self.to_confounds.shape[1], d))
        self.register_buffer("mean_square", torch.zeros(d))

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        if self._may_learn:
            self._descend(self.pool(x.detach()), batch)  # line 6
        # Line 8. If the statistics are frozen, β does not follow the features.
        if self.gradient == "frozen" or not self.is_updating:
            return self.subtract_effect(x, batch.confounds)
        return subtract_bilevel(self, x, batch)

    @torch.no_grad()
    def _descend(self, features: Tensor, batch: WhitenedBatch) -> None:
        """Take line 6 on features `(n, d)`. A feature that is not finite keeps its coefficients."""
        cross = batch.cross(features)
        if self.step is not None:
            beta = descend_penalty(self.beta, cross, batch, self.step)
        else:
            samples = self.samples.clamp(max=self.memory) + batch.rows
            beta = average_over_samples(self.beta, cross, batch, samples)
        is_finite = beta.isfinite().all(0)
        self.beta.copy_(torch.where(is_finite, beta, self.beta))
        self.samples.add_(torch.where(is_finite.any(), batch.rows, 0.0))
        self._count_skip(is_finite.all())

    def samples_with(self, batch: WhitenedBatch) -> Tensor:
        """Return the samples in memory including this batch, which `samples` counts already."""
        return (self.samples - batch.rows).clamp(0, self.memory) + batch.rows


def penalty_descent(beta: Tensor, cross: Tensor, batch: WhitenedBatch) -> Tensor:
    """Return RᵀW(f − Rβ), the negative gradient of the penalty ½ ‖f − Rβ‖², shape `(q, d)`.

    Args:
        beta: β, shape `(q, d)`.
        cross: RᵀWf, shape `(q, d)`.
        batch: The metadata of the same rows.
    """
    return torch.addmm(cross, batch.gram, beta, alpha=-1)


def descend_penalty(beta: Tensor, cross: Tensor, batch: WhitenedBatch, step: float) -> Tensor:
    """Take line 6 with a fixed step size η₁ for the mean penalty over rows."""
    return beta + step / positive(batch.rows) * penalty_descent(beta, cross, batch)


def average_over_samples(
    beta: Tensor, cross: Tensor, batch: WhitenedBatch, samples: Tensor
) -> Tensor:
    """Take line 6 with the step size that makes β a running average over samples.

    For whitened metadata the mean of RᵀR is the identity, so that a step of 1 / samples for each
    row averages the rows' own estimates of β.

    Args:
        beta: β, shape `(q, d)`.
        cross: RᵀWf, shape `(q, d)`.
        batch: The metadata of the same rows.
        samples: The samples in memory, including this batch.
    """
    descent = penalty_descent(beta, cross, batch)
    # The intercept moves first, and without a prior; the others descend from there. Otherwise a
    # small batch would credit a large feature mean to the confounds.
    intercept_step = descent[-1] / positive(samples)
    descent = torch.addr(descent, batch.gram[:, -1], intercept_step, alpha=-1)
    # A rare site has a large λ_max, so that the averaging step alone could overshoot.
    rate = torch.minimum(1 / (samples + PRIOR_SAMPLES), batch.max_step)
    updated = torch.addcmul(beta, rate, descent)
    updated[-1] = beta[-1] + intercept_step
    return updated
