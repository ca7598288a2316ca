"""W-scores: scores standardised by what controls with the same confounds score; for any model, trained here or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from deconfound.design import Design, Kind, Policy, Table, Term
from deconfound.design.table import is_category
from deconfound.errors import OptionError, ShapeError, TableError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WScores:
    """`w = (s − location(c)) / scale(c)`, with location and scale of held-out controls that have the confounds c.

    `location(c) = b₀ + c β` by least squares on the controls; `scale(c) = √(π/2) (g₀ + c γ)` by least squares of the
    absolute residuals, whose mean is `√(2/π)` standard deviations of a normal score, and never below half of their
    mean. Controls that the model was trained on are scored too well: use held-out ones.

    Attributes:
        design: The confounds, fitted on the controls.
        location: `(1 + p, k)`, b₀ and β of each of k scores.
        scale: `(1 + p, k)`, g₀ and γ.
        floor: `(k,)`, the least scale.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> age = rng.uniform(50, 90, 400)
        >>> scores = age / 10 + rng.normal(size=400)  # of held-out controls: the older, the higher
        >>> norm = WScores.fit(scores, {"age": age}, ["age"])
        >>> norm([7.0, 9.0], {"age": [70.0, 90.0]}).round(1) + 0.0  # as usual for their age
        array([0., 0.])
    """

    design: Design
    location: Array
    scale: Array
    floor: Array

    @classmethod
    def fit(
        cls,
        scores: Any,
        table: Table,
        confounds: Sequence[str | Term],
        controls: Any = None,
        *,
        types: Mapping[str, Kind] | None = None,
        missing: Policy = "error",
        unseen: Policy = "error",
    ) -> Self:
        """Fit location and scale.

        Args:
            scores: Of held-out rows, `(n,)` or `(n, k)`.
            table: Their confounds.
            confounds: Columns or terms.
            controls: One boolean per row; None for rows that are all controls.
            types: See `Design`.
            missing: See `Design`.
            unseen: See `Design`; with "mean" a new site is read as the average one.
        """
        values = _columns(scores)
        chosen = np.ones(len(values), bool) if controls is None else np.asarray(controls, bool)
        if chosen.shape != (len(values),):
            raise ShapeError(f"controls must have one value per score; got {chosen.shape} for {len(values)} scores.")
        names = table.keys() if hasattr(table, "keys") else ()
        kept = {str(name): table[name] for name in names}  # a category of pandas stays one
        rows = {name: (cells if is_category(cells) else np.asarray(cells))[chosen] for name, cells in kept.items()}
        design = Design(confounds, types=types, missing=missing, unseen=unseen).fit(rows)
        values, columns = values[chosen], _design_matrix(design, rows)
        if len(values) <= 2 * columns.shape[1]:
            raise TableError(
                f"controls must be more than twice the {columns.shape[1]} coefficients of the confounds; got "
                f"{len(values)}. Name fewer confounds, or hold out more controls."
            )
        location = np.linalg.lstsq(columns, values, rcond=None)[0]
        away = np.abs(values - columns @ location) * np.sqrt(np.pi / 2)
        floor = np.where(away.mean(0) > 1e-12, away.mean(0) / 2, 1.0)
        return cls(design, location, np.linalg.lstsq(columns, away, rcond=None)[0], floor)

    def __call__(self, scores: Any, table: Table) -> Array:
        """W-scores of new rows, in the shape of the scores.

        Args:
            scores: Of the same model.
            table: Their confounds; no labels.
        """
        values, columns = _columns(scores), _design_matrix(self.design, table)
        if len(values) != len(columns):
            raise ShapeError(f"scores and table must have the same rows; got {len(values)} and {len(columns)}.")
        found = (values - columns @ self.location) / np.maximum(columns @ self.scale, self.floor)
        return found.reshape(np.shape(scores))

    def at_average(self, scores: Any, table: Table) -> Array:
        """W-scores in the units of the scores: what each row would score with the average confounds of the controls.

        Of logits it makes logits again, of the same order as the W-scores.

        Args:
            scores: Of the same model.
            table: Their confounds.
        """
        found: Array = _columns(self(scores, table)) * np.maximum(self.scale[0], self.floor) + self.location[0]
        return found.reshape(np.shape(scores))

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        numbers = {name: getattr(self, name).tolist() for name in ("location", "scale", "floor")}
        return {"design": self.design.to_dict(), **numbers}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What `to_dict` gave."""
        numbers = (np.array(data[name], dtype=np.float64) for name in ("location", "scale", "floor"))
        return cls(Design.from_dict(data["design"]), *numbers)


def _columns(scores: Any) -> Array:
    values = np.asarray(scores, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not np.isfinite(values).all():
        raise OptionError(f"scores must be finite numbers (n,) or (n, k); got shape {np.shape(scores)}.")
    return values


def _design_matrix(design: Design, table: Table) -> Array:
    encoded = design.encode(table, np.float64)
    return np.column_stack([np.ones(len(encoded)), encoded])
