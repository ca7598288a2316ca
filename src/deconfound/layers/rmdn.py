"""R-MDN: β by recursive least squares over all samples seen."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers.base import MetadataLayer
from deconfound.layers.checkpoint import Share
from deconfound.layers.functional import pool_positions, recursive_update, residualize
from deconfound.layers.tensors import all_finite, store
from deconfound.layers.whitened import WhitenedBatch


class RMDN(MetadataLayer):
    """Metadata normalisation by recursive least squares.

    `r = f − c β_C`, where β minimises `Σ_i λ^(age of i) ‖f_i − b₀ − m_i β‖² + ridge ‖β‖²` over every sample
    seen, solved in `q × q`; the network's gradient takes β as a constant. Train and eval use the same β.

    With weights the sum is weighted; with a weighted sampler β describes the sampled distribution.

    Args:
        design: A fitted design.
        feature_shape: The shape of one sample's features.
        forgetting: λ per sample. 1 never forgets, which a network that learns outruns; 0.999 remembers
            about a thousand samples.
        ridge: Weight of `‖β‖²` in whitened units, in samples: 1 counts like one sample. The intercept is free.
        share: See `MetadataLayer`.
        channel_axis: See `MetadataLayer`.

    Example:
        >>> import torch, deconfound as dc
        >>> table = {"age": [61.0, 70.0, 78.0, 55.0]}
        >>> design = dc.Design(confounds=["age"]).fit(table)
        >>> layer = dc.RMDN(design, 1, ridge=1e-6)
        >>> features = 0.5 * torch.tensor(table["age"])[:, None] + 3
        >>> for row, metadata in zip(features, design.encode(table)):  # one sample at a time
        ...     _ = layer(row[None], metadata[None])
        >>> round(layer.coefficients()["age"].item(), 3)
        0.5
    """

    beta: Tensor
    information: Tensor
    weight: Tensor

    def __init__(
        self,
        design: Design,
        feature_shape: int | Sequence[int | None],
        *,
        forgetting: float = 0.9995,
        ridge: float = 0.1,
        share: Share | None = None,
        channel_axis: int = 1,
    ) -> None:
        if not 0 < forgetting <= 1:
            raise OptionError(f"forgetting must lie in (0, 1]; got {forgetting}. It is counted per sample.")
        if ridge <= 0:
            raise OptionError(f"ridge must be positive; got {ridge}.")
        super().__init__(design, feature_shape, share=share, channel_axis=channel_axis)
        self.forgetting = forgetting
        self.ridge = ridge
        prior = torch.eye(self._directions)
        prior[-1, -1] = 1e-10  # the intercept is free, but solvable before the first row that fits
        self.register_buffer("beta", torch.zeros(self._directions, *self.coefficient_shape))
        self.register_buffer("information", prior)
        self.register_buffer("weight", torch.tensor(float(ridge)))

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        if self._may_update(batch):
            self._learn(pool_positions(x.detach()), batch)
        return residualize(x, batch.confounds, self._beta()[: batch.confounds.shape[1]].clone())

    @torch.no_grad()
    def _learn(self, features: Tensor, batch: WhitenedBatch) -> None:
        errors = residualize(features, batch.regressors, self._beta())
        of_batch = batch.moments(errors)
        new = recursive_update(self._beta(), self.information, self.weight, of_batch, self.forgetting)
        some = of_batch.rows > 0
        finite = all_finite(new[0], new[1]) | (some ^ True)
        self._count_skip(finite)
        for buffer, value in zip((self.beta, self.information, self.weight), new, strict=True):
            store(buffer, value, finite & some)
