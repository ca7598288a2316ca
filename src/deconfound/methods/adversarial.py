"""`adversarial`: heads that look for the confounds in the features, and an encoder that hides them (CF-Net)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from deconfound.methods.base import Criterion, Loss, Method, Setting, TrainingBatch
from deconfound.methods.confounds import confounds_of, read_confounds
from deconfound.methods.heads import Head
from deconfound.methods.problem import controls_of, places_of, require
from deconfound.surgery.outputs import features_of


@final
class Adversarial(Method):
    """CF-Net (Zhao, Adeli & Pohl 2020): `min_network max_heads  task + weight · Σ_confounds mean_places corr²`.

    One head per confound and place, whose prediction from the features is correlated with the confound. The reversed
    gradient lets one backward and one optimiser serve both sides: a head climbs its squared correlation, the network
    descends it. At inference the heads are not used.

    Differs from the paper: correlations are taken column by column, never over a flattened table, and over the
    most recent `window` samples where the batch is smaller, so that a batch of one has a correlation too.

    Args:
        network: Any module.
        setting: The problem.
        weight: Of the heads' term in the network's gradient.
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
        weight: float = 1.0,
        warmup: int = 0,
        hidden: int = 32,
        window: int = 64,
        controls_only: bool = False,
    ) -> None:
        super().__init__()
        require("weight", weight, 0)
        require("warmup", warmup, 0, whole=True)
        require("hidden", hidden, 0, whole=True)
        require("window", window, 3, whole=True)
        self.model = network
        self.design = setting.design
        self.weight = weight
        self.warmup = warmup
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.controls_only = controls_only
        self.heads = nn.ModuleList(
            Head(place, confound, hidden, window)
            for place in places_of(network, setting)
            for confound in confounds_of(setting.design)
        )

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(x)
        return logits

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """`task − Σ corr²`; past the reversal the network's gradient is that of `task + weight / places · Σ corr²`."""
        confounds = read_confounds(batch.metadata, self.design, len(batch.x), training=True)
        assert confounds is not None
        rows = controls_of(batch) if self.controls_only else torch.ones_like(confounds[:, 0])
        heads = [head for head in self.heads if isinstance(head, Head)]
        paths = {head.place.path for head in heads}
        with watched(self.model, paths) as seen:
            task = criterion(self.model(batch.x), batch.target)
        found = {}
        weight = self.weight * self._share() / len(paths)
        self.batches += 1
        for head in heads:
            features = Reversed.apply(seen[head.place.path], weight)
            found[f"correlation/{head.place.path}/{head.confound.name}"] = head(features, confounds, rows.to(confounds))
        parts = {name: value.detach() for name, value in found.items()}
        return Loss(task - torch.stack(list(found.values())).sum(), {"task": task.detach(), **parts})

    @property
    def batches_to_warm_up(self) -> int:
        """Until the weight has reached its full."""
        return max(0, 2 * self.warmup - int(self.batches))

    def _share(self) -> Tensor:
        """How much of the weight counts by now; a tensor, because a GPU need not be waited for."""
        return ((self.batches + 1 - self.warmup) / max(self.warmup, 1)).clamp(0, 1)


class Reversed(torch.autograd.Function):
    """The features themselves; backward turns their gradient round and multiplies it by a weight."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.weight * gradient, None


@contextmanager
def watched(network: nn.Module, paths: set[str]) -> Iterator[dict[str, Tensor]]:
    """Collect the features of some modules, with their graph, from the forwards inside the block."""
    seen: dict[str, Tensor] = {}
    handles = []
    for path in paths:
        hook = partial(_look, seen, path)
        handles.append(network.get_submodule(path).register_forward_hook(hook))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _look(seen: dict[str, Tensor], path: str, module: nn.Module, inputs: object, output: object) -> None:
    seen[path] = features_of(output, path)
