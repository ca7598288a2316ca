"""Inputs standardised by what the training rows look like, and outputs in their units again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Scaler:
    """`(x - mean) / scale` for each input, empty cells being the mean.

    Attributes:
        mean: Of the training rows' filled cells; None leaves inputs alone.
        scale: Their standard deviation, 1 where an input does not vary; None fills empty cells and does no more.
    """

    mean: NDArray[np.float64] | None = None
    scale: NDArray[np.float64] | None = None

    def __call__(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Standardise samples."""
        if self.mean is None:
            return np.asarray(x, dtype=np.float32)
        if self.scale is None:
            return np.where(np.isnan(x), self.mean, x).astype(np.float32)
        return np.nan_to_num((x - self.mean) / self.scale, nan=0.0).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        parts = {"mean": self.mean, "scale": self.scale}
        return {name: values.tolist() for name, values in parts.items() if values is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Scaler:
        """What `to_dict` gave."""
        return cls(*(np.array(data[name]) if name in data else None for name in ("mean", "scale")))


def in_units(outputs: Tensor, units: Mapping[str, Any]) -> Tensor:
    """A network's outputs `(n, outputs)` at the prevalence, or in the units, of the training rows; see `FoldData`."""
    names = ("prior_shift", "target_scale", "target_mean")
    shift, scale, mean = (torch.tensor(units[name], dtype=torch.float64) for name in names)
    return (outputs + shift) * scale + mean


def fit_scaler(batches: Iterable[NDArray[Any]], by_channel: bool = False) -> Scaler:
    """Means and standard deviations over batches of training rows, whose cells may be NaN.

    By channel there is one mean for all places of the first axis of a sample, instead of one for each input.
    """
    axes: tuple[int, ...] = ()
    counts: Any = 0
    total: Any = 0.0
    squares: Any = 0.0
    shift: Any = None
    for batch in batches:
        values = np.asarray(batch, dtype=np.float64)
        if by_channel:  # places are further rows
            axes = tuple([1] * (values.ndim - 2))
            values = np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])
        filled = ~np.isnan(values)
        if shift is None:  # squares around a value near the mean keep their digits
            shift = np.where(filled, values, 0.0).sum(0) / np.maximum(filled.sum(0), 1)
        centred = np.where(filled, values - shift, 0.0)
        counts = counts + filled.sum(0)
        total = total + centred.sum(0)
        squares = squares + np.square(centred).sum(0)
    counts = np.maximum(counts, 1)
    variance = squares / counts - np.square(total / counts)
    spread = np.sqrt(np.maximum(variance, 0.0))
    # Constant inputs keep a spread of rounding errors, which would be blown up to a signal.
    constant = spread <= 1e-7 * (np.abs(shift + total / counts) + 1e-30)
    mean, scale = shift + total / counts, np.where(constant, 1.0, spread)
    return Scaler(mean.reshape(*mean.shape, *axes), scale.reshape(*scale.shape, *axes))
