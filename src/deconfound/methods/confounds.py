"""The confounds of a design as methods see them: which metadata columns each one has, and what its levels look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import ShapeError
from deconfound.layers.whitened import as_tensor, refuse_nan


@dataclass(frozen=True)
class Confound:
    """One entry of the design's confounds.

    Attributes:
        name: `age`, `site`, `spline(age, 4)`.
        start: Its first metadata column.
        width: How many columns it has.
        levels: The levels of a category, the reference first; empty for a quantity.
        codes: `(levels, width)`: what each level is in the metadata; empty for a quantity.
    """

    name: str
    start: int
    width: int
    levels: tuple[Any, ...]
    codes: Tensor

    def part(self, metadata: Tensor) -> Tensor:
        """Its columns of the metadata."""
        return metadata[:, self.start : self.start + self.width]


def confounds_of(design: Design) -> tuple[Confound, ...]:
    """Every confound of a fitted design, in the order of its columns."""
    fitted = design.to_dict()
    levels = {codec["name"]: tuple(codec["levels"]) for codec in fitted["codecs"] if "levels" in codec}
    found: list[Confound] = []
    start = 0
    for term, data in zip(design.confounds, fitted["confounds"], strict=True):
        width = len(data["labels"])
        known = levels.get(str(term), ()) if data["term"]["kind"] == "linear" else ()
        codes = (np.eye(len(known))[:, 1:] - data["mean"]) / data["sd"] if known else np.empty((0, width))
        found.append(Confound(str(term), start, width, known, torch.from_numpy(codes).float()))
        start += width
    return tuple(found)


def read_confounds(metadata: Tensor | None, design: Design, n: int, training: bool) -> Tensor | None:
    """C, `(n, p_C)`, checked; None in eval stands for the population mean and is given back."""
    if metadata is None:
        if training:
            raise ShapeError("metadata must be given in training; got None. Write metadata=design.encode(rows).")
        return None
    tensor = as_tensor(metadata, design, n)
    refuse_nan(tensor, design, training)
    return tensor[:, : len(design.confound_columns)]
