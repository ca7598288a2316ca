"""Algorithm 1 to the letter, as a method whose step has two passes and two optimisers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from deconfound.layers import split_parameters
from deconfound.methods import Batch, Criterion, LayeredMethod, MakeOptimizer, Update


class LiteralPMDN(LayeredMethod):
    """PMDN as published: β steps with the network frozen, then the network with the new β."""

    layer = "pmdn-alternating"

    def optimizers(self, make: MakeOptimizer) -> Sequence[Optimizer]:
        """Return the optimiser of the network and that of β."""
        network, coefficients = split_parameters(self.network)
        return [make(network), make(coefficients)]

    def step(
        self,
        model: Any,
        batch: Batch,
        criterion: Criterion,
        optimizers: Sequence[Optimizer],
        update: Update,
    ) -> Tensor:
        """Take lines 4 to 9 of Algorithm 1 on one batch."""
        of_network, of_coefficients = optimizers
        # Lines 4 to 6: the penalty reaches β alone.
        self.network(batch.x, metadata=batch.metadata, weight=batch.layer_weight)
        update(self.network.penalty(), of_coefficients)
        # Lines 7 to 9: the task's loss reaches the network alone.
        loss: Tensor = model.loss(batch, criterion)
        update(loss, of_network)
        return loss.detach()
