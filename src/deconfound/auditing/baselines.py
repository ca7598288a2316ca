"""What the label can be told from without any model of the data: the confounds, or which cells are missing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from deconfound.metrics.columns import Column
from deconfound.metrics.linear_models import held_out_ridge
from deconfound.metrics.resampling import person_folds

FOLDS = 5


def confounds_alone(confounds: Sequence[Column], labels: Sequence[Column], units: Tensor, seed: int) -> Tensor | None:
    """`(n, k)` cross-validated scores for the labels from the confounds alone; None with too few people."""
    parts = []
    for item in confounds:
        known = item.encoded.nan_to_num(float(item.values[item.present].mean()) if item.kind == "numeric" else 0.0)
        parts.append(known)
        if item.kind == "numeric":
            parts.append((known - known.mean()).square())
    return _predicted(torch.cat([*parts, *_gaps(confounds)], dim=1), labels, units, seed)


def missing_cells_alone(
    confounds: Sequence[Column], labels: Sequence[Column], units: Tensor, seed: int
) -> Tensor | None:
    """The same from nothing but which confounds have no value; None where all have one."""
    gaps = _gaps(confounds)
    return _predicted(torch.cat(gaps, dim=1), labels, units, seed) if gaps else None


def _gaps(confounds: Sequence[Column]) -> list[Tensor]:
    return [(~item.present).double()[:, None] for item in confounds if not bool(item.present.all())]


def _predicted(x: Tensor, labels: Sequence[Column], units: Tensor, seed: int) -> Tensor | None:
    people = len(torch.unique(units))
    if people < 2 * FOLDS or not labels:
        return None
    one = len(labels) == 1
    wanted = [item.encoded if one and item.kind == "categorical" else item.values[:, None] for item in labels]
    targets = torch.cat(wanted, dim=1)
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-12)
    out = held_out_ridge(x, targets, person_folds(units, FOLDS, torch.Generator().manual_seed(seed)))
    # Scores of binary labels are read as above or below one half.
    return out - 0.5 if all(item.kind == "binary" for item in labels) else out
