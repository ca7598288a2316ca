"""What the layers of a model remove: partial R² of each confound, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from deconfound.attach.current_batch import CurrentBatch
from deconfound.attach.insertion import Insertion
from deconfound.attach.refit import Batches, as_function, observe
from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers import WhitenedBatch

# Columns whose remainder has less than this share of their variance are redundant.
REDUNDANT_VARIANCE = 1e-9
# Sums of squares in double precision are wrong by about this share.
ROUNDING = 1e-13


@dataclass(frozen=True)
class ReportLine:
    """What one confound explains of the features at one layer, given the labels.

    Attributes:
        layer: The module's name.
        confound: The confound, as named in the design.
        before: Partial R² of the features that reach the layer, averaged over features; each weighs
            as much as the variance that the labels leave of it.
        after: The same for the features that leave it.
        largest_before: The largest partial R² of a single feature that reaches the layer.
        largest_after: The same for the features that leave it.
        chance: The mean of `before` and `after` for features that do not depend on the confound. It
            is above zero because a regression fits noise: directions / (rows − labels − 1).
    """

    layer: str
    confound: str
    before: float
    after: float
    largest_before: float
    largest_after: float
    chance: float


@dataclass(frozen=True)
class Report:
    """What the layers of a model remove, from one pass in evaluation mode.

    For a confound C_k, labels L and a feature f, the partial R² given the labels is the share of
    what L leaves unexplained that C_k explains:

        (SSE(f | 1, L) − SSE(f | 1, L, C_k)) / SSE(f | 1, L)

    It measures straight-line effects only; `deconfound` layers remove no others. A feature is what
    has coefficients of its own: with `per="channel"`, of an image or a sequence, the mean of a
    channel.

    Attributes:
        rows: The number of rows, or the sum of their weights.
        lines: One for each layer and confound.
    """

    rows: float
    lines: tuple[ReportLine, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return the report as a DataFrame with one row for each layer and confound."""
        return pd.DataFrame([asdict(line) for line in self.lines])

    def __str__(self) -> str:
        return f"{self._title()}\n{self._table().to_string(index=False)}"

    def _repr_html_(self) -> str:
        table = self._table().to_html(index=False, border=0)
        return f"<div><p>{self._title()}</p>{table}</div>"

    def _title(self) -> str:
        return f"Partial R² of each confound given the labels, {self.rows:,.0f} rows"

    def _table(self) -> pd.DataFrame:
        table = self.to_frame()
        for name in table.columns[2:]:
            table[name] = table[name].map("{:.3f}".format)
        return table


def measure_layers(
    network: nn.Module,
    insertions: Sequence[Insertion],
    current: CurrentBatch,
    batches: Batches,
) -> Report:
    """Run the network once over the batches and measure each layer."""
    sums: dict[str, tuple[_Sums, _Sums]] = {}

    def add(insertion: Insertion, features: Tensor, batch: WhitenedBatch) -> None:
        beta = insertion.layer.beta[: batch.confounds.shape[1]]
        before = _Sums.of(features, batch)
        after = _Sums.of(features - batch.confounds @ beta, batch)
        name = insertion.point.name
        if name in sums:
            before, after = sums[name][0] + before, sums[name][1] + after
        sums[name] = before, after

    observe(network, insertions, current, as_function(batches), add, insertions)
    columns = len(insertions[0].layer.design.columns)
    rows = next(iter(sums.values()))[0].gram[-1, -1].item()
    if rows <= columns + 1:
        raise OptionError(
            f"A report needs more rows than columns of the design; got {rows:g} rows (the sum of "
            f"weights) for {columns} columns. Pass more batches."
        )
    design = insertions[0].layer.design
    lines = []
    for name, (before, after) in sums.items():
        for confound in dict.fromkeys(str(column.term) for column in design.confound_columns):
            mean_before, largest_before, chance = before.partial_r2(design, confound)
            mean_after, largest_after, _ = after.partial_r2(design, confound)
            lines.append(
                ReportLine(
                    name, confound, mean_before, mean_after, largest_before, largest_after, chance
                )
            )
    return Report(rows, tuple(lines))


@dataclass(frozen=True)
class _Sums:
    """Sums over rows in float64: MᵀWM, MᵀWf and Σ w f² for M = [C, L, 1]."""

    gram: Tensor
    cross: Tensor
    squares: Tensor

    @classmethod
    def of(cls, features: Tensor, batch: WhitenedBatch) -> _Sums:
        features = features.detach().double().cpu()
        weight = batch.weighted[:, -1:].double().cpu()
        regressors = torch.cat([batch.metadata.double().cpu(), torch.ones_like(weight)], dim=1)
        weighted = weight * regressors
        squares = (weight * features.square()).sum(0)
        return cls(weighted.T @ regressors, weighted.T @ features, squares)

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(self.gram + other.gram, self.cross + other.cross, self.squares + other.squares)

    def partial_r2(self, design: Design, confound: str) -> tuple[float, float, float]:
        """Return the mean by variance, the largest of a feature, and the mean by chance."""
        labels = [i for i, column in enumerate(design.columns) if column.role == "keep"]
        own = [
            i
            for i, column in enumerate(design.confound_columns)
            if str(column.term) == confound and column.is_used
        ]
        without = [*labels, len(design.columns)]
        unexplained, rank = self._unexplained(without)
        left, rank_with_confound = self._unexplained([*own, *without])
        gain = (unexplained - left).clamp(min=0)
        # A feature that is constant given the labels has nothing to explain.
        variance, _ = self._unexplained([len(design.columns)])
        rounding = ROUNDING * self.squares
        has_variance = unexplained > (REDUNDANT_VARIANCE * variance).clamp(min=rounding)
        total = unexplained[has_variance].sum().item()
        if total == 0:
            return 0.0, 0.0, 0.0
        mean = gain[has_variance].sum().item() / total
        largest = (gain / unexplained)[has_variance].max().item()
        free_rows = max(self.gram[-1, -1].item() - rank, 1.0)
        return mean, largest, min((rank_with_confound - rank) / free_rows, 1.0)

    def _unexplained(self, columns: list[int]) -> tuple[Tensor, int]:
        """Return SSE of each feature regressed on some columns of M, and the rank of these."""
        gram, cross = self.gram[columns][:, columns], self.cross[columns]
        scale = gram.diagonal().clamp(min=torch.finfo(gram.dtype).tiny).sqrt()
        values, vectors = torch.linalg.eigh(gram / torch.outer(scale, scale))
        is_used = values > REDUNDANT_VARIANCE * values.max()
        projected = vectors[:, is_used].T @ (cross / scale.unsqueeze(1))
        explained = (projected.square() / values[is_used].unsqueeze(1)).sum(0)
        return (self.squares - explained).clamp(min=0), int(is_used.sum())
