"""Residualisation: subtract from fixed features what a regression on the confounds explains.

It is the closed form of the paper's metadata normalisation: f ≈ b₀ + C β_C + L β_L by least squares
on the training rows, and the residual r = f − C β_C for any rows.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deconfound.design import Design
from deconfound.errors import ShapeError, StateError

Array = NDArray[np.float64]

# Directions that vary less than this share of the most varying one are not fitted, because metadata
# may arrive as float32, whose squares carry no more digits.
SMALLEST_VARIANCE = 1e-9


class Residualizer:
    """Least squares of features on confounds and labels, of which only the confounds are removed.

    The labels (`keep` of the design) take part in the fit, so that their effect is not credited to
    the confounds. They are not read afterwards: new rows need no labels.

    Args:
        design: A fitted design.

    Attributes:
        design: The design.
        beta: β_C, the effect of each white confound direction on each feature, shape `(q_C, d)`.
            None before `fit`. Assign it to restore a fitted residualiser.

    Example:
        >>> import numpy as np
        >>> from deconfound import Design
        >>> from deconfound.adjust import Residualizer
        >>> table = {"age": [55.5, 60.5, 70.5, 75.5]}
        >>> volume = np.array([[5.5], [5.0], [4.0], [3.5]])  # a tenth less each year
        >>> design = Design(["age"]).fit(table)
        >>> metadata = design.encode(table, dtype=np.float64)
        >>> Residualizer(design).fit(volume, metadata).transform(volume, metadata).round(6).tolist()
        [[4.5], [4.5], [4.5], [4.5]]
    """

    def __init__(self, design: Design) -> None:
        if not design.is_fitted:
            raise StateError("The design is not fitted. Call design.fit(training_table) first.")
        self.design = design
        self.beta: Array | None = None

    def fit(
        self, features: ArrayLike, metadata: ArrayLike, weight: ArrayLike | None = None
    ) -> Self:
        """Estimate β on the training rows.

        Args:
            features: f, shape `(n, d)`.
            metadata: `design.encode(table, dtype=np.float64)` of the same rows, with labels.
            weight: One weight per row, shape `(n,)`, not negative. A weight of 2 is the row twice,
                and a row of weight 0 is absent.

        Raises:
            ShapeError: The arrays do not fit together, or are not finite.
        """
        f, m = read_rows(features, metadata, self.design)
        weights = np.ones(len(f)) if weight is None else np.asarray(weight, dtype=np.float64)
        if weights.shape != (len(f),) or not (weights >= 0).all() or not 0 < weights.sum() < np.inf:
            raise ShapeError(
                f"weight must be {len(f)} finite numbers of 0 or more, of which one is positive; "
                f"got shape {weights.shape} with {weights.ravel()[:5].tolist()} first. "
                "Pass one number for each row."
            )
        # Rows of weight 0 may have neither features nor labels.
        has_weight = weights > 0
        check_finite("features", f, has_weight)
        check_finite("metadata", m, has_weight)
        f, m, weights = f[has_weight], m[has_weight], weights[has_weight]
        white = m @ self.design.whitening
        # Centring is the free intercept b₀, and keeps the digits of features with a large mean.
        white = white - np.average(white, axis=0, weights=weights)
        f = f - np.average(f, axis=0, weights=weights)
        weighted = white * weights[:, None]
        inverse = np.linalg.pinv(weighted.T @ white, rcond=SMALLEST_VARIANCE, hermitian=True)
        beta = inverse @ (weighted.T @ f)
        self.beta = beta[: self.design.confound_directions]
        return self

    def transform(self, features: ArrayLike, metadata: ArrayLike) -> NDArray[np.floating[Any]]:
        """Return r = f − C β_C, shape `(n, d)`, in the precision of the features.

        A row with the mean confounds of the design stays as it is.

        Args:
            features: f, shape `(n, d)`.
            metadata: `design.encode(table, dtype=np.float64)` of the same rows. The label columns
                are not read and may be NaN.

        Raises:
            ShapeError: The arrays do not fit together, or the confounds are not finite.
            StateError: The residualiser is not fitted.
        """
        beta = self._require_beta()
        f, m = read_rows(features, metadata, self.design)
        if f.shape[1] != beta.shape[1]:
            raise ShapeError(
                f"features must have {beta.shape[1]} columns, as in fit; got {f.shape[1]}."
            )
        confounds = m[:, : len(self.design.confound_columns)]
        check_finite("metadata", confounds, np.ones(len(f), dtype=bool))
        given = np.asarray(features).dtype
        residual = f - confounds @ self._to_white() @ beta
        return residual.astype(given if given.kind == "f" else np.float64, copy=False)

    def coefficients(self) -> dict[str, Array]:
        """Return β by confound column, in the user's own units: the effect of one year of age.

        A categorical column has one entry for each level but its reference level.
        """
        effects = self._to_white() @ self._require_beta()
        columns = zip(self.design.confound_columns, effects, strict=True)
        return {column.name: effect / column.unit for column, effect in columns if column.is_used}

    def _to_white(self) -> Array:
        """Return the map from encoded confounds to white directions, shape `(p_C, q_C)`."""
        columns = len(self.design.confound_columns)
        return self.design.whitening[:columns, : self.design.confound_directions]

    def _require_beta(self) -> Array:
        if self.beta is None:
            raise StateError("The residualiser is not fitted. Call fit(features, metadata) first.")
        return self.beta


def read_rows(features: ArrayLike, metadata: ArrayLike, design: Design) -> tuple[Array, Array]:
    """Return features and metadata in double precision, with the same rows."""
    f, m = np.asarray(features, dtype=np.float64), np.asarray(metadata, dtype=np.float64)
    if f.ndim != 2:
        raise ShapeError(
            f"features must have shape (n, d); got {f.shape}. Write features.reshape(n, -1)."
        )
    expected = (len(f), len(design.names))
    if m.shape != expected:
        raise ShapeError(
            f"metadata must have shape {expected}, one row for each row of the features and one "
            f"column for each of {', '.join(design.names)}; got {m.shape}. "
            "Write metadata=design.encode(rows)."
        )
    return f, m


def check_finite(name: str, values: Array, is_needed: NDArray[np.bool_]) -> None:
    """Refuse rows that are needed and hold NaN or infinity."""
    rows = np.flatnonzero(is_needed & ~np.isfinite(values).all(axis=1))
    if len(rows):
        raise ShapeError(
            f"{name} must be finite; got NaN or infinity in {len(rows)} rows, the first is row "
            f"{rows[0]}. Leave these rows out, or use "
            "Design(…, unseen='mean') for missing confounds."
        )
