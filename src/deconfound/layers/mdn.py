"""MDN: β by least squares on each batch (Lu et al. 2021; Eq. 3 and 4 of the PMDN paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers import torch_private
from deconfound.layers.base import MetadataLayer
from deconfound.layers.checkpoint import Share
from deconfound.layers.functional import (
    Moments,
    least_squares,
    pool_positions,
    positive,
    residualize,
    running_gram,
)
from deconfound.layers.tensors import all_finite, store
from deconfound.layers.whitened import WhitenedBatch

# How many samples the identity counts for in the running Gram matrix: that of a few rows has no inverse to speak of.
PRIOR = 10.0
# The running Gram matrix never reaches further back than this many samples.
LONGEST = 20_000.0


class MDN(MetadataLayer):
    """Metadata normalisation by least squares on the batch, with gradients through the fit.

    `r = f − c β_C`, where β is fitted anew on each training batch and a running mean of it is used in eval:

    - `gram="running"`: `β = G⁻¹ (1/b) Σ_batch R_i f_i` with `G` the running mean of `R_i R_iᵀ` over the rows that take
      part in the fit, so that it is right also where they are not drawn like the table (`fit_on`, weights, samplers).
    - `gram="training"`, the paper's Eq. 4: `β = (N/b) (MᵀM)⁻¹ Σ_batch m_i f_i` with the Gram matrix of the
      training table, which is `N · I` for whitened metadata, and the actual batch size b. Wrong where the rows of a
      batch are not drawn like the table.
    - `gram="batch"`, Eq. 3 on the batch: exact least squares with an intercept.

    Train and eval differ, and the more so the smaller the batch: see `PMDN` for the cure.

    Differs from the paper: b is the number of rows really in the batch; the running mean of β does not start at
    zero but at the first batch; features are centred first (`center`).

    Args:
        design: A fitted design.
        feature_shape: The shape of one sample's features.
        gram: Which Gram matrix is inverted. The training table's is the paper's; the batch's is exact but
            takes a batch of many more rows than metadata columns; the running one takes small batches too.
        center: Subtract the running mean of the features before Eq. 4 and not after. `False` is literal: a
            feature mean of a few sd then ruins small batches. Without effect for `gram="batch"`.
        momentum: Weight of the newest batch in the running means.
        share: See `MetadataLayer`.
        channel_axis: See `MetadataLayer`.

    Example:
        >>> import torch, deconfound as dc
        >>> table = {"age": [61.0, 70.0, 78.0, 55.0]}
        >>> design = dc.Design(confounds=["age"]).fit(table)
        >>> layer = dc.MDN(design, 1, gram="batch")
        >>> features = 0.5 * torch.tensor(table["age"])[:, None] + 3
        >>> layer(features, design.encode(table)).ravel()  # the mean stays, the effect of age is gone
        tensor([36., 36., 36., 36.])
    """

    beta: Tensor
    mean: Tensor
    batches: Tensor
    mean_gram: Tensor
    samples: Tensor

    def __init__(
        self,
        design: Design,
        feature_shape: int | Sequence[int | None],
        *,
        gram: Literal["running", "training", "batch"] = "running",
        center: bool = True,
        momentum: float = 0.1,
        share: Share | None = None,
        channel_axis: int = 1,
    ) -> None:
        if gram not in ("running", "training", "batch"):
            raise OptionError(f"gram must be 'running', 'training' or 'batch'; got {gram!r}.")
        if not 0 < momentum <= 1:
            raise OptionError(f"momentum must lie in (0, 1]; got {momentum}.")
        super().__init__(design, feature_shape, share=share, channel_axis=channel_axis)
        self.gram = gram
        self.center = center
        self.momentum = momentum
        self.register_buffer("beta", torch.zeros(self._directions, *self.coefficient_shape))
        self.register_buffer("mean", torch.zeros(self.coefficient_shape))
        self.register_buffer("batches", torch.zeros(()))
        self.register_buffer("mean_gram", torch.eye(self._directions))
        self.register_buffer("samples", torch.zeros(()))

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        of_batch = batch.moments(pool_positions(x), exact=self.gram == "batch")
        learns = self._may_update(batch)
        if learns:
            with torch.no_grad():
                finite = all_finite(of_batch.cross, of_batch.gram)
                usable = finite & (of_batch.rows > 0)
                self._count_skip(finite)
                torch_private.written(self.batches).add_(usable)
                newest = self._newest()
                self._follow_moments(of_batch, newest, usable)
        beta = least_squares(of_batch) if self.gram == "batch" else self._from_the_mean(of_batch)
        if learns:
            with torch.no_grad():
                followed = torch.lerp(self._beta(), beta.to(self.beta), newest)
                store(self.beta, followed, usable & all_finite(beta))
        return residualize(x, batch.confounds, beta[: batch.confounds.shape[1]])

    def _follow_moments(self, batch: Moments, newest: Tensor, usable: Tensor | bool) -> None:
        """Take the batch into the running mean of the features and the running Gram matrix."""
        rows = positive(batch.rows)
        store(self.mean, torch.lerp(self.mean.view(-1), (batch.cross[-1] / rows).to(self.mean), newest), usable)
        gram = running_gram(self.mean_gram, self.samples, Moments(batch.gram, batch.cross, rows), PRIOR)
        store(self.mean_gram, gram, usable)
        store(self.samples, (self.samples + rows).clamp(max=LONGEST), usable)

    def _from_the_mean(self, batch: Moments) -> Tensor:
        """`G⁻¹ Σ w_i R_i (f_i − f̄) / Σw`, with f̄ and, unless it is the training table's identity, G running means."""
        cross = batch.cross
        if self.center:
            # The last regressor is 1: its column of the Gram matrix holds the sums of the others.
            cross = torch.addr(cross, batch.gram[:, -1], self.mean.view(-1), alpha=-1)
        if self.gram == "training":
            return cross / positive(batch.rows)
        # The checked solver makes a GPU wait.
        inverse: Tensor = torch.linalg.inv_ex(self.mean_gram)[0] / positive(batch.rows)
        return inverse @ cross

    def _newest(self) -> Tensor:
        """What the newest of t batches weighs in running means, `m / (1 − (1 − m)ᵗ)`: they do not start at zero."""
        return self.momentum / (1 - (1 - self.momentum) ** self.batches).clamp(min=self.momentum)
