"""What the methods share that insert the library's layers into the network."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from deconfound.methods.base import Criterion, Loss, Method, Setting, TrainingBatch
from deconfound.methods.problem import controls_of, first_batch
from deconfound.surgery import NormalizedModel, normalize


class LayerMethod(Method):
    """Base of the methods that are one of the layers of `normalize` at the places of the setting."""

    model: NormalizedModel

    def __init__(self, network: nn.Module, setting: Setting, layer: str, controls_only: bool, **options: Any) -> None:
        super().__init__()
        self.controls_only = controls_only
        self.model = normalize(network, setting.design, setting.at, layer, example=first_batch(setting).x, **options)

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(x, metadata=metadata)
        return logits

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """The task's loss; with `controls_only` the layers learn β from the controls of the batch."""
        return Loss(criterion(self._fit(batch), batch.target))

    def _fit(self, batch: TrainingBatch) -> Tensor:
        fit_on = controls_of(batch) if self.controls_only else None
        logits: Tensor = self.model(batch.x, metadata=batch.metadata, fit_on=fit_on)
        return logits
