"""The confounds of a design as methods see them: which metadata columns each one has, and what its levels look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.design.table import in_rows, level_names
from deconfound.errors import OptionError, ShapeError, TableError, did_you_mean
from deconfound.layers.whitened import as_tensor, refuse_nan
from deconfound.methods.base import Setting


@dataclass(frozen=True)
class Confound:
    """One entry of the design's confounds.

    Attributes:
        name: `age`, `site`, `spline(age, 4)`.
        start: Its first metadata column.
        width: How many columns it has.
        levels: The levels of a category, the reference first; empty for a numeric column.
        codes: `(levels, width)`: what each level is in the metadata; empty for a numeric column.
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
    fitted, levels = design.to_dict(), design.levels
    found: list[Confound] = []
    start = 0
    for term, data in zip(design.confounds, fitted["confounds"], strict=True):
        width = len(data["labels"])
        known = tuple(levels.get(str(term), ())) if data["term"]["kind"] == "linear" else ()
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


def site_of(setting: Setting, method: str) -> Confound:
    """The confound that the setting calls the site."""
    categories = {confound.name: confound for confound in confounds_of(setting.design) if confound.levels}
    if setting.site in categories:
        return categories[setting.site]
    hint = did_you_mean(setting.site or "", categories, f"There are: {', '.join(categories) or 'none'}.")
    raise OptionError(f"site must be a categorical confound for method {method!r}; got {setting.site!r}.{hint}")


def which_level(columns: Tensor, codes: Tensor, confound: Confound, method: str) -> Tensor:
    """`(n,)`: which level each row has, by the nearest code; a level that was not in fit is refused."""
    # The faster way by a matrix product loses the digits that tell a level from its neighbour.
    distances = torch.cdist(columns.to(codes), codes, compute_mode="donot_use_mm_for_euclid_dist")
    distance, level = distances.min(1)
    strangers = torch.nonzero(distance > 1e-3).ravel().tolist()
    if strangers:
        raise TableError(
            f"{confound.name} must be a level that method {method!r} was fitted on "
            f"({', '.join(level_names(confound.levels))}); got another {in_rows(strangers)}. Leave these rows out, or "
            "choose a method that takes an unseen site."
        )
    return level
