"""Rows of sites that a run has not seen: by the mean of the known sites, or adapted to each new one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.design import Design
from deconfound.design.table import without_point
from deconfound.errors import OptionError
from deconfound.methods.base import Method
from deconfound.methods.layered import LayerMethod
from deconfound.surgery.adapt import FEWEST
from deconfound.training.fold_data import AT_ONCE
from deconfound.training.odd_cells import rows_in_words
from deconfound.training.samples import outputs_of

Unseen = Literal["mean", "adapt", "error"]


def with_policy(design: Design, unseen: Unseen | None) -> Design:
    """The design with another answer to levels that it does not know; None leaves its own."""
    if unseen not in (None, "mean", "adapt", "error"):
        raise OptionError(f"unseen must be 'mean', 'adapt' or 'error'; got {unseen!r}.")
    if unseen is not None:
        design.unseen = "error" if unseen == "error" else "mean"
    return design


def methods_for_rows(
    method: Method, design: Design, table: Mapping[str, Any], x: Any, metadata: Tensor | None
) -> tuple[list[tuple[NDArray[np.intp], Method]], list[str]]:
    """Which rows are predicted by which copy of a method, and a sentence for each new site; `x` reads scaled inputs."""
    if not isinstance(method, LayerMethod) or metadata is None:
        raise OptionError(
            f"unseen='adapt' must have a method whose layers read the confounds; got {method.name!r}. Write "
            "unseen='mean'."
        )
    left = np.ones(len(metadata), dtype=bool)
    found: list[tuple[NDArray[np.intp], Method]] = []
    told = []
    for new in design.assumed(table):
        rows = np.asarray(new.rows)[left[list(new.rows)]]
        if new.value is None:
            continue
        level = without_point(new.value)
        if len(rows) < FEWEST:
            few = f"{rows_in_words(len(rows))}, too few to adapt to"
            told.append(f"{new.column} {level!r}: {few}, the mean is used")
            continue
        parts = _in_parts(rows)
        adaptation = method.model.adapt(lambda parts=parts: ((x(part), metadata[part]) for part in parts))  # type: ignore[misc]
        twin = copy.copy(method)
        twin._modules = {**method._modules, "model": adaptation.model}
        found.append((rows, twin))
        told.append(f"{new.column} {level!r}: {adaptation}")
        left[rows] = False
    return [*found, (np.flatnonzero(left), method)], told


def predicted(groups: list[tuple[NDArray[np.intp], Method]], x: Any, metadata: Tensor | None) -> Tensor:
    """Logits of all rows, each by its own copy of the method."""
    logits = []
    for own, method in groups:
        if len(own):
            pairs = ((x(part), None if metadata is None else metadata[part]) for part in _in_parts(own))
            logits.append(outputs_of(method, pairs).logits.reshape(len(own), -1).double())
    order = np.argsort(np.concatenate([rows for rows, _ in groups]))
    return torch.cat(logits)[torch.from_numpy(order)]


def _in_parts(rows: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    return [rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE)]
