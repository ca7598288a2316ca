"""What the methods share that insert the library's layers into the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from deconfound.methods.base import Batches, Criterion, Loss, Method, Setting, TrainingBatch
from deconfound.methods.inserted import insert, layer_norm_at
from deconfound.methods.problem import controls_of, first_batch
from deconfound.surgery import NormalizedModel, Plan, normalize

HeldOut = Callable[[], Iterable[tuple[Tensor, Tensor]]]


class LayerMethod(Method):
    """Base of the methods that are one of the layers of `normalize` at the places of the setting.

    With `layer_norm`, LayerNorm stands before each layer, as in the paper, except where there is a single feature (a
    lone logit), which it would make a constant.
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
        refit: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.controls_only = controls_only
        self.refits = refit
        attach = partial(
            normalize, network, setting.design, setting.at, layer, example=first_batch(setting).x, **options
        )
        plan: Plan = attach(dry_run=True)  # finds what is wrong before the network is touched
        self.layer_norms = insert(network, plan.places if layer_norm else (), layer_norm_at)
        self.model = attach()

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

    def refit(self, held_out: Batches) -> None:
        """Fit β to the validation rows, or to their controls."""
        if self.refits:
            self.model.refit(self._held_out(held_out))

    def refitted(self, held_out: Batches) -> AbstractContextManager[None]:
        """The same for the length of a validation."""
        return self.model.refitted(self._held_out(held_out)) if self.refits else nullcontext()

    def _held_out(self, batches: Batches) -> HeldOut:
        return lambda: ((batch.x, batch.metadata) for batch in map(self._fitted, batches()) if len(batch.x))

    def _fitted(self, batch: TrainingBatch) -> TrainingBatch:
        if not self.controls_only:
            return batch
        rows = controls_of(batch)
        return replace(batch, x=batch.x[rows], metadata=batch.metadata[rows], target=batch.target[rows])
