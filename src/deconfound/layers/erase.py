"""Erase: the least change after which no linear probe finds the confounds within any label (LEACE)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers.base import MetadataLayer
from deconfound.layers.checkpoint import Share
from deconfound.layers.erasure import GroupMoments, add_rows, erase, erasing_map, label_share, rank, within_groups
from deconfound.layers.functional import pool_positions
from deconfound.layers.labels import LabelGroups, groups_of, keep_part, label_groups
from deconfound.layers.whitened import WhitenedBatch

# Up to so many features the whole covariance is kept; of more, its diagonal.
FULL_COVARIANCE = 1024


@dataclass(frozen=True)
class ErasureReport:
    """What an `Erase` layer does to its features, as its moments tell.

    Attributes:
        features: How many features there are.
        directions: How many it may have to erase: those of the confounds, in every label group.
        rank: How many it erases.
        removed_label_signal: Which share of the labels' effect beside the confounds goes with them, 0 to 1, in units
            of the features' spread within labels; NaN where there are no labels or no rows yet.
        rows: Of how many rows the moments are.
    """

    features: int
    directions: int
    rank: int
    removed_label_signal: float
    rows: float


class Erase(MetadataLayer):
    """Linear erasure of the confounds within labels, with no metadata in eval (LEACE, Belrose et al. 2023).

    `r = f − E (f − μ)` with `E = S (Sᵀ Σ⁻¹ S)⁺ Sᵀ Σ⁻¹`: S holds the cross-covariances of features and confounds within
    every label group, Σ is the covariance of the features within labels. Of all maps after which no linear probe within
    any label finds the confounds, it is the one that changes features least. Labels that are categories make groups,
    one of each combination of levels; on numeric labels both sides are regressed first.

    - Training: the moments follow the features, counting about the last `memory` rows, and the map follows them. The
      network's gradient passes through the map, so nothing pushes it along erased directions.
    - Eval: features alone. A new site's shift goes as far as it lies in the span of those of known sites.

    Differs from the paper: moments are taken within labels and stream; the covariance is shrunk to its diagonal where
    rows are few (of more than 1,024 features only the diagonal is kept), which costs nothing of the erasure; tolerances
    are relative, so that no unit matters. `report` tells the rank and how much of the labels goes with it. Of fewer
    features than `least_features` nothing is left.

    Args:
        design: A fitted design.
        feature_shape: The shape of one sample's features.
        memory: Over how many of the newest rows the moments reach; `math.inf` forgets nothing, for features that stand
            still.
        shrinkage: How far the covariance is shrunk to its diagonal, 0 to 1; None takes the OAS rule.
        covariance: "full", "diagonal", or "auto" by the number of features.
        share: See `MetadataLayer`; the mean over positions is erased from every position.
        channel_axis: See `MetadataLayer`.

    Example:
        >>> import torch, deconfound as dc
        >>> rng = torch.Generator().manual_seed(0)
        >>> table = {"age": torch.randn(200, generator=rng).numpy(), "dx": [0, 1] * 100}
        >>> design = dc.Design(confounds=["age"], keep=["dx"]).fit(table)
        >>> age = torch.tensor(table["age"])[:, None]
        >>> features = torch.randn(200, 4, generator=rng) + age * torch.tensor([1.0, -2.0, 0.0, 0.5])
        >>> layer = dc.Erase(design, 4)
        >>> _ = layer(features, design.encode(table))
        >>> erased = layer.eval()(features, None)  # no metadata
        >>> controls = erased[::2]
        >>> (controls - controls.mean(0)).T.matmul(age[::2] - age[::2].mean()).abs().max() < 1e-3
        tensor(True)
        >>> layer.report().rank
        2
    """

    reads_confounds: ClassVar[bool] = False
    label_back: Tensor
    label_codes: Tensor

    def __init__(
        self,
        design: Design,
        feature_shape: int | Sequence[int | None],
        *,
        memory: float = 2000.0,
        shrinkage: float | None = None,
        covariance: Literal["auto", "full", "diagonal"] = "auto",
        share: Share | None = None,
        channel_axis: int = 1,
    ) -> None:
        if not memory >= 1:
            raise OptionError(f"memory must be a number of rows, 1 or more; got {memory}.")
        if shrinkage is not None and not 0 <= shrinkage <= 1:
            raise OptionError(f"shrinkage must lie in [0, 1], or be None; got {shrinkage}.")
        if covariance not in ("auto", "full", "diagonal"):
            raise OptionError(f"covariance must be 'auto', 'full' or 'diagonal'; got {covariance!r}.")
        super().__init__(design, feature_shape, share=share, channel_axis=channel_axis)
        self.memory, self.shrinkage = memory, shrinkage
        full = covariance == "full" or (covariance == "auto" and self._features <= FULL_COVARIANCE)
        empty = GroupMoments.empty(len(self.label_codes), self._directions - 1, self._features, full)
        for name, value in empty.tensors().items():
            self.register_buffer(name, value)
        self.register_buffer("beta", torch.zeros(self.coefficient_rows(design), *self.coefficient_shape))

    @classmethod
    def coefficient_rows(cls, design: Design) -> int:
        """The mean, and what is written and read of each direction."""
        return 1 + 2 * groups_of(design) * design.confound_directions

    @classmethod
    def least_features(cls, design: Design) -> int:
        """One more than the directions of the confounds in all label groups."""
        return 1 + groups_of(design) * design.confound_directions

    def report(self) -> ErasureReport:
        """The rank, and how much of the labels it removes."""
        moments = self._moments().exact()
        confounds = self.design.confound_directions
        erasing = self._beta().to(moments.weight)
        return ErasureReport(
            self._features,
            len(self.label_codes) * confounds,
            rank(erasing),
            label_share(moments, erasing, keep_part(self.design).to(moments.weight), self.shrinkage),
            float(moments.weight.sum()),
        )

    def coefficients(self) -> dict[str, Tensor]:
        """None: what is subtracted is a function of the features. See `report`."""
        return {}

    def learned_from(self, before: GroupMoments, x: Tensor, batch: WhitenedBatch, memory: float) -> GroupMoments:
        """The moments with the rows of a batch; see `add_rows`."""
        group, known = LabelGroups(self.label_back, self.label_codes)(batch.regressors)
        weights = known.to(before.weight) if batch.weights is None else known * batch.weights.to(before.weight)
        return add_rows(before, pool_positions(x), batch.regressors[:, :-1], group, weights, memory)

    def solve(self, moments: GroupMoments) -> Tensor:
        """The map of some moments, `(1 + 2 r, d)`."""
        rounding = torch.finfo(self.beta.dtype).eps
        within = within_groups(moments, self.design.confound_directions, rounding)
        mean = moments.weight @ moments.feature_mean / moments.weight.sum().clamp(min=1e-12)
        return erasing_map(within, mean, self.shrinkage, rounding).to(self.beta)

    @torch.no_grad()
    def adopt(self, moments: GroupMoments, erasing: Tensor, usable: Tensor) -> None:
        """Keep moments and map where they are usable."""
        for name, value in (*moments.tensors().items(), ("beta", erasing)):
            held = self.get_buffer(name)
            held.copy_(torch.where(usable, value.reshape(held.shape).to(held), held))

    def _moments(self) -> GroupMoments:
        return GroupMoments(**{name: self.get_buffer(name) for name in GroupMoments.__dataclass_fields__})

    def _constants(self, like: Tensor) -> dict[str, Tensor]:
        groups = label_groups(self.design, like)
        return {"label_back": groups.back, "label_codes": groups.codes}

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        if self._may_update(batch):
            self._learn(x.detach(), batch)
        return erase(x, pool_positions(x), self._beta().clone())

    @torch.no_grad()
    def _learn(self, x: Tensor, batch: WhitenedBatch) -> None:
        after = self.learned_from(self._moments().exact(), x, batch, self.memory)
        erasing = self.solve(after)
        sums = [value.sum() for value in after.tensors().values()]
        finite = torch.isfinite(torch.stack(sums)).all()
        self._count_skip(finite)
        self.adopt(after, erasing, finite & torch.isfinite(erasing.sum()))

    def _infer(self, x: Tensor, batch: WhitenedBatch | None) -> Tensor:
        return erase(x, pool_positions(x), self._beta())
