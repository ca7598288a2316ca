"""MDN: β by least squares on each batch (Lu et al. 2021; Eq. 3 and 4 of the PMDN paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers.base import MetadataLayer, Share
from deconfound.layers.functional import Moments, least_squares, pool_positions, residualize
from deconfound.layers.rows import Rows
from deconfound.layers.sync import add_moments


class MDN(MetadataLayer):
    """Metadata normalisation by least squares on the batch, with gradients through the fit.

    `r = f − c β_C`, where β is fitted anew on each training batch and a running mean of it is used in eval:

    - `gram="training"`, the paper's Eq. 4: `β = (N/b) (MᵀM)⁻¹ Σ_batch m_i f_i` with the Gram matrix of the
      training table, which is `N · I` for white metadata, and the actual batch size b.
    - `gram="batch"`, Eq. 3 on the batch: exact least squares with an intercept.

    Train and eval differ, and the more so the smaller the batch: see `PMDN` for the cure.

    Differs from the paper: b is the number of rows really in the batch; the running mean of β does not start at
    zero but at the first batch; features are centred first (`center`).

    Args:
        design: A fitted design.
        feature_shape: The shape of one sample's features.
        gram: Which Gram matrix is inverted. The training table's is the paper's; the batch's is exact but
            takes a batch of many more rows than metadata columns.
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

    def __init__(
        self,
        design: Design,
        feature_shape: int | Sequence[int | None],
        *,
        gram: Literal["training", "batch"] = "training",
        center: bool = True,
        momentum: float = 0.1,
        share: Share | None = None,
        channel_axis: int = 1,
    ) -> None:
        if gram not in ("training", "batch"):
            raise OptionError(f"gram must be 'training' or 'batch'; got {gram!r}.")
        if not 0 < momentum <= 1:
            raise OptionError(f"momentum must lie in (0, 1]; got {momentum}.")
        super().__init__(design, feature_shape, share=share, channel_axis=channel_axis)
        self.gram = gram
        self.center = center
        self.momentum = momentum
        self.register_buffer("beta", torch.zeros(self._directions, *self.coefficient_shape))
        self.register_buffer("mean", torch.zeros(self.coefficient_shape))
        self.register_buffer("batches", torch.zeros(()))

    def _beta(self) -> Tensor:
        return self.beta.reshape(self._directions, -1)

    def _train(self, x: Tensor, rows: Rows) -> Tensor:
        assert rows.fit is not None
        batch = add_moments(rows.fit.moments(pool_positions(x)))
        update, finite = self._may_update(), torch.isfinite(batch.cross.detach()).all()
        if update:
            self.batches.add_(finite.to(self.batches.dtype))
            self._count_skip(finite)
            self._follow(self.mean, batch.cross[-1].detach() / batch.rows.clamp(min=1), finite)
        beta = least_squares(batch) if self.gram == "batch" else self._papers_form(batch)
        if update:
            self._follow(self.beta, beta, finite)
        return residualize(x, rows.removal, beta[: rows.removal.shape[1]])

    def _papers_form(self, batch: Moments) -> Tensor:
        """Eq. 4 in white units, on features less their running mean, which is a constant of the fit."""
        cross = batch.cross
        if self.center:
            # The last regressor is 1: its column of the Gram matrix holds the sums of the others.
            cross = cross - batch.gram[:, -1:] * self.mean.reshape(-1)
        return cross / batch.rows.clamp(min=1)

    @torch.no_grad()
    def _follow(self, running: Tensor, value: Tensor, finite: Tensor) -> None:
        """Move a running mean; the newest of t batches weighs `m / (1 − (1 − m)ᵗ)`: it does not start at zero."""
        seen = (1 - (1 - self.momentum) ** self.batches).clamp(min=self.momentum)
        moved = torch.lerp(running, value.reshape(running.shape).to(running), self.momentum / seen)
        running.copy_(torch.where(finite, moved, running))
