"""Weights of rows, checked: how much each row counts in whatever is fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.design.table import in_rows
from deconfound.errors import ShapeError


def row_weight(weight: Any, rows: int) -> NDArray[np.float64]:
    """One finite, non-negative weight per row, not all zero; ones if None."""
    if weight is None:
        return np.ones(rows)
    if hasattr(weight, "detach"):
        weight = weight.detach().cpu()
    try:
        values = np.asarray(weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"weight must be one number per row; got {error}.") from error
    if values.shape != (rows,):
        raise ShapeError(f"weight must have one number for each of {rows} rows; got shape {values.shape}.")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        raise ShapeError(
            f"weight must be finite and not negative; got {values[wrong[0]]} {in_rows(wrong)}. Give 0 to leave one out."
        )
    if not values.any():
        raise ShapeError(f"weight must be positive in at least one row; got {rows} zeros.")
    scaled: NDArray[np.float64] = values / values.max()
    return scaled
