"""`dependence`: a penalty on the distance correlation of features and confounds within labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn

from deconfound.layers.labels import LabelGroups, label_groups
from deconfound.layers.tensors import full_precision
from deconfound.layers.whitened import as_tensor, refuse_nan, whiten, whitening_maps
from deconfound.methods.base import Criterion, Loss, Method, Setting, TrainingBatch, require, task_loss
from deconfound.methods.choosing import LADDER, UNCHOSEN
from deconfound.methods.confounds import confounds_of
from deconfound.methods.newest import flat_features, flat_width, join_newest
from deconfound.surgery import Place, collect

# A label group of fewer rows than this (Σw)² / Σw² tells nothing about dependence.
FEWEST = 4.0


@final
class DependenceMethod(Method):
    """`task + weight · mean_places mean_confounds dcor²(f, confound | label)`.

    The squared distance correlation sees every dependence, not only the linear one. It is taken within the groups that
    the levels of keep make, after regression on numeric keep, without the bias of small samples, and over the newest
    `window` rows where a batch is smaller. Reads nothing at inference.

    Args:
        weight: Of the penalty; None lets a run choose it on its validation rows (`deconfound.methods.choosing`), and is
            1 where nothing chooses.
        window: Over how many rows at least the correlation is taken, once so many have been seen.
    """

    name: ClassVar[str] = "dependence"
    summary: ClassVar[str] = "a penalty on the distance correlation of features and confounds within labels"
    reads_confounds: ClassVar[bool] = False

    label_back: Tensor
    label_codes: Tensor
    regressor_map: Tensor

    def __init__(self, network: nn.Module, setting: Setting, *, weight: float | None = None, window: int = 128) -> None:
        super().__init__()
        if weight is not None:
            require("weight", weight, 0)
        require("window", window, 4, whole=True)
        self.model, self.design = network, setting.design
        self.weight = UNCHOSEN if weight is None else weight
        self.confounds = confounds_of(setting.design)
        regressor_map, _ = whitening_maps(setting.design, torch.float32, None)
        groups = label_groups(setting.design, regressor_map)
        for name, value in zip(("regressor_map", "label_back", "label_codes"), (regressor_map, *groups), strict=True):
            self.register_buffer(name, value)
        columns = len(setting.design.columns)
        self.recent = nn.ModuleDict(
            {place.path.replace(".", "/"): Recent(place, window, columns) for place in setting.places(network)}
        )

    @classmethod
    def rungs(cls, options: Mapping[str, Any], batches: int) -> Sequence[Sequence[Mapping[str, Any]]]:
        """The ladder of weights, where none is given."""
        return [[{"weight": weight}] for weight in LADDER] if options.get("weight") is None else ()

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """`task + weight · penalty`, both parts recorded."""
        metadata = as_tensor(batch.metadata, self.design, len(batch.x))
        refuse_nan(metadata, self.design, training=True)
        weight = torch.ones(len(batch.x), device=batch.x.device) if batch.row_weight is None else batch.row_weight
        recents = {module.place.path: module for module in self.recent.values() if isinstance(module, Recent)}
        with collect(self.model, list(recents), detach=False) as collected:
            task = task_loss(criterion, self.model(batch.x), batch)
        found = []
        for path, recent in recents.items():
            with full_precision(batch.x.device):
                found.append(self._dependence(recent(collected.features(path), metadata, weight)))
        penalty = torch.stack(found).mean()
        return Loss(task + self.weight * penalty, {"task": task.detach(), "dependence": penalty.detach()})

    def _dependence(self, rows: Window) -> Tensor:
        """The mean over confounds of dcor² within labels, whose gradient is that of a batch as large as the window."""
        batch = whiten(rows.metadata, self.regressor_map, self.regressor_map[:0, :0], training=True)
        group, known = LabelGroups(self.label_back, self.label_codes)(batch.regressors)
        weight = rows.weight * known
        keep = batch.regressors[:, self.design.confound_directions :]
        numeric = keep.shape[1] - 1 > self.label_codes.shape[1]  # more than the columns that make groups, and 1
        values, total = rows.features.new_zeros(()), rows.features.new_zeros(())
        apart = None if numeric else self._distances(rows.features, rows.metadata)
        for number in range(len(self.label_codes)):
            counted = weight * (group == number)
            use = counted.sum() * (counted.sum().square() >= FEWEST * counted.square().sum()).to(counted)
            share = counted / counted.sum().clamp(min=1e-12)
            here = apart or self._distances(
                _residual(rows.features, keep, counted), _residual(rows.metadata, keep, counted)
            )
            of_features, *of_confounds = (centred(each, share) for each in here)
            for of_confound in of_confounds:
                values = values + use * squared_dcor(of_features, of_confound, share)
            total = total + use * len(of_confounds)
        mean = values / total.clamp(min=1e-12)
        # Only new rows carry a gradient: a small share of the window would otherwise pull by as small a share.
        scale = rows.weight.sum() / rows.new_weight.clamp(min=1e-12)
        return scale * mean + ((1 - scale) * mean).detach()

    def _distances(self, features: Tensor, metadata: Tensor) -> list[Tensor]:
        """Of the features, and of each confound."""
        return [distances(features), *(distances(confound.part(metadata)) for confound in self.confounds)]


class Window(NamedTuple):
    """The newest rows at one place: those of the batch, with their graph, and as many before as the window lacks."""

    features: Tensor
    metadata: Tensor
    weight: Tensor
    new_weight: Tensor


class Recent(nn.Module):
    """Keeps the newest rows of one place, without their graph."""

    features: Tensor
    metadata: Tensor
    weights: Tensor

    def __init__(self, place: Place, window: int, columns: int) -> None:
        super().__init__()
        self.place = place
        self.register_buffer("features", torch.zeros(window, flat_width(place)))
        self.register_buffer("metadata", torch.zeros(window, columns))
        self.register_buffer("weights", torch.zeros(window))

    def forward(self, features: Tensor, metadata: Tensor, weight: Tensor) -> Window:
        """The rows of the window; the batch joins what is kept."""
        flat = flat_features(features, self.place)
        new = flat.to(self.features), metadata.to(self.metadata), weight.to(self.weights)
        rows = join_newest(new, (self.features, self.metadata, self.weights))
        return Window(rows[0], rows[1], rows[2], new[2].sum())


def distances(values: Tensor) -> Tensor:
    """Euclidean distances of rows, `(n, n)`, by one matrix product; equal rows have no gradient that explodes."""
    values = values - values.detach().mean(0)
    squares = values.square().sum(1)
    squared = (squares.unsqueeze(0) + squares.unsqueeze(1) - 2 * values @ values.T).clamp(min=0)
    same = torch.eye(len(values), dtype=torch.bool, device=values.device)
    least = 1e-6 * squared.detach().mean() + 1e-30
    return torch.where(same, 0.0, (torch.where(same, 1.0, squared) + least).sqrt())


def centred(of_rows: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Distances less the weighted means of rows and columns, `(n, n)`, and the mean of those between two rows.

    The shares `(n,)` have sum 1; rows of share 0 take no part.
    """
    means = of_rows @ share
    grand = means @ share
    between = grand / (1 - share.square().sum()).clamp(min=1e-12)
    return of_rows - means.unsqueeze(0) - means.unsqueeze(1) + grand, between


def squared_dcor(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], share: Tensor) -> Tensor:
    """The squared distance correlation of two sets of centred distances, less what chance gives, a scalar.

    For independent values the weighted mean of products has the mean `ā b̄ Σ_ij p_i p_j (p_i + p_j − s − δ_ij)²`, with p
    the shares of the rows, `s = Σp²` and ā, b̄ mean distances of two rows: so much is subtracted, here and in the two
    variances.
    """
    both = share.unsqueeze(1) * share
    same = torch.eye(len(share), dtype=share.dtype, device=share.device)
    chance = (both * (share.unsqueeze(1) + share - share.square().sum() - same).square()).sum()

    def covariance(one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> Tensor:
        return (both * one[0] * two[0]).sum() - chance * one[1] * two[1]

    spread = covariance(a, a) * covariance(b, b)
    known = (spread > (1e-6 * a[1] * b[1]).square().clamp(min=1e-30)) & (covariance(b, b) > 0)
    return torch.where(known, covariance(a, b) / torch.where(known, spread, 1.0).sqrt(), 0.0)


def _residual(values: Tensor, keep: Tensor, weight: Tensor) -> Tensor:
    """Values less their weighted regression on keep, whose last column is 1."""
    weighted = keep * weight.unsqueeze(1)
    gram = weighted.T @ keep
    ridge = 1e-4 * gram.diagonal().amax() + 1e-12
    unit = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    solved: Tensor = torch.linalg.solve_ex(gram + ridge * unit, weighted.T @ values)[0]
    return values - keep @ solved
