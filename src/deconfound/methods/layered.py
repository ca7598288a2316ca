"""What the methods share that insert the library's layers into the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from deconfound.methods.base import Batches, Criterion, Loss, Method, Setting, TrainingBatch, task_loss
from deconfound.surgery import NormalizedModel, normalize


class LayerMethod(Method):
    """Base of the methods that are one of the layers of `normalize` at the places of the setting.

    Args:
        network: Any module.
        setting: The problem; its `attach` goes to `normalize` as well.
        layer: A name that `normalize` knows.
        layer_norm: Whether LayerNorm stands before each layer, as in the paper.
        controls_only: Learn β from the controls alone.
        refit: Fit β to the validation rows before they judge an epoch and after training: see
            `NormalizedModel.refit`.
        **options: The layer's own.
    """

    model: NormalizedModel

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        layer: str,
        *,
        layer_norm: bool,
        controls_only: bool,
        refit: bool,
        **options: Any,
    ) -> None:
        super().__init__()
        self.controls_only = controls_only
        self.refits = refit
        arguments = {"example": setting.first_batch().x, "layer_norm": layer_norm, **options, **setting.attach}
        self.model = normalize(network, setting.design, setting.at, layer, **arguments)
        self.model.reports_skipped = False  # the drivers do, from `skipped_batches`

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(x, metadata=metadata)
        return logits

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """The task's loss; with `controls_only` the layers learn β from the controls of the batch."""
        return Loss(self.task_loss(batch, criterion))

    def task_loss(self, batch: TrainingBatch, criterion: Criterion) -> Tensor:
        """The loss of a training forward, in which the layers learn."""
        return task_loss(criterion, self.training_forward(batch), batch)

    def training_forward(self, batch: TrainingBatch) -> Tensor:
        """Logits of a training batch; the layers learn β from its rows under their weights, or from its controls."""
        fit_on = batch.controls_only() if self.controls_only else None
        logits: Tensor = self.model(batch.x, metadata=batch.metadata, fit_on=fit_on, **_weighted(batch))
        return logits

    @property
    def skipped_batches(self) -> int:
        """Batches of which a layer did not learn; the layer that left out most of them counts."""
        counts = [layer.skipped for layer in self.model.layers.values() if isinstance(layer.skipped, Tensor)]
        return int(torch.stack(counts).max()) if counts else 0

    def refit(self, held_out: Batches) -> None:
        """Fit β to the validation rows, or to their controls."""
        if self.refits:
            self.model.refit(self._held_out(held_out))

    def refitted(self, held_out: Batches) -> AbstractContextManager[None]:
        """The same for the length of a validation."""
        return self.model.refitted(self._held_out(held_out)) if self.refits else nullcontext()

    def _held_out(self, batches: Batches) -> Callable[[], Iterable[tuple[Tensor, ...]]]:
        def pairs() -> Iterable[tuple[Tensor, ...]]:
            for batch in batches():
                rows = batch.controls_only() if self.controls_only else slice(None)
                if len(batch.x[rows]):
                    weights = [] if batch.row_weight is None else [batch.row_weight[rows]]
                    yield batch.x[rows], batch.metadata[rows], *weights

        return pairs


def _weighted(batch: TrainingBatch) -> dict[str, Tensor]:
    return {} if batch.row_weight is None else {"weight": batch.row_weight}
