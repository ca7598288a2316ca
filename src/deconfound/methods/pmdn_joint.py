"""`pmdn-joint`: the paper's Eq. 8, one objective for the network and β together (Vento et al. 2022)."""

from __future__ import annotations

from typing import Any, ClassVar, final

from torch import nn

from deconfound.layers import split_parameters
from deconfound.methods.base import Criterion, Loss, Setting, TrainingBatch, require
from deconfound.methods.layered import LayerMethod


@final
class JointPMDNMethod(LayerMethod):
    """`JointPMDN` layers: `task + weight · penalty`, minimised over the network and β by one optimiser.

    Kept for comparison: the network can lower the penalty by shrinking its features, which `pmdn` avoids.

    Args:
        network: Any module.
        setting: The problem.
        weight: λ, the weight of the penalty.
        layer_norm: Whether LayerNorm stands before each layer.
        refit: Fit β to the validation rows, as `pmdn` does; the published method does not.
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
        super().__init__(network, setting, "pmdn-joint", layer_norm=layer_norm, controls_only=False, refit=refit)
        self.weight = weight

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """`task + weight · penalty`, both parts recorded."""
        task = self.task_loss(batch, criterion)
        penalty = self.model.penalty()
        return Loss(task + self.weight * penalty, {"task": task.detach(), "penalty": penalty.detach()})

    def parameter_groups(self) -> list[dict[str, Any]]:
        """β are not shrunk by weight decay: they are estimates, not weights of the network."""
        network, coefficients = split_parameters(self)
        return [{"params": network}, {"params": coefficients, "weight_decay": 0.0}]
