"""`combat`: the features of a table harmonised over sites by ComBat, before the network sees them."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.errors import DeconfoundError, OptionError, ShapeError, TableError
from deconfound.layers.whitened import as_tensor, refuse_nan
from deconfound.methods.base import Method, Setting
from deconfound.methods.confounds import Confound, read_confounds, site_of, which_level


@final
class ComBatMethod(Method):
    """ComBat with covariates (Johnson et al. 2007, Fortin et al. 2018): `logits = network(a_s ∘ x + b_s + C γ_s)`.

    combatlearn fits a location and a scale per site and feature, with empirical Bayes, given the other confounds and
    keep as covariates. What it does to a row is affine in the row and its covariates, so the fitted `a_s`, `b_s` and
    `γ_s` of each site are all that is kept. The site's effect goes, those of the other confounds stay. Labels are
    unknown at inference: their part of the covariates is left at the training rows' mean, in training as well.
    combatlearn takes no weights, so rows with weights are refused; rows that are drawn by weight are not.

    Args:
        network: Any module that takes features `(n, d)`.
        setting: The problem, with `site`.
        parametric: Whether the priors of the empirical Bayes step are parametric.
        mean_only: Correct the location alone.
        controls_only: Fit on the controls alone.
    """

    name: ClassVar[str] = "combat"
    summary: ClassVar[str] = "the features of a table harmonised over sites by ComBat"
    reads_confounds: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False

    codes: Tensor
    scale: Tensor
    shift: Tensor
    slope: Tensor

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        parametric: bool = True,
        mean_only: bool = False,
        controls_only: bool = False,
    ) -> None:
        super().__init__()
        self.model = network
        self.design = setting.design
        self.site = site_of(setting, self.name)
        self.options_of_fit = {"parametric": parametric, "mean_only": mean_only}
        self.controls_only = controls_only
        x = setting.first_batch().x
        if x.ndim != 2:
            shape = tuple(x.shape)
            raise ShapeError(f"inputs of method 'combat' must be features of a table, (n, d); got shape {shape}.")
        sites, confounds, features = len(self.site.levels), len(setting.design.confound_columns), x.shape[1]
        self.register_buffer("codes", self.site.codes)
        self.register_buffer("scale", x.new_ones(sites, features))
        self.register_buffer("shift", x.new_zeros(sites, features))
        self.register_buffer("slope", x.new_zeros(sites, confounds, features))

    def fit(self, setting: Setting) -> None:
        """The maps of all sites, by combatlearn on the training rows."""
        x, metadata = gather(setting, self.controls_only)
        maps = site_maps(x.double(), metadata.double(), self.design, self.site, self.options_of_fit)
        for buffer, values in zip((self.scale, self.shift, self.slope), maps, strict=True):
            buffer.copy_(values)

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
        site = which_level(self.site.part(confounds), self.codes, self.site, self.name)
        covariates = confounds.to(self.slope).unsqueeze(1)
        return self.scale[site] * x + self.shift[site] + (covariates @ self.slope[site]).squeeze(1)


class SiteMaps(NamedTuple):
    """What ComBat does to a row of site s: `scale[s] ∘ x + shift[s] + C slope[s]`."""

    scale: Tensor
    shift: Tensor
    slope: Tensor


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


def site_maps(x: Tensor, metadata: Tensor, design: Design, site: Confound, options: dict[str, Any]) -> SiteMaps:
    """Fit combatlearn's ComBat, and read its affine maps off what it does to a few rows per site."""
    try:
        import pandas as pd  # type: ignore[import-untyped]
        from combatlearn import ComBat as Harmoniser
    except ImportError as missing:
        raise DeconfoundError(
            f"method 'combat' must have combatlearn and pandas; got no {missing.name}. "
            "Install them: pip install 'deconfound[combat]'."
        ) from missing
    levels = len(site.levels)
    level = which_level(site.part(metadata), site.codes.double(), site, "combat")
    refuse_small(torch.bincount(level, minlength=levels), site)
    of_site = range(site.start, site.start + site.width)
    varies = (metadata.std(0) > 1e-6).tolist()  # among controls the label does not
    given = [
        index for index, column in enumerate(design.columns) if column.used and varies[index] and index not in of_site
    ]
    changed = [index for index in given if design.columns[index].role == "confound"]

    # For each site a row at the mean, one a standard deviation above it, and one for each covariate that is known.
    mean, sd = x.mean(0), x.std(0)
    sd = torch.where(sd > 0, sd, torch.ones_like(sd))
    probes = mean.repeat(levels, 2 + len(changed), 1)
    probes[:, 1] += sd
    covariates = torch.zeros(levels, 2 + len(changed), metadata.shape[1], dtype=x.dtype)
    for row, index in enumerate(changed, start=2):
        covariates[:, row, index] = 1

    rows = pd.DataFrame(torch.cat([x, probes.flatten(0, 1)]).numpy())
    known = pd.DataFrame(torch.cat([metadata, covariates.flatten(0, 1)])[:, given].numpy())
    sites = pd.Series(torch.cat([level, torch.arange(levels).repeat_interleave(2 + len(changed))]).numpy())
    harmoniser = Harmoniser(sites, continuous_covariates=known if given else None, method="fortin", **options)
    harmoniser.fit(rows.iloc[: len(x)])
    answers = torch.tensor(np.asarray(harmoniser.transform(rows.iloc[len(x) :]))).reshape(probes.shape)

    scale = (answers[:, 1] - answers[:, 0]) / sd
    slope = torch.zeros(levels, len(design.confound_columns), x.shape[1], dtype=x.dtype)
    slope[:, changed] = answers[:, 2:] - answers[:, :1]
    return SiteMaps(scale, answers[:, 0] - scale * mean, slope)


def refuse_small(counts: Tensor, site: Confound) -> None:
    """ComBat takes the variance within each site, of which there are several."""
    small = [f"{name} ({count})" for name, count in zip(site.levels, counts.tolist(), strict=True) if count < 2]
    if small:
        raise TableError(
            f"every level of {site.name} must have at least 2 rows for method 'combat'; got {', '.join(small)}. "
            "Leave these sites out, or join them."
        )
    if len(site.levels) < 2:
        raise TableError(f"{site.name} must have at least 2 levels for method 'combat'; got {site.levels[0]!r} alone.")
