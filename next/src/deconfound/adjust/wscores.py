"""W-scores: scores standardised by those of controls with the same confounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deconfound.adjust.residualize import SMALLEST_VARIANCE, check_finite, read_rows
from deconfound.design import Design, Term
from deconfound.errors import StateError, TableError
from deconfound.table import Kind, Table

Array = NDArray[np.float64]

# Residuals below this share of a score's size are rounding: the confounds explain the score.
SMALLEST_SCALE = 1e-9


class ControlNorms(NamedTuple):
    """What controls score. The first row of a coefficient is its value at average confounds.

    Attributes:
        location: Coefficients of the location, shape `(1 + q, k)`.
        scale: Coefficients of the scale, shape `(1 + q, k)`.
        smallest_scale: Half of the mean scale, shape `(k,)`.
    """

    location: Array
    scale: Array
    smallest_scale: Array


class WScores:
    """Scores less what controls with the same confounds score, over how much these differ.

        w = (score − location(c)) / scale(c)

    The location is b₀ + c b, by least squares on the controls. The scale is g₀ + c g, by least
    squares of √(π/2) |score − location(c)|, whose expectation is the sd of a normal score. A scale
    is never below half of the mean scale, because a straight line may fall to 0. Each column of
    scores is treated alone.

    Controls must be held out: a model scores those it was trained on too well.

    Args:
        design: A design that was fitted to the controls. With `unseen="mean"`, a site without
            controls is read as the mean of theirs. Labels of the design are not read.

    Attributes:
        norms: What the controls score; None before `fit`. Assign them to restore fitted W-scores.

    Example:
        >>> import numpy as np
        >>> from deconfound.adjust import WScores
        >>> rng = np.random.default_rng(0)
        >>> age = rng.uniform(50, 90, 400)
        >>> scores = age / 10 + rng.normal(size=400)  # of held-out controls: the older, the higher
        >>> norms = WScores.from_controls(scores, {"age": age}, ["age"])
        >>> people = {"age": [70.0, 90.0]}
        >>> metadata = norms.design.encode(people, dtype=np.float64)
        >>> norms.transform([7.0, 11.0], metadata).round()  # usual for 70, high even for 90
        array([0., 2.])
    """

    def __init__(self, design: Design) -> None:
        if not design.is_fitted:
            raise StateError("The design is not fitted. Call design.fit(table_of_controls) first.")
        self.design = design
        self.norms: ControlNorms | None = None

    @classmethod
    def from_controls(
        cls,
        scores: ArrayLike,
        table: Table,
        confounds: Sequence[Term],
        *,
        types: Mapping[str, Kind] | None = None,
        unseen: Literal["error", "mean"] = "mean",
    ) -> Self:
        """Fit a design of the confounds to held-out controls, and W-scores to their scores.

        Args:
            scores: Scores of the controls, shape `(n,)` or `(n, k)`.
            table: The same rows, controls alone.
            confounds: Columns or terms, as in `Design`.
            types: Kinds of columns, as in `Design`.
            unseen: What a level without controls is, as in `Design`.
        """
        design = Design(confounds, types=types, unseen=unseen).fit(table)
        return cls(design).fit(scores, design.encode(table, dtype=np.float64))

    def fit(self, scores: ArrayLike, metadata: ArrayLike) -> Self:
        """Estimate location and scale of the controls.

        Args:
            scores: Scores of held-out controls, shape `(n,)` or `(n, k)`.
            metadata: `design.encode(table, dtype=np.float64)` of the same rows.

        Raises:
            ShapeError: The arrays do not fit together, or are not finite.
            TableError: There are too few controls, or the design was not fitted to them.
        """
        values, columns = self._read(scores, metadata)
        check_finite("scores", values, np.ones(len(values), dtype=bool))
        count = columns.shape[1]
        if len(values) <= 2 * count:
            raise TableError(
                f"Controls must be more than twice the {count} coefficients of the confounds; got "
                f"{len(values)}. Name fewer confounds, or hold out more controls."
            )
        if np.linalg.matrix_rank(columns, rtol=SMALLEST_VARIANCE**0.5) < count:
            raise TableError(
                "The confounds of these controls vary less than those of the design, such as a "
                "site without controls. Write WScores.from_controls(scores, table, confounds)."
            )
        least_squares = np.linalg.pinv(columns)
        location = least_squares @ values
        distance = np.sqrt(np.pi / 2) * np.abs(values - columns @ location)
        scale, mean_scale = least_squares @ distance, distance.mean(axis=0)
        is_explained = mean_scale <= SMALLEST_SCALE * np.sqrt(np.square(values).mean(axis=0))
        self.norms = ControlNorms(location, scale, np.where(is_explained, 1.0, mean_scale / 2))
        return self

    def transform(self, scores: ArrayLike, metadata: ArrayLike) -> Array:
        """Return W-scores, in the shape of the scores.

        Args:
            scores: Scores of the same model, shape `(n,)` or `(n, k)`.
            metadata: `design.encode(table, dtype=np.float64)` of the same rows.

        Raises:
            ShapeError: The arrays do not fit together, or the confounds are not finite.
            StateError: The W-scores are not fitted.
        """
        norms = self._require_norms()
        values, columns = self._read(scores, metadata)
        scale = np.maximum(columns @ norms.scale, norms.smallest_scale)
        return np.reshape((values - columns @ norms.location) / scale, np.shape(scores))

    def at_average(self, scores: ArrayLike, metadata: ArrayLike) -> Array:
        """Return W-scores in the units of the scores, as if all rows had average confounds.

        The order of rows is that of their W-scores. Logits become logits again.

        Args:
            scores: Scores of the same model, shape `(n,)` or `(n, k)`.
            metadata: `design.encode(table, dtype=np.float64)` of the same rows.
        """
        norms = self._require_norms()
        scale = np.maximum(norms.scale[0], norms.smallest_scale)
        w = self.transform(scores, metadata)
        return np.reshape(norms.location[0] + scale * w.reshape(len(w), -1), w.shape)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-safe data, from which `from_dict` restores these W-scores."""
        norms = self._require_norms()._asdict()
        lists = {name: value.tolist() for name, value in norms.items()}
        return {"design": self.design.to_dict(), "norms": lists}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the W-scores that `to_dict` described."""
        scores = cls(Design.from_dict(data["design"]))
        arrays = {name: np.array(value) for name, value in data["norms"].items()}
        scores.norms = ControlNorms(**arrays)
        return scores

    def _read(self, scores: ArrayLike, metadata: ArrayLike) -> tuple[Array, Array]:
        """Return scores `(n, k)` and regressors `(n, 1 + q)`: ones, and white confounds."""
        values = np.asarray(scores, dtype=np.float64)
        values = values[:, None] if values.ndim == 1 else values
        values, m = read_rows(values, metadata, self.design)
        p, q = len(self.design.confound_columns), self.design.confound_directions
        check_finite("metadata", m[:, :p], np.ones(len(m), dtype=bool))
        white = m[:, :p] @ self.design.whitening[:p, :q]
        return values, np.column_stack([np.ones(len(m)), white])

    def _require_norms(self) -> ControlNorms:
        if self.norms is None:
            raise StateError("The W-scores are not fitted. Call fit(scores, metadata) first.")
        return self.norms
