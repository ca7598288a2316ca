"""A new site without labels: what it adds to the features of each layer, as far as prevalence does not explain it.

In a layer the residual of a row with labels L has the mean `b₀ + L δ_L` at known sites. Rows of a new site, whose
metadata stand at the mean, have `b₀ + L δ_L + offset`. Where labels are known (controls, say) the offset is their mean
distance. Where none is, prevalence and offset cannot be told apart along `δ_L`: the offset is reported for every
prevalence of a stated range, and only what no prevalence of it explains is subtracted.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers.functional import pool_positions
from deconfound.layers.labels import keep_codes, keep_part
from deconfound.layers.shapes import FeatureShape
from deconfound.layers.whitened import as_tensor
from deconfound.surgery.refit import Batches, eval_mode, read_batches

if TYPE_CHECKING:
    from deconfound.surgery.insertion import Insertion
    from deconfound.surgery.model import NormalizedModel

# Fewer rows of a new site than this tell nothing about its offset.
FEWEST = 10
# How many standard errors an interval reaches to both sides.
WIDTH = 1.96
# The mean of a numeric label at a new site, in standard deviations of the training rows, lies between these.
NUMERIC = (-1.0, 1.0)


@dataclass(frozen=True)
class SiteOffset:
    """What a new site adds to the features of one layer, each `(d,)`.

    Attributes:
        subtracted: What the adapted model takes off: the whole offset where labels are known, else the least that
            no prevalence of the range explains.
        low: The lowest that it may be, over prevalences and by sampling (95 %).
        high: The highest.
    """

    subtracted: Tensor
    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class Adaptation:
    """A model for the rows of one new site, and what it was adapted by.

    Attributes:
        model: A copy whose layers take off the site's offset; for rows of this site alone. Its state dict holds the
            offsets (`site_offsets`) and loads into a model that is adapted too; `torch.save` of the whole copy needs no
            such twin.
        offsets: By path of the layer, in the order in which features reach them.
        rows: How many rows of the site there were.
        known: How many of them had labels; these alone were used if there were enough.
        prevalence: The range, where labels were not used.
    """

    model: NormalizedModel
    offsets: Mapping[str, SiteOffset]
    rows: int
    known: int
    prevalence: tuple[float, float] | None

    def __str__(self) -> str:
        path, last = list(self.offsets.items())[-1]
        low, high = float(last.low.min()), float(last.high.max())
        base = f"{self.known} rows with labels" if self.prevalence is None else f"{self.rows} rows without labels"
        over = (
            "" if self.prevalence is None else f" for prevalences from {self.prevalence[0]:g} to {self.prevalence[1]:g}"
        )
        return f"{base}: the offset at {path!r} lies between {low:.3g} and {high:.3g}{over}"


class Shift(nn.Module):
    """Takes an offset off features; it copies, pickles and is saved with the model."""

    offset: Tensor

    def __init__(self, offset: Tensor, shape: FeatureShape) -> None:
        super().__init__()
        self.register_buffer("offset", offset)
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """The features without the offset."""
        flat = self.shape.flatten(x)
        offset = self.offset.to(flat)
        return self.shape.unflatten(flat - (offset if flat.ndim == 2 else offset.unsqueeze(1)), x)


class Collect:
    """Notes the residuals of one layer, `(n, d)`, and lets them pass."""

    def __init__(self, insertion: Insertion, order: list[Collect]) -> None:
        self.insertion, self._order = insertion, order
        self.seen: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        if not self.seen:
            self._order.append(self)
        assert self.insertion.layer is not None
        self.seen.append(pool_positions(self.insertion.layer.shape.flatten(x)).double().cpu())
        return x


@torch.no_grad()
def adapt(model: NormalizedModel, batches: Batches, prevalence: tuple[float, float]) -> Adaptation:
    """See `NormalizedModel.adapt`."""
    low, high = prevalence
    if not 0 <= low < high <= 1:
        raise OptionError(f"prevalence must be a range between 0 and 1; got {prevalence}.")
    if not all(part.kind.reads_confounds for part in model._insertions):
        raise OptionError(
            f"adapt must have layers that read the confounds; got layer={model.plan.layer!r}, which takes a new site "
            "as it is."
        )
    twin = copy.deepcopy(model)
    metadata = _metadata(twin.design, batches)
    waiting = list(twin._insertions)
    offsets: dict[str, SiteOffset] = {}
    known = 0
    with eval_mode(twin):
        while waiting:
            order: list[Collect] = []
            for insertion in waiting:
                insertion.after = Collect(insertion, order)
            for arguments, keywords, rows, _ in read_batches(batches):
                twin(*arguments, metadata=rows, **keywords)
            first = order[0]
            for insertion in waiting:
                insertion.after = None
            layer = first.insertion.layer
            assert layer is not None
            found, known = _offset(
                torch.cat(first.seen), metadata, layer._beta().double().cpu(), twin.design, prevalence
            )
            path = first.insertion.place.path
            shift = Shift(found.subtracted.to(layer._beta()), layer.shape)
            first.insertion.after = shift
            twin.site_offsets[path.replace(".", "/")] = shift
            offsets[path] = found
            waiting.remove(first.insertion)
    used = None if known >= FEWEST else prevalence
    return Adaptation(twin, offsets, len(metadata), known, used)


def _metadata(design: Design, batches: Batches) -> Tensor:
    """The metadata of all rows."""
    parts = [as_tensor(rows, design, len(rows)).double().cpu() for _, _, rows, _ in read_batches(batches)]
    found = torch.cat(parts) if parts else torch.empty(0)
    if len(found) < FEWEST:
        raise OptionError(f"a new site must have at least {FEWEST} rows to adapt to; got {len(found)}. Use the mean.")
    return found


def _offset(
    residuals: Tensor, metadata: Tensor, beta: Tensor, design: Design, prevalence: tuple[float, float]
) -> tuple[SiteOffset, int]:
    """The offset of one layer, and how many rows had labels."""
    confounds, columns = design.confound_directions, len(design.confound_columns)
    # r = b₀ + z_L (b_L − K b_C), and z_L is a map of the keep columns.
    of_keep = beta[confounds:-1] - keep_part(design) @ beta[:confounds]
    per_column = torch.from_numpy(design.whitening[columns:, confounds:]) @ of_keep
    labels = metadata[:, columns:]
    has = ~labels.isnan().any(1)
    known = int(has.sum()) if labels.shape[1] else 0
    if known >= FEWEST:
        away = residuals[has] - beta[-1] - labels[has] @ per_column
        mean, error = away.mean(0), _error(away)
        return SiteOffset(mean, mean - WIDTH * error, mean + WIDTH * error), known
    mean, error = (residuals - beta[-1]).mean(0), _error(residuals)
    box = _label_means(design, prevalence)
    ends = box[:, :1] * per_column, box[:, 1:] * per_column
    least, most = torch.minimum(*ends).sum(0), torch.maximum(*ends).sum(0)
    explained = _nearest(mean / error, per_column / error, box)
    return SiteOffset(mean - explained @ per_column, mean - most - WIDTH * error, mean - least + WIDTH * error), known


def _error(rows: Tensor) -> Tensor:
    """The standard error of the mean of each column."""
    return (rows.std(0) / math.sqrt(len(rows))).clamp(min=1e-12)


def _label_means(design: Design, prevalence: tuple[float, float]) -> Tensor:
    """`(p_L, 2)`: the range of each standardised keep column's mean at a new site."""
    low, high = prevalence
    found = []
    for codes, width in keep_codes(design):
        if not len(codes):
            found += [NUMERIC] * width
        for column in codes.T:  # a share s of rows has the level, and 1 − s another
            without, having = float(column.min()), float(column.max())
            found.append((without + low * (having - without), without + high * (having - without)))
    return torch.tensor(found, dtype=torch.float64).reshape(-1, 2)


def _nearest(target: Tensor, rows: Tensor, box: Tensor) -> Tensor:
    """The m in a box that brings `m rows` nearest to the target, by descent along one coordinate after the other."""
    m = box.mean(1)
    sizes = rows.square().sum(1).clamp(min=1e-30)
    for _ in range(200 if len(m) else 0):
        for index in range(len(m)):
            away = target - m @ rows
            m[index] = (m[index] + away @ rows[index] / sizes[index]).clamp(box[index, 0], box[index, 1])
    return m
