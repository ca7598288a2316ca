"""What ComBat does to the rows of each site, read off combatlearn as maps, affine in a row and its covariates."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.design.table import level_names
from deconfound.errors import DeconfoundError, OptionError, TableError
from deconfound.methods.confounds import Confound, which_level

# Cubic splines with ten functions, as in combatlearn and neuroHarmonize.
DEGREE = 3
SPLINES = 10


class SiteMaps(NamedTuple):
    """What ComBat does to a row of site s: `mix[s] x + shift[s] + C slope[s]`, C with its curves where there are any.

    Attributes:
        mix: `(sites, d)`, a factor for each feature; `(sites, d, d)` for CovBat, which mixes them.
        shift: `(sites, d)`.
        slope: `(sites, covariates, d)`.
    """

    mix: Tensor
    shift: Tensor
    slope: Tensor


def fit_maps(
    x: Tensor, covariates: Tensor, used: Tensor, level: Tensor, site: Confound, covbat: bool, options: dict[str, Any]
) -> tuple[SiteMaps, Tensor]:
    """Fit combatlearn's ComBat, and read its maps off what it does to a few rows per site; and the rows harmonised.

    The effects of `covariates (n, c)` stay; those that are not `used (c,)` are unknown at inference and stand at their
    mean, 0. `level (n,)` is the site of each row; `options` are combatlearn's.
    """
    frame, series, harmoniser = _combatlearn()
    levels, width = len(site.levels), x.shape[1]
    refuse_small(torch.bincount(level, minlength=levels), site)
    mean, sd = x.mean(0), x.std(0)
    sd = torch.where(sd > 0, sd, torch.ones_like(sd))
    changed = torch.nonzero(used).ravel().tolist()
    # For each site a row at the mean, rows a standard deviation away from it, and one for each covariate that is known.
    steps = torch.diag(sd) if covbat else sd.unsqueeze(0)
    probes = mean.repeat(levels, 1 + len(steps) + len(changed), 1)
    probes[:, 1 : 1 + len(steps)] += steps
    known = torch.zeros(levels, probes.shape[1], covariates.shape[1], dtype=x.dtype)
    for row, index in enumerate(changed, start=1 + len(steps)):
        known[:, row, index] = 1
    rows = frame(torch.cat([x, probes.flatten(0, 1)]).numpy())
    given = frame(torch.cat([covariates, known.flatten(0, 1)]).numpy())
    sites = series(torch.cat([level, torch.arange(levels).repeat_interleave(probes.shape[1])]).numpy())
    kind = "chen" if covbat else "fortin"
    fitted = harmoniser(sites, continuous_covariates=given if given.shape[1] else None, method=kind, **options)
    fitted.fit(rows.iloc[: len(x)])
    said = torch.tensor(np.asarray(fitted.transform(rows)))
    answers = said[len(x) :].reshape(probes.shape)
    moved = answers[:, 1 : 1 + len(steps)] - answers[:, :1]
    mix = (moved / sd.unsqueeze(1)).transpose(1, 2) if covbat else moved[:, 0] / sd
    slope = torch.zeros(levels, covariates.shape[1], width, dtype=x.dtype)
    slope[:, changed] = answers[:, 1 + len(steps) :] - answers[:, :1]
    shift = answers[:, 0] - (mix @ mean if covbat else mix * mean)
    return SiteMaps(mix, shift, slope), said[: len(x)]


def spline_knots(columns: Tensor) -> Tensor:
    """Knots for each column, `(c, SPLINES + DEGREE + 1)`: its ends, and quantiles between them."""
    inner = torch.linspace(0, 1, SPLINES - DEGREE + 1, dtype=columns.dtype)[1:-1]
    between = torch.quantile(columns, inner, dim=0).T
    low, high = (end.unsqueeze(1).expand(-1, DEGREE + 1) for end in (columns.amin(0), columns.amax(0)))
    return torch.cat([low, between, high], dim=1)


def spline_columns(columns: Tensor, knots: Tensor) -> Tensor:
    """`(n, c · (SPLINES − 1))`: every column as B-splines, the first left out; beyond the ends they stay as there."""
    x = columns.clamp(knots[:, 0], knots[:, -1]).unsqueeze(2)
    left, right = knots[:, :-1], knots[:, 1:]
    last = (right == knots[:, -1:]) & (left < right)
    basis = (((x >= left) & (x < right)) | ((x == right) & last)).to(columns)
    for degree in range(1, DEGREE + 1):
        start, end = knots[:, : -degree - 1], knots[:, degree + 1 :]
        rising = (x - start) / _or_one(knots[:, degree:-1] - start)
        falling = (end - x) / _or_one(end - knots[:, 1:-degree])
        basis = rising * basis[..., :-1] + falling * basis[..., 1:]
    return basis[..., 1:].flatten(1)


def refuse_few_values(columns: Tensor, names: list[str]) -> None:
    """A curve needs values to bend at."""
    for name, column in zip(names, columns.T, strict=True):
        values = len(column.unique())
        if values < SPLINES:
            raise TableError(
                f"{name} must have at least {SPLINES} values with gam=True; got {values}. Leave gam out, or read the "
                "column as categorical."
            )


def refuse_small(counts: Tensor, site: Confound) -> None:
    """ComBat takes the variance within each site, of which there are several."""
    names = level_names(site.levels)
    small = [f"{name} ({count})" for name, count in zip(names, counts.tolist(), strict=True) if count < 2]
    if small:
        raise TableError(
            f"every level of {site.name} must have at least 2 rows for method 'combat'; got {', '.join(small)}. "
            "Leave these sites out, or join them."
        )
    if len(names) < 2:
        raise TableError(f"{site.name} must have at least 2 levels for method 'combat'; got {names[0]!r} alone.")


def levels_of(metadata: Tensor, site: Confound) -> Tensor:
    """`(n,)`: which level each row has."""
    return which_level(site.part(metadata), site.codes.to(metadata), site, "combat")


def numeric_confounds(design: Design, found: tuple[Confound, ...]) -> list[Confound]:
    """The confounds that are one numeric column, for curves."""
    return [each for each in found if not each.levels and each.width == 1 and design.columns[each.start].used]


def _or_one(gap: Tensor) -> Tensor:
    return torch.where(gap > 0, gap, torch.ones_like(gap))


def _combatlearn() -> tuple[Any, Any, Any]:
    try:
        import pandas as pd  # type: ignore[import-untyped]
        from combatlearn import ComBat
    except ImportError as missing:
        raise DeconfoundError(
            f"method 'combat' must have combatlearn and pandas; got no {missing.name}. "
            "Install them: pip install 'deconfound[combat]'."
        ) from missing
    return pd.DataFrame, pd.Series, ComBat


def nested_confounds(names: tuple[str, ...], site: Confound, found: tuple[Confound, ...]) -> list[Confound]:
    """The site and the further batch variables, in the order in which they are harmonised."""
    categories = {each.name: each for each in found if each.levels and each.name != site.name}
    for name in names:
        if name not in categories:
            raise OptionError(
                f"nested must name categorical confounds beside the site {site.name!r}; got {name!r}. There are: "
                f"{', '.join(categories) or 'none'}."
            )
    return [site, *(categories[name] for name in names)]
