"""Which label group a row is in, read from whitened metadata: the combinations of the levels of keep."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deconfound.design import Design

Codes = np.ndarray[Any, np.dtype[np.float64]]

# More combinations of levels than this are not told apart: their effects on features are taken as linear.
MOST_GROUPS = 32
# A row further from every code than this has no label.
FAR = 0.05


class LabelGroups(NamedTuple):
    """How label groups are read from `R = [z_C, z_L, 1]`.

    Attributes:
        back: `(q, columns)`: R times this are the standardised keep columns that have levels.
        codes: `(G, columns)`: what each group has there; one row and no column where keep has no levels.
    """

    back: Tensor
    codes: Tensor

    def __call__(self, regressors: Tensor) -> tuple[Tensor, Tensor]:
        """The group of each row, `(n,)`, and whether its label is known, `(n,)`."""
        away = (regressors @ self.back).unsqueeze(1) - self.codes
        distance, group = away.square().sum(2).min(1)
        return group, distance <= FAR**2


def label_groups(design: Design, like: Tensor) -> LabelGroups:
    """The groups of a design's keep columns: of categories, booleans, and numeric columns that hold only 0 and 1."""
    directions = design.confound_directions
    columns: list[int] = []
    levels: list[list[tuple[float, ...]]] = []
    start = len(design.confound_columns)
    for codes, width in keep_codes(design):
        used = [index for index in range(width) if design.columns[start + index].used]
        if used and len(codes) and len(codes) * _count(levels) <= MOST_GROUPS:
            columns += [start + index for index in used]
            levels.append([tuple(row) for row in codes[:, used]])
        start += width
    back = np.zeros((design.whitening.shape[1] + 1, len(columns)))
    kept, inverse = _keep_inverse(design)
    back[directions:-1] = inverse[:, [kept.index(index) for index in columns]]
    rows = [sum(parts, ()) for parts in product(*levels)]
    of_groups = torch.tensor(rows, dtype=like.dtype, device=like.device).reshape(len(rows), len(columns))
    return LabelGroups(torch.tensor(back, dtype=like.dtype, device=like.device), of_groups)


def keep_part(design: Design) -> Tensor:
    """K, `(q_L, q_C)` with `c = z_C + z_L K`: z_C is what keep does not explain of the confounds c."""
    kept, inverse = _keep_inverse(design)
    return torch.from_numpy(-inverse @ design.whitening[kept, : design.confound_directions])


def _keep_inverse(design: Design) -> tuple[list[int], Codes]:
    """The keep columns that are used, and the matrix by which z_L leads back to them: that of a triangle."""
    kept = [index for index, column in enumerate(design.columns) if column.role == "keep" and column.used]
    inverse: Codes = np.linalg.inv(design.whitening[kept, design.confound_directions :]).astype(np.float64)
    return kept, inverse


def groups_of(design: Design) -> int:
    """How many label groups a design has."""
    return len(label_groups(design, torch.empty(0)).codes)


def keep_codes(design: Design) -> list[tuple[Codes, int]]:
    """Of each keep term what its levels are in standardised columns, `(levels, columns)`, and how many columns it has.

    Empty codes for a numeric column; one that holds only 0 and 1 is known by its variance, p (1 − p).
    """
    fitted = design.to_dict()
    numeric = {codec["name"]: codec for codec in fitted["codecs"] if codec["kind"] == "numeric"}
    found: list[tuple[Codes, int]] = []
    for term, data in zip(design.keep, fitted["keep"], strict=True):
        mean, sd = np.asarray(data["mean"], np.float64), np.asarray(data["sd"], np.float64)
        plain = data["term"]["kind"] == "linear"
        levels = len(design.levels.get(str(term), ())) if plain else 0
        codec = numeric.get(str(term)) if plain else None
        codes = np.empty((0, len(mean)))
        if levels:
            codes = (np.eye(levels)[:, 1:] - mean) / sd
        elif codec is not None and _is_binary(codec["mean"], codec["sd"]):
            codes = ((np.array([[0.0], [1.0]]) - codec["mean"]) / codec["sd"] - mean) / sd
        found.append((codes, len(mean)))
    return found


def _is_binary(mean: float, sd: float) -> bool:
    return 0 < mean < 1 and abs(sd**2 - mean * (1 - mean)) <= 1e-9


def _count(levels: list[list[tuple[float, ...]]]) -> int:
    return int(np.prod([len(each) for each in levels])) if levels else 1
