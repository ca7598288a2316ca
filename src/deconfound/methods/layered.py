"""The methods that are one of the library's layers: `mdn`, `rmdn`, `pmdn` and `pmdn-joint`, and what all such share.

Lu et al. 2021 (MDN), Shah et al. 2025 (R-MDN), Vento et al. 2022 (PMDN).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from deconfound.layers import split_parameters
from deconfound.methods.base import Batches, Criterion, Loss, Method, Setting, TrainingBatch, require, task_loss
from deconfound.surgery import NormalizedModel, normalize


class LayerMethod(Method):
    """Base of the methods that are one of the layers of `normalize`, that of their name, at the places of the setting.

    Args:
        network: Any module.
        setting: The problem; its `attach` goes to `normalize` as well.
        layer_norm: Whether LayerNorm stands before each layer, as in the paper.
        controls_only: Learn β from the controls alone.
        refit: Fit β to the validation rows before they judge an epoch and after training: see
            `NormalizedModel.refit`. The published methods do not.
        **options: The layer's own.
    """

    model: NormalizedModel

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
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
        self.model = normalize(network, setting.design, setting.at, self.name, **arguments)
        self.model.reports_skipped = False  # the drivers do, from `skipped_batches`

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(x, metadata=metadata)
        return logits

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """The task's loss; with `controls_only` the layers learn β from the controls of the batch."""
        return Loss(task_loss(criterion, self.training_forward(batch), batch))

    def training_forward(self, batch: TrainingBatch) -> Tensor:
        """Logits of a training batch; the layers learn β from its rows under their weights, or from its controls."""
        fit_on = batch.controls_only() if self.controls_only else None
        weighted = {} if batch.row_weight is None else {"weight": batch.row_weight}
        logits: Tensor = self.model(batch.x, metadata=batch.metadata, fit_on=fit_on, **weighted)
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


@final
class MDNMethod(LayerMethod):
    """`MDN` layers: β is fitted anew on each training batch, its running mean serves in eval. For options see `MDN`."""

    name: ClassVar[str] = "mdn"
    summary: ClassVar[str] = "MDN layers, β by least squares on each batch"
    reads_confounds: ClassVar[bool] = True

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        gram: Literal["running", "training", "batch"] = "running",
        center: bool = True,
        momentum: float = 0.1,
        layer_norm: bool = False,
        controls_only: bool = False,
        refit: bool = False,
    ) -> None:
        own = {"gram": gram, "center": center, "momentum": momentum}
        super().__init__(network, setting, layer_norm=layer_norm, controls_only=controls_only, refit=refit, **own)


@final
class RMDNMethod(LayerMethod):
    """`RMDN` layers: β by recursive least squares, the same in train and eval. For options see `RMDN`."""

    name: ClassVar[str] = "rmdn"
    summary: ClassVar[str] = "R-MDN layers, β by recursive least squares over all samples seen"
    reads_confounds: ClassVar[bool] = True

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        forgetting: float = 0.9995,
        ridge: float = 0.1,
        layer_norm: bool = False,
        controls_only: bool = False,
        refit: bool = False,
    ) -> None:
        own = {"forgetting": forgetting, "ridge": ridge}
        super().__init__(network, setting, layer_norm=layer_norm, controls_only=controls_only, refit=refit, **own)


@final
class PMDNMethod(LayerMethod):
    """`PMDN` layers: β follows the features by one descent step in each training forward. For options see `PMDN`."""

    name: ClassVar[str] = "pmdn"
    summary: ClassVar[str] = "PMDN layers, β learned on all samples in the one training pass"
    reads_confounds: ClassVar[bool] = True

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        gradient: Literal["bilevel", "frozen"] = "bilevel",
        memory: float = 250.0,
        step: float | Literal["average"] | None = None,
        layer_norm: bool = False,
        controls_only: bool = False,
        refit: bool = True,
    ) -> None:
        own = {"gradient": gradient, "memory": memory, "step": step}
        super().__init__(network, setting, layer_norm=layer_norm, controls_only=controls_only, refit=refit, **own)


@final
class JointPMDNMethod(LayerMethod):
    """`JointPMDN` layers: `task + weight · penalty`, minimised over the network and β by one optimiser (Eq. 8).

    Kept for comparison: the network can lower the penalty by shrinking its features, which `pmdn` avoids.
    """

    name: ClassVar[str] = "pmdn-joint"
    summary: ClassVar[str] = "PMDN as the paper's Eq. 8: the task's loss and the penalty as one objective"
    reads_confounds: ClassVar[bool] = True

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        weight: float = 1.0,
        layer_norm: bool = False,
        refit: bool = False,
    ) -> None:
        require("weight", weight, 0)
        super().__init__(network, setting, layer_norm=layer_norm, controls_only=False, refit=refit)
        self.weight = weight

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """`task + weight · penalty`, both parts recorded."""
        task = super().loss(batch, criterion).total
        penalty = self.model.penalty()
        return Loss(task + self.weight * penalty, {"task": task.detach(), "penalty": penalty.detach()})

    def parameter_groups(self) -> list[dict[str, Any]]:
        """β are not shrunk by weight decay: they are estimates, not weights of the network."""
        network, coefficients = split_parameters(self)
        return [{"params": network}, {"params": coefficients, "weight_decay": 0.0}]
