"""Is a confound used, beyond being encoded? How outputs move when its direction is erased from the features.

The outputs are read off the features by least squares. The confound's part of the features, `C β` of the fit
`features ≈ b₀ + C β + L γ` with the labels L, is subtracted in growing shares, and the same read-out is applied again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deconfound.auditing.measures import scaled
from deconfound.metrics.columns import Column

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Below this the outputs are no linear function of the features, and erasing there says little about them.
FEWEST_EXPLAINED = 0.9


@dataclass(frozen=True)
class Erased:
    """Outputs `(n, k)` after each share of a confound was erased, and how much of the outputs the read-out explains."""

    outputs: tuple[Tensor, ...]
    explained: float
    moved: float


def erase(outputs: Tensor, features: Tensor, confound: Column, labels: Sequence[Column]) -> Erased | None:
    """Outputs of features from which a confound without gaps is erased; None where features are too many to read."""
    n, d = features.shape
    if n <= d + 10:
        return None
    centred = features - features.mean(0)
    y = outputs - outputs.mean(0)
    weights = torch.linalg.lstsq(centred, y, driver="gelsd").solution
    rest = y - centred @ weights
    explained = 1 - float(rest.square().sum() / y.square().sum().clamp_min(1e-300))
    design = torch.cat([scaled(confound), *(scaled(label) for label in labels)], dim=1)
    design = design - design.mean(0)
    width = scaled(confound).shape[1]
    beta = torch.linalg.lstsq(design, centred, driver="gelsd").solution[:width]
    part = design[:, :width] @ beta @ weights
    moved = float(part.square().sum() / y.square().sum().clamp_min(1e-300))
    return Erased(tuple(outputs - share * part for share in SHARES), explained, moved)
