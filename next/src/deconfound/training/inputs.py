"""Inputs of a network: stored values scaled by mean and sd of the training rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deconfound.errors import ShapeError, TableError

# An sd below this share of the mean is rounding. Divided by it, a constant would become noise.
ROUNDING = 1e-7
# Values that are read in one piece, so that rows in a file need not fit into memory.
VALUES_AT_ONCE = 4_000_000


class Inputs(nn.Module):
    """Scale stored values to (x − mean) / sd, with the mean and sd of the training rows.

    Tables and embeddings have one mean and sd per column; images, scans and sequences have one per
    channel. A missing cell (NaN) becomes 0, the mean. Both are buffers, so that a network is saved
    with the scale of its inputs; `Inputs(shape)` takes them back by `load_state_dict`.

    Args:
        shape: The shape of one sample: `(d,)` for a table, `(channels, …)` for all others.

    Attributes:
        mean: Shape `(d,)`, or `(channels, 1, …)`.
        scale: The sd in the same shape, 1 where values do not vary.

    Example:
        >>> ages = np.array([[60.0], [80.0], [np.nan]], dtype=np.float32)
        >>> inputs = Inputs.from_rows(ages, np.array([0, 1]))
        >>> inputs(torch.from_numpy(ages)).tolist()
        [[-1.0], [1.0], [0.0]]
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = (shape[0], *[1] * (len(shape) - 1))
        self.register_buffer("mean", torch.zeros(self.shape))
        self.register_buffer("scale", torch.ones(self.shape))

    @classmethod
    def from_rows(cls, x: NDArray[np.generic], rows: NDArray[np.integer]) -> Inputs:
        """Return the scaling of some rows, the training rows.

        Args:
            x: The stored values of all samples, uint8 or floating, shape `(N, …)`; may be a file in
                memory (`np.memmap`), of which only a part is read at a time.
            rows: Row numbers, shape `(n,)`.

        Raises:
            TableError: Values are infinite.
        """
        total, mean, squares = np.zeros((3, x.shape[1]))
        for values, weight in _read_blocks(x, rows):
            if np.isinf(values).any():
                places = np.flatnonzero(np.isinf(values).any(axis=1))[:5].tolist()
                raise TableError(
                    f"Inputs are infinite in columns or channels {places} (counted from 0). "
                    "Write NaN in a table where a value is missing, and finite numbers elsewhere."
                )
            # Moments of the block, merged with those of the blocks before it (Chan et al., 1979).
            count = weight.sum(axis=1)
            block_mean = (weight * values).sum(axis=1) / count.clip(min=1)
            gap, merged = block_mean - mean, (total + count).clip(min=1)
            squares += (weight * (values - block_mean[:, None]) ** 2).sum(axis=1)
            squares += gap**2 * total * count / merged
            mean += gap * count / merged
            total += count
        inputs = cls(x.shape[1:])
        scale = scale_of(mean, np.sqrt(squares / total.clip(min=1)))
        inputs.mean.copy_(torch.from_numpy(mean).view(inputs.shape))
        inputs.scale.copy_(torch.from_numpy(scale).view(inputs.shape))
        return inputs

    def forward(self, x: Tensor) -> Tensor:
        """Return float32 inputs from stored values of the same shape `(n, …)`."""
        if x.ndim != 1 + len(self.shape) or x.shape[1] != self.shape[0]:
            raise ShapeError(
                f"The network was trained on samples with {self.shape[0]} columns or channels and "
                f"{len(self.shape)} axes; got inputs of shape {tuple(x.shape)}. "
                "Pass the same features, channels and axes."
            )
        values = ((x - self.mean) / self.scale).float()
        return torch.where(values.isnan(), 0.0, values) if x.is_floating_point() else values


def scale_of(mean: NDArray[np.float64], sd: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what to divide by: the sd, or 1 where it is 0 or no more than rounding."""
    return np.where(sd <= ROUNDING * np.abs(mean), 1.0, sd)


def _read_blocks(
    x: NDArray[np.generic], rows: NDArray[np.integer]
) -> Iterator[tuple[NDArray[np.float64], NDArray[Any]]]:
    """Return values and their weights block by block, shape `(columns or channels, values)`."""
    rows = np.sort(rows)  # A file is read faster from its start to its end.
    size = max(1, VALUES_AT_ONCE // max(1, x[:1].size))
    for start in range(0, len(rows), size):
        block = np.moveaxis(x[rows[start : start + size]], 1, 0).reshape(x.shape[1], -1)
        if block.dtype == np.uint8:
            # Of bytes, 256 counts per channel are all there is to know.
            yield (
                np.arange(256.0)[None],
                np.stack([np.bincount(one, minlength=256) for one in block]),
            )
        else:
            is_known = ~np.isnan(block)
            yield np.where(is_known, block, 0).astype(np.float64), is_known
