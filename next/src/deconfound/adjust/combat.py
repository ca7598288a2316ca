"""ComBat: remove what a site adds to features, and by how much it scales them.

Johnson, Li and Rabinovic (2007), "Adjusting batch effects in microarray expression data using
empirical Bayes methods". A feature of row i at site s is modelled as

    f_i = α + X_i β + σ (γ_s + δ_s ε_i)

with covariates X, which are the other confounds and the labels, and a location γ_s and scale δ_s of
the site. Few rows estimate these two badly. Therefore each feature's estimate is drawn towards the
mean over all features of the same site.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist

from deconfound.adjust.residualize import SMALLEST_VARIANCE, check_finite, read_rows
from deconfound.design import Design, source_columns
from deconfound.errors import OptionError, ShapeError, StateError, TableError, nearest_names
from deconfound.table import format_names

Array = NDArray[np.float64]

# Noise below this share of a feature's size is rounding: site and covariates explain the feature.
SMALLEST_NOISE = 1e-9
# Five to twenty-five rounds are usual. A site of two rows may take 200.
MAX_ROUNDS = 1000


class SiteEffects(NamedTuple):
    """What ComBat estimates. The shapes do not depend on the number of rows.

    Attributes:
        coefficients: α and β of the c columns of the other confounds, shape `(1 + c, d)`. The first
            row is each feature at the mean over sites and labels.
        location: σ γ*, what each of s sites adds, in the units of the features, shape `(s, d)`.
        scale: δ*, by how much each site multiplies the noise, shape `(s, d)`.
    """

    coefficients: Array
    location: Array
    scale: Array


class ComBat:
    """Location and scale of each site by empirical Bayes, removed from features.

    The other confounds and the labels (`keep` of the design) take part in the fit, so that their
    effects are not credited to the sites. The effects of both stay in the features: fit a
    `Residualizer` to the result to remove those of the confounds. `transform` reads no labels. They
    stand at their mean in every row, and what they add is scaled like noise.

    An unseen or missing site is an error of `design.encode`. With `unseen="mean"` of the design,
    such a row takes no part in the fit, and `transform` returns it as it is.

    Args:
        design: A fitted design.
        batch: The categorical confound whose levels are the sites.

    Attributes:
        effects: The estimates; None before `fit`. Assign them to restore a fitted ComBat.

    Example:
        >>> import numpy as np
        >>> from deconfound import Design
        >>> from deconfound.adjust import ComBat
        >>> table = {"site": ["A"] * 50 + ["B"] * 50}
        >>> volumes = np.random.default_rng(0).normal(5, 1, size=(100, 20))
        >>> volumes[50:] = 3 + 2 * volumes[50:]  # site B measures more, and more noisily
        >>> design = Design(["site"]).fit(table)
        >>> metadata = design.encode(table, dtype=np.float64)
        >>> adjusted = ComBat(design, "site").fit(volumes, metadata).transform(volumes, metadata)
        >>> [float(part.mean().round(1)) for part in (volumes[50:], adjusted[:50], adjusted[50:])]
        [13.0, 9.0, 9.0]
        >>> [float(part.std().round(1)) for part in (volumes[50:], adjusted[:50], adjusted[50:])]
        [2.0, 1.6, 1.6]
    """

    def __init__(self, design: Design, batch: str) -> None:
        if not design.is_fitted:
            raise StateError("The design is not fitted. Call design.fit(training_table) first.")
        names = [str(term) for term in design.confounds if term in design.levels]
        if batch not in names or len(design.levels[batch]) < 2:
            advice = nearest_names(str(batch), names) if names else "The design has none."
            raise OptionError(
                f"batch must be a categorical confound with two or more levels; got {batch!r}. "
                f"{advice} Write ComBat(design, batch='site')."
            )
        self.design, self.batch = design, batch
        self.effects: SiteEffects | None = None
        # Which columns of the metadata are those of the sites, and of the other confounds.
        is_confound = np.array([column.role == "confound" for column in design.columns])
        self._sites = np.array([column.term == batch for column in design.columns])
        self._covariates = is_confound & ~self._sites
        self._site_codes = _encode_levels(design, batch)[:, self._sites]

    def fit(self, features: ArrayLike, metadata: ArrayLike) -> Self:
        """Estimate the effects of the sites on the training rows.

        Args:
            features: f, shape `(n, d)`. Two or more must vary.
            metadata: `design.encode(table, dtype=np.float64)` of the same rows, with labels.

        Raises:
            ShapeError: The arrays do not fit together, or are not finite.
            TableError: Sites have fewer than two different rows.
        """
        f, m = read_rows(features, metadata, self.design)
        site = self._read_sites(m)
        has_site = site < len(self._site_codes)
        check_finite("features", f, has_site)
        check_finite("metadata", m, has_site)
        f, m, site = f[has_site], m[has_site], site[has_site]
        levels = enumerate(self.design.levels[self.batch])
        small = [level for code, level in levels if len(np.unique(f[site == code], axis=0)) < 2]
        if small:
            raise TableError(
                f"Levels of {self.batch!r} with fewer than two different rows have no scale: "
                f"{format_names(small)}. Leave their rows out, or join them with other levels."
            )
        centred, mean = m - m.mean(axis=0), f.mean(axis=0)
        # White columns, as in Residualizer: what labels and confounds share is the labels'.
        white, rcond = centred @ self.design.whitening, SMALLEST_VARIANCE**0.5
        slopes = self.design.whitening @ np.linalg.lstsq(white, f - mean, rcond=rcond)[0]
        of_site_and_noise = f - mean - centred[:, ~self._sites] @ slopes[~self._sites]
        noise = of_site_and_noise - centred[:, self._sites] @ slopes[self._sites]
        sigma = np.sqrt(np.square(noise).mean(axis=0))
        is_noisy = sigma > SMALLEST_NOISE * np.sqrt(np.square(f).mean(axis=0))
        if is_noisy.sum() < 2:
            raise ShapeError(
                "ComBat compares features with each other and needs two or more that vary; got "
                f"{is_noisy.sum()}. Use a Residualizer."
            )
        parts = [of_site_and_noise[site == code] for code in range(len(self._site_codes))]
        # Without noise there is nothing to shrink and nothing to scale.
        location = np.stack([part.mean(axis=0) for part in parts])
        scale = np.ones_like(location)
        for code, part in enumerate(parts):
            shift, variance = _shrink_site(part[:, is_noisy] / sigma[is_noisy])
            location[code, is_noisy] = shift * sigma[is_noisy]
            scale[code, is_noisy] = np.sqrt(variance)
        intercept = mean - m[:, self._covariates].mean(axis=0) @ slopes[self._covariates]
        coefficients = np.vstack([intercept, slopes[self._covariates]])
        self.effects = SiteEffects(coefficients, location, scale)
        return self

    def transform(self, features: ArrayLike, metadata: ArrayLike) -> NDArray[np.floating[Any]]:
        """Return α + Xβ + (f − α − Xβ − location) / scale, in the precision of the features.

        Args:
            features: f, shape `(n, d)`.
            metadata: `design.encode(table, dtype=np.float64)` of the same rows. The label columns
                are not read and may be NaN.

        Raises:
            ShapeError: The arrays do not fit together, or the confounds are not finite.
            StateError: ComBat is not fitted.
        """
        coefficients, location, scale = self._require_effects()
        f, m = read_rows(features, metadata, self.design)
        d = coefficients.shape[1]
        if f.shape[1] != d:
            raise ShapeError(f"features must have {d} columns, as in fit; got {f.shape[1]}.")
        site = self._read_sites(m)
        # Rows without a site have the last code: nothing is subtracted and nothing is scaled.
        location, scale = np.vstack([location, np.zeros(d)]), np.vstack([scale, np.ones(d)])
        base = coefficients[0] + m[:, self._covariates] @ coefficients[1:]
        adjusted: Array = base + (f - base - location[site]) / scale[site]
        given = np.asarray(features).dtype
        return adjusted.astype(given if given.kind == "f" else np.float64, copy=False)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-safe data, from which `from_dict` restores a fitted ComBat."""
        effects = self._require_effects()._asdict()
        lists = {name: value.tolist() for name, value in effects.items()}
        return {"design": self.design.to_dict(), "batch": self.batch, "effects": lists}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the ComBat that `to_dict` described."""
        combat = cls(Design.from_dict(data["design"]), data["batch"])
        arrays = {name: np.array(value) for name, value in data["effects"].items()}
        combat.effects = SiteEffects(**arrays)
        return combat

    def _require_effects(self) -> SiteEffects:
        if self.effects is None:
            raise StateError("ComBat is not fitted. Call fit(features, metadata) first.")
        return self.effects

    def _read_sites(self, metadata: Array) -> NDArray[np.intp]:
        """Return the code of each row's site, shape `(n,)`; s, their number, is no site."""
        is_needed = np.ones(len(metadata), dtype=bool)
        check_finite("metadata", metadata[:, self._sites | self._covariates], is_needed)
        # An unseen or missing site is encoded as 0.
        codes = np.vstack([self._site_codes, np.zeros(self._site_codes.shape[1])])
        return np.asarray(cdist(metadata[:, self._sites], codes).argmin(axis=1))


def _encode_levels(design: Design, name: str) -> Array:
    """Return the metadata of one row for each level of a confound, shape `(levels, p)`."""
    levels = design.levels[name]
    # Any valid value for the others: a number, or the first level.
    row = {other: design.levels.get(other, [0.0])[0] for other in source_columns(design.confounds)}
    table = {other: [value] * len(levels) for other, value in row.items()}
    return np.asarray(design.encode({**table, name: levels}, dtype=np.float64))


def _shrink_site(z: Array) -> tuple[Array, Array]:
    """Return γ* and δ*² of each feature at one site, shape `(d,)` each.

    Over the features of the site, γ has a normal prior, δ² an inverse gamma prior. The moments of
    the plain estimates γ̂ and δ̂² give their parameters. γ* and δ*² are conditional posterior
    means, computed in turns until they agree:

        γ* = (n τ² γ̂ + δ*² γ̄) / (n τ² + δ*²)
        δ*² = (½ Σ (z − γ*)² + b) / (n/2 + a − 1)

    Args:
        z: Standardised features of the n rows, less the effects of the covariates, shape `(n, d)`.
    """
    n = len(z)
    gamma_hat, delta_hat = z.mean(axis=0), z.var(axis=0, ddof=1)
    gamma_bar, tau = gamma_hat.mean(), gamma_hat.var(ddof=1)
    m, s = delta_hat.mean(), delta_hat.var(ddof=1)
    location, variance = gamma_hat, delta_hat
    for _ in range(MAX_ROUNDS):
        previous = np.stack([location, variance])
        location = (n * tau * gamma_hat + variance * gamma_bar) / (n * tau + variance)
        squares = (n - 1) * delta_hat + n * np.square(gamma_hat - location)
        # a = 2 + m² / s and b = m + m³ / s, multiplied by s, which is 0 if all δ̂² are equal.
        variance = (s * squares / 2 + m * s + m**3) / (s * (n / 2 + 1) + m**2)
        if np.allclose([location, variance], previous, rtol=1e-10, atol=1e-12):
            break
    return location, variance
