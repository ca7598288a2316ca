"""The method `residualized-inputs`: confounds leave the inputs before the network sees them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from deconfound.adjust import ComBat, SiteEffects
from deconfound.design import Design
from deconfound.errors import OptionError, ShapeError, StateError
from deconfound.layers import MetadataLayer, Moments, WhitenedBatch, check_metadata
from deconfound.methods.base import Batches, Method, Setting
from deconfound.methods.layered import has_weight, rows_with_weight

Rows = Iterable[tuple[Tensor, Tensor, Tensor | None]]


class ResidualizedInputs(Method):
    """Inputs from which confounds are removed by a fit to the training rows, before training.

    The labels take part in the fit, so that their effect is not credited to the confounds and stays
    in the inputs. Rows of `layer_weight` 0 take no part.

    Args:
        network: Any module that maps `(n, …)` to logits.
        setting: The problem. Of its `example` the shape of the inputs is read.
        by: "regression" subtracts C β_C, with β by weighted least squares of each input value on
            confounds and labels. The rows are read batch by batch and not held. "combat" removes
            location and scale of each level of `setting.stratum`, but no other confound, as
            `deconfound.adjust.ComBat` does. It holds the rows during the fit and takes no weights
            but 0 and one other number. Inputs have no gradient behind it.
    """

    needs_confounds = True

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        by: Literal["regression", "combat"] = "regression",
    ) -> None:
        super().__init__(network, setting)
        if by not in ("regression", "combat"):
            raise OptionError(f"by must be 'regression' or 'combat'; got {by!r}.")
        if not setting.example.is_floating_point():
            raise ShapeError(
                f"inputs must be floating-point numbers; got {setting.example.dtype}. Scale them, "
                "or choose a method that acts on features."
            )
        effect: RegressionEffect | SiteEffect
        if by == "combat":
            effect = SiteEffect(setting.design, setting.stratum)
        else:
            effect = RegressionEffect(setting.design, setting.example.shape[1:])
        self.effect = effect.to(setting.example.device)
        self.is_fitted = False

    def fit(self, batches: Batches) -> None:
        """Fit the confounds' effects to the training rows."""
        if not has_weight(batches):
            raise OptionError(
                "batches must contain a row with a layer_weight above 0; got none. Pass the "
                "training rows."
            )
        self.effect.fit(rows_with_weight(batches))
        self.is_fitted = True

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        """Return logits `(n, outputs)` of the inputs without the confounds."""
        if not self.is_fitted:
            raise StateError(
                "The effects of the confounds are not fitted. Call method.fit(training_batches) "
                "before the first step."
            )
        checked = check_metadata(metadata, self.effect.design, len(x), training=False)
        logits: Tensor = self.network(self.effect.remove(x, checked))
        return logits

    def get_extra_state(self) -> Tensor:
        """Return whether the method is fitted, as a tensor that every format can save."""
        return torch.tensor(self.is_fitted)

    def set_extra_state(self, state: Tensor) -> None:
        """Take over whether the method is fitted."""
        self.is_fitted = bool(state)


class RegressionEffect(MetadataLayer):
    """C β_C, where β is fitted once: a layer that learns nothing while the network trains."""

    def __init__(self, design: Design, shape: Sequence[int]) -> None:
        super().__init__(design, shape)
        self.register_buffer("beta", torch.zeros(self._size))

    def fit(self, rows: Rows) -> None:
        """Fit β by sums over the rows, in double precision."""
        exact = RegressionEffect(self.design, self.shape)
        total: Moments | None = None
        for x, metadata, weight in rows:
            # Apple's GPUs have no double precision.
            exact.to(x.device, torch.float32 if x.device.type == "mps" else torch.float64)
            checked = check_metadata(metadata, self.design, len(x), training=True)
            batch = exact.whitening.whiten(checked, weight)
            moments = batch.exact_moments(x.flatten(1).to(exact.beta))
            total = moments if total is None else total + moments
        assert total is not None
        if not bool(total.cross.isfinite().all()):
            raise ShapeError("inputs must be finite; got NaN or infinity. Fill missing cells.")
        exact.refit(total)
        self.beta.copy_(exact.beta)

    def remove(self, x: Tensor, metadata: Tensor) -> Tensor:
        """Return x − C β_C."""
        return self.forward_whitened(x, self.whitening.whiten_confounds(metadata))

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        return self.subtract_effect(x, batch.confounds)


class SiteEffect(nn.Module):
    """Location and scale of each site, estimated and removed by ComBat on the CPU."""

    def __init__(self, design: Design, site: str | None) -> None:
        super().__init__()
        if site is None:
            raise OptionError(
                "by='combat' needs the categorical confound whose levels are harmonised; got none. "
                "Set design.stratum in a config, or Setting(…, stratum='site')."
            )
        self.design = design
        self.combat = ComBat(design, site)

    def fit(self, rows: Rows) -> None:
        """Fit ComBat to all rows together."""
        x, metadata, weights = zip(*rows, strict=True)
        given = [weight for weight in weights if weight is not None]
        if given and len(torch.cat(given).unique()) > 1:
            raise OptionError(
                "by='combat' takes layer weights of 0 and one other number; got several. Use "
                "by='regression', or draw the training rows by weight."
            )
        self.combat.fit(torch.cat(x).flatten(1).cpu(), torch.cat(metadata).cpu())

    def remove(self, x: Tensor, metadata: Tensor) -> Tensor:
        """Return the inputs as if all sites were one. They have no gradient."""
        adjusted = self.combat.transform(x.detach().flatten(1).cpu().float(), metadata.cpu())
        return torch.from_numpy(adjusted).view(x.shape).to(x)

    def get_extra_state(self) -> Tensor:
        """Return the estimates as the rows of one matrix in double precision; none if not fitted.

        They are no buffers because a cast to half precision would round them.
        """
        effects = self.combat.effects
        return torch.empty(0) if effects is None else torch.from_numpy(np.vstack(effects))

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the estimates of a checkpoint."""
        sites = len(self.design.levels[self.combat.batch])
        parts = np.split(state.cpu().numpy(), [-2 * sites, -sites])
        self.combat.effects = SiteEffects(*parts) if len(state) else None
