"""MDN: β by least squares on each batch (Lu et al., 2021; Eq. 3 and 4 of the PMDN paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers.arithmetic import least_squares, positive, subtract_effect
from deconfound.layers.base import MetadataLayer
from deconfound.layers.batch import WhitenedBatch


class MDN(MetadataLayer):
    """Metadata normalisation by least squares on the batch, with gradients through the fit.

    In training β is fitted to the batch alone, and evaluation uses a running mean of these β:

    - `gram="training"`, Eq. 4: `β = (N/b) (MᵀM)⁻¹ Σ_batch m_i f_i`, with the Gram matrix of the
      training table, which is `N I` for whitened metadata. It serves small batches, but is wrong
      where rows are not drawn like the table's.
    - `gram="batch"`, Eq. 3 on the batch: exact least squares, which needs batches with many more
      rows than metadata columns.

    Training and evaluation therefore differ, the more the smaller the batch. `PMDN` has one β for
    both. Differs from the paper: b is the number of rows that the batch really has; the running
    mean starts at the first batch instead of zero; and for Eq. 4 the running mean of each feature
    is subtracted before the fit, because a feature mean of a few sd ruins small batches.

    Args:
        design: A fitted design.
        shape: The shape of one sample's features. Axes of size 1 are shared; see `MetadataLayer`.
        gram: Which Gram matrix is inverted: that of the training table or that of the batch.
        momentum: The weight of the newest batch in the running means.

    Example:
        >>> import torch, deconfound as dc
        >>> table = {"age": [61.5, 70.2, 78.9, 55.4]}
        >>> design = dc.Design(confounds=["age"]).fit(table)
        >>> layer = dc.MDN(design, 1)
        >>> features = 0.5 * torch.tensor(table["age"])[:, None] + 3
        >>> layer(features, design.encode(table)).ravel()  # the effect of age is gone
        tensor([36.2500, 36.2500, 36.2500, 36.2500])
    """

    batches: Tensor
    mean: Tensor

    def __init__(
        self,
        design: Design,
        shape: int | Sequence[int],
        *,
        gram: Literal["training", "batch"] = "training",
        momentum: float = 0.1,
    ) -> None:
        super().__init__(design, shape)
        if gram not in ("training", "batch"):
            raise OptionError(f"gram must be 'training' or 'batch'; got {gram!r}.")
        if not 0 < momentum <= 1:
            raise OptionError(f"momentum must lie between 0 and 1; got {momentum!r}.")
        self.gram = gram
        self.momentum = momentum
        q, d = self._size
        self.register_buffer("beta", torch.zeros(q, d))
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("batches", torch.zeros(1))

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        features = self.pool(x)
        if self._may_learn:
            self._update_mean(features.detach(), batch)
        beta = self._fit(features, batch)
        if self._may_learn:
            self._update(self.beta, beta.detach(), batch)
        confounds = batch.confounds
        return subtract_effect(x, confounds, beta[: confounds.shape[1]], self.shape)

    def _fit(self, features: Tensor, batch: WhitenedBatch) -> Tensor:
        """Return β of this batch, shape `(q, d)`."""
        if self.gram == "batch":
            return least_squares(batch.exact_moments(features)).to(features)
        # Σ w_i R_i (f_i − mean). The last column of the Gram matrix holds Σ w_i R_i.
        cross = torch.addr(batch.cross(features), batch.gram[:, -1], self.mean, alpha=-1)
        return cross / positive(batch.rows)

    def _update_mean(self, features: Tensor, batch: WhitenedBatch) -> None:
        """Count the batch and take its features into their running mean."""
        feature_sum = batch.cross(features)[-1]
        is_finite = feature_sum.isfinite().all() & batch.gram.isfinite().all()
        self._count_skip(is_finite)
        self.batches.add_((is_finite & (batch.rows > 0)).to(self.batches.dtype))
        self._update(self.mean, feature_sum / positive(batch.rows), batch)

    def _update(self, running: Tensor, newest: Tensor, batch: WhitenedBatch) -> None:
        """Move a running mean in place, unless the batch is empty or its value is not finite.

        The newest of t batches weighs m / (1 − (1 − m)ᵗ), so that the mean does not start at zero.
        """
        share = self.momentum / (1 - (1 - self.momentum) ** self.batches).clamp(min=self.momentum)
        is_usable = newest.isfinite().all() & (batch.rows > 0)
        running.copy_(torch.where(is_usable, torch.lerp(running, newest, share), running))
