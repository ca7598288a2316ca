"""`adversarial`: heads that predict the confounds from the features, and an encoder that hides them (CF-Net)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from deconfound.layers.tensors import full_precision
from deconfound.methods.base import Criterion, Loss, Method, Setting, TrainingBatch, require, task_loss
from deconfound.methods.choosing import LADDER, UNCHOSEN
from deconfound.methods.confounds import Confound, confounds_of, read_confounds
from deconfound.methods.newest import flat_features, flat_width, join_newest
from deconfound.surgery import Place, collect

# Predictions whose variance is below this count as flat: their correlation's gradient would be unbounded. It is far
# below what new networks give, or a network could hide everything, the label too, by shrinking its features.
FLAT = 1e-12


@final
class AdversarialMethod(Method):
    """CF-Net (Zhao, Adeli & Pohl 2020): `min_network max_heads  task + weight · Σ_confounds mean_places corr²`.

    One head per confound and place, whose prediction from the features is correlated with the confound. The reversed
    gradient lets one backward and one optimiser serve both sides: a head climbs its squared correlation, the network
    descends it. At inference the heads are not used.

    Differs from the paper: correlations are taken column by column, never over a flattened table, and over the
    most recent `window` samples where the batch is smaller, so that a batch of one has a correlation too.

    Args:
        weight: Of the heads' term in the network's gradient; None lets a run choose it on its validation rows, and with
            it the warm-up (`deconfound.methods.choosing`), and is 1 where nothing chooses.
        limit: At each place, the norm of the heads' term is at most so many times that of the task's gradient, so that
            the heads cannot win before the task has begun; None sets no limit.
        warmup: For so many batches the network learns its task alone while the heads learn what it gives away; over
            as many again the weight rises to its full, and epochs from then on compete for the best. For networks that
            the heads would keep from learning at all.
        hidden: Width of a head's hidden layer; 0 makes it linear.
        window: Over how many samples at least a correlation is taken, once so many have been seen.
        controls_only: Look at the controls alone, as the paper does, where label and confound go together.
    """

    name: ClassVar[str] = "adversarial"
    summary: ClassVar[str] = "CF-Net: heads look for the confounds in the features, the network hides them"
    reads_confounds: ClassVar[bool] = False
    batches: Tensor

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        weight: float | None = None,
        limit: float | None = 1.0,
        warmup: int = 0,
        hidden: int = 32,
        window: int = 64,
        controls_only: bool = False,
    ) -> None:
        super().__init__()
        if weight is not None:
            require("weight", weight, 0)
        if limit is not None:
            require("limit", limit, 0)
        require("warmup", warmup, 0, whole=True)
        require("hidden", hidden, 0, whole=True)
        require("window", window, 3, whole=True)
        self.model = network
        self.design = setting.design
        self.weight = UNCHOSEN if weight is None else weight
        self.limit = limit
        self.warmup = warmup
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.controls_only = controls_only
        self.heads = nn.ModuleList(
            Head(place, confound, hidden, window)
            for place in setting.places(network)
            for confound in confounds_of(setting.design)
        )

    @classmethod
    def rungs(cls, options: Mapping[str, Any], batches: int) -> Sequence[Sequence[Mapping[str, Any]]]:
        """The ladder of weights, where none is given; one that fails is tried again after a warm-up."""
        if options.get("weight") is not None:
            return ()
        if options.get("warmup"):
            return [[{"weight": weight}] for weight in LADDER]
        late = {"warmup": batches // 5}
        return [
            [{"weight": weight}, *([{"weight": weight, **late}] if weight and late["warmup"] else [])]
            for weight in LADDER
        ]

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """`task − Σ corr²`; past the reversal the network's gradient is that of `task + weight / places · Σ corr²`."""
        confounds = read_confounds(batch.metadata, self.design, len(batch.x), training=True)
        assert confounds is not None
        rows = batch.controls_only().to(confounds) if self.controls_only else torch.ones_like(confounds[:, 0])
        if batch.row_weight is not None:
            rows = rows * batch.row_weight
        heads = [head for head in self.heads if isinstance(head, Head)]
        paths = list({head.place.path: None for head in heads})
        with collect(self.model, paths, detach=False) as collected:
            task = task_loss(criterion, self.model(batch.x), batch)
        seen = {path: collected.features(path) for path in paths}
        weights = {path: self.weight * self._share() / len(paths) for path in paths}
        turned = {path: Reversed.apply(features, weights[path]) for path, features in seen.items()}
        self.batches += 1
        found = {}
        for head in heads:
            features = turned[head.place.path]
            found[f"correlation/{head.place.path}/{head.confound.name}"] = head(features, confounds, rows.to(confounds))
        climbed = torch.stack(list(found.values())).sum()
        if self.limit is not None and task.requires_grad:
            hold_back(self.limit, task, climbed, seen, turned, weights)
        parts = {name: value.detach() for name, value in found.items()}
        return Loss(task - climbed, {"task": task.detach(), **parts})

    @property
    def batches_to_warm_up(self) -> int:
        """Until the weight has reached its full."""
        return max(0, 2 * self.warmup - int(self.batches))

    def _share(self) -> Tensor:
        """How much of the weight counts by now; a tensor, because a GPU need not be waited for."""
        return ((self.batches + 1 - self.warmup) / max(self.warmup, 1)).clamp(0, 1)


class Reversed(torch.autograd.Function):
    """The features themselves; backward turns their gradient round and multiplies it by a weight, as it is by then."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.weight * gradient, None


def hold_back(
    limit: float,
    task: Tensor,
    climbed: Tensor,
    seen: dict[str, Tensor],
    turned: dict[str, Tensor],
    weights: dict[str, Tensor],
) -> None:
    """Lower each place's weight, in place, to where the heads push its features `limit` times as hard as the task."""
    of_task = torch.autograd.grad(task, list(seen.values()), retain_graph=True, allow_unused=True)
    of_heads = torch.autograd.grad(climbed, list(turned.values()), retain_graph=True)
    for weight, ours, theirs in zip(weights.values(), of_task, of_heads, strict=True):
        if ours is not None:
            weight.copy_(torch.minimum(weight, (limit * ours.norm() / theirs.norm().clamp(min=1e-30)).to(weight)))


class Head(nn.Module):
    """Predicts one confound from the features of one place; gives the squared correlation of the two.

    A category of three levels or more has one output per level, the reference too. The newest predictions are
    kept, without their graph, and join the correlation where a batch has fewer rows than the window.
    """

    targets: Tensor
    predictions: Tensor
    truths: Tensor
    weights: Tensor

    def __init__(self, place: Place, confound: Confound, hidden: int, window: int) -> None:
        super().__init__()
        self.place = place
        self.confound = confound
        inputs = flat_width(place)
        targets = target_columns(confound)
        outputs = targets.shape[1]
        hidden_layer = [nn.Linear(inputs, hidden), nn.Tanh()] if hidden else []
        self.predictor = nn.Sequential(*hidden_layer, nn.Linear(hidden or inputs, outputs))
        self.register_buffer("targets", targets)
        self.register_buffer("predictions", torch.zeros(window, outputs))
        self.register_buffer("truths", torch.zeros(window, outputs))
        self.register_buffer("weights", torch.zeros(window))

    def forward(self, features: Tensor, metadata: Tensor, weights: Tensor) -> Tensor:
        """`corr²`, a scalar, whose gradient is scaled to that of a batch as large as the window.

        Args:
            features: What the module at the place returned, samples first.
            metadata: `(n, p)`.
            weights: `(n,)`, 1 for rows that take part and 0 for the others.
        """
        with full_precision(features.device):  # half precision rounds off what varies little
            predicted = self.predictor(flat_features(features, self.place).to(self.predictions))
            truths = self.confound.part(metadata).to(self.targets) @ self.targets
        joined = join_newest((predicted, truths, weights), (self.predictions, self.truths, self.weights))
        correlation = squared_correlation(*joined)
        # Only the new rows carry a gradient: a small share of the window would otherwise pull by as small a share.
        scale = joined[2].sum() / weights.sum().clamp(min=1)
        return scale * correlation + ((1 - scale) * correlation).detach()


def target_columns(confound: Confound) -> Tensor:
    """`(width, outputs)`: metadata columns of a confound times this are what a head predicts."""
    levels = len(confound.levels)
    if levels < 3:
        return torch.eye(confound.width)
    sd = 1 / (confound.codes[1:].diagonal() - confound.codes[0])
    return torch.cat([-sd[:, None], sd.diag()], dim=1)


def squared_correlation(predictions: Tensor, truths: Tensor, weights: Tensor) -> Tensor:
    """The squared correlation of columns and truths `(n, k)`, weighted by `(n,)`, averaged over truths that vary."""
    share = (weights / weights.sum().clamp(min=1))[:, None]
    a = predictions - (share * predictions).sum(0)
    b = truths - (share * truths).sum(0)
    spread = (share * b * b).sum(0)
    varies = spread > 1e-6
    squared = (share * a * b).sum(0) ** 2 / (((share * a * a).sum(0) + FLAT) * spread.clamp(min=1e-6))
    return (squared * varies).sum() / varies.sum().clamp(min=1)
