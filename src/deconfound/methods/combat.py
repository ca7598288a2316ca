"""`combat`: the features of a table harmonised over sites by ComBat, before the network sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from deconfound.errors import OptionError, ShapeError
from deconfound.layers.whitened import as_tensor, refuse_nan
from deconfound.methods.base import Method, Setting
from deconfound.methods.combat_maps import (
    DEGREE,
    SPLINES,
    fit_maps,
    levels_of,
    nested_confounds,
    numeric_confounds,
    refuse_few_values,
    spline_columns,
    spline_knots,
)
from deconfound.methods.confounds import Confound, confounds_of, read_confounds, site_of


@final
class ComBatMethod(Method):
    """ComBat with covariates (Johnson et al. 2007, Fortin et al. 2018): `logits = network(A_s x + b_s + C γ_s)`.

    combatlearn fits a location and a scale per site and feature, with empirical Bayes, given the other confounds and
    keep as covariates. What it does to a row is affine in the row and its covariates, so the fitted `A_s`, `b_s` and
    `γ_s` of each site are all that is kept. The site's effect goes, those of the other confounds stay. Labels are
    unknown at inference: their part of the covariates is left at the training rows' mean, in training as well.
    combatlearn takes no weights, so rows with weights are refused; rows that are drawn by weight are not.

    Args:
        network: Any module that takes features `(n, d)`.
        setting: The problem, with `site`.
        gam: Let effects of numeric confounds bend, as splines (ComBat-GAM, Pomponio et al. 2020).
        covbat: Harmonise the covariances of the features too (CovBat, Chen et al. 2022).
        nested: Further categorical confounds (scanner, protocol) that are harmonised after the site, one after the
            other (Nested ComBat, Horng et al. 2022).
        parametric: Whether the priors of the empirical Bayes step are parametric.
        mean_only: Correct the location alone.
        controls_only: Fit on the controls alone.
    """

    name: ClassVar[str] = "combat"
    summary: ClassVar[str] = "the features of a table harmonised over sites by ComBat"
    reads_confounds: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False
    needs_site: ClassVar[bool] = True
    takes_new_sites: ClassVar[bool] = False

    knots: Tensor

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        gam: bool = False,
        covbat: bool = False,
        nested: Sequence[str] = (),
        parametric: bool = True,
        mean_only: bool = False,
        controls_only: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.design, self.covbat, self.controls_only = network, setting.design, covbat, controls_only
        self.options_of_fit = {"parametric": parametric, "mean_only": mean_only}
        site, found = site_of(setting, self.name), confounds_of(setting.design)
        batches = nested_confounds((nested,) if isinstance(nested, str) else tuple(nested), site, found)
        self.curved = numeric_confounds(setting.design, found) if gam else []
        if gam and not self.curved:
            raise OptionError("gam must have a numeric confound that can bend; got none. Leave gam out.")
        x = setting.first_batch().x
        if x.ndim != 2:
            shape = tuple(x.shape)
            raise ShapeError(f"inputs of method 'combat' must be features of a table, (n, d); got shape {shape}.")
        columns = len(setting.design.columns) + len(self.curved) * (SPLINES - 1)
        self.register_buffer("knots", x.new_zeros(len(self.curved), SPLINES + DEGREE + 1))
        self.stages = nn.ModuleList(Stage(batch, x, columns, covbat) for batch in batches)

    def fit(self, setting: Setting) -> None:
        """The maps of all sites, by combatlearn on the training rows."""
        x, metadata = gather(setting, self.controls_only)
        x, metadata = x.double(), metadata.double()
        if self.curved:
            numeric = self._curved(metadata)
            refuse_few_values(numeric, [confound.name for confound in self.curved])
            self.knots.copy_(spline_knots(numeric))
        covariates = self._covariates(metadata)
        columns = [*self.design.columns, *[None] * (covariates.shape[1] - len(self.design.columns))]
        batches = [stage.batch for stage in self.stages if isinstance(stage, Stage)]
        taken = {i for batch in batches for i in range(batch.start, batch.start + batch.width)}
        taken |= {confound.start for confound in self.curved}
        varies = (covariates.std(0) > 1e-6).tolist()  # among controls the label does not
        given = [
            i for i, column in enumerate(columns) if varies[i] and i not in taken and (column is None or column.used)
        ]
        labels = {i for i, column in enumerate(self.design.columns) if column.role == "keep"}
        known = torch.tensor([i not in labels for i in given])
        for stage in self.stages:
            assert isinstance(stage, Stage)
            level = levels_of(metadata, stage.batch)
            maps, x = fit_maps(x, covariates[:, given], known, level, stage.batch, self.covbat, self.options_of_fit)
            stage.mix.copy_(maps.mix)
            stage.shift.copy_(maps.shift)
            stage.slope.zero_()
            stage.slope[:, given] = maps.slope.to(stage.slope)

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(self.harmonised(x, metadata))
        return logits

    def harmonised(self, x: Tensor, metadata: Tensor | None) -> Tensor:
        """The features as if all sites were one."""
        confounds = read_confounds(metadata, self.design, len(x), self.training)
        if confounds is None:
            raise ShapeError(
                "metadata must be given to method 'combat'; got None. It needs the site of each row: "
                "write metadata=design.encode(rows)."
            )
        labels = confounds.new_zeros(len(x), len(self.design.columns) - confounds.shape[1])
        covariates = self._covariates(torch.cat([confounds, labels], dim=1)).to(x)
        for stage in self.stages:
            x = stage(x, covariates, confounds)
        return x

    def _curved(self, metadata: Tensor) -> Tensor:
        return metadata[:, [confound.start for confound in self.curved]]

    def _covariates(self, metadata: Tensor) -> Tensor:
        """The metadata, and the curves of numeric confounds."""
        if not self.curved:
            return metadata
        return torch.cat([metadata, spline_columns(self._curved(metadata), self.knots.to(metadata))], dim=1)


class Stage(nn.Module):
    """The maps of one batch variable; see `SiteMaps`."""

    mix: Tensor
    shift: Tensor
    slope: Tensor

    def __init__(self, batch: Confound, x: Tensor, covariates: int, covbat: bool) -> None:
        super().__init__()
        self.batch = batch
        sites, width = len(batch.levels), x.shape[1]
        unit = torch.eye(width).expand(sites, width, width) if covbat else torch.ones(sites, width)
        self.register_buffer("mix", unit.to(x).clone())
        self.register_buffer("shift", x.new_zeros(sites, width))
        self.register_buffer("slope", x.new_zeros(sites, covariates, width))

    def forward(self, x: Tensor, covariates: Tensor, confounds: Tensor) -> Tensor:
        """`A_s x + b_s + C γ_s`."""
        site = levels_of(confounds, self.batch)
        mixed = torch.einsum("nij,nj->ni", self.mix[site], x) if self.mix.ndim == 3 else self.mix[site] * x
        return mixed + self.shift[site] + (covariates.unsqueeze(1) @ self.slope[site]).squeeze(1)


def gather(setting: Setting, controls_only: bool) -> tuple[Tensor, Tensor]:
    """All training rows, `(n, d)` and `(n, p)`: ComBat fits them at once."""
    inputs, metadata = [], []
    for batch in setting.training():
        if batch.row_weight is not None:
            raise OptionError(
                "rows of method 'combat' must come without weights, for combatlearn takes none; got weights. Draw rows "
                "by weight instead (training.balance_by: sample), or leave balance out."
            )
        rows = batch.controls_only() if controls_only else slice(None)
        inputs.append(batch.x[rows].cpu())
        metadata.append(as_tensor(batch.metadata, setting.design, len(batch.x))[rows].cpu())
    stacked = torch.cat(metadata)
    refuse_nan(stacked, setting.design, training=True)
    return torch.cat(inputs), stacked
