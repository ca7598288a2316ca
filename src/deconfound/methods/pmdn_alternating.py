"""`pmdn-alternating`: the paper's Algorithm 1 to the letter, two passes and two optimisers (Vento et al. 2022)."""

from __future__ import annotations

from typing import ClassVar, Literal, final

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from deconfound.errors import OptionError
from deconfound.layers import split_parameters
from deconfound.layers.tensors import processes, sum_over_processes
from deconfound.methods.base import Criterion, Loss, Setting, TrainingBatch, require
from deconfound.methods.layered import LayerMethod

OPTIMIZERS: dict[str, type[Adam] | type[SGD]] = {"adam": Adam, "sgd": SGD}


@final
class AlternatingPMDNMethod(LayerMethod):
    """`AlternatingPMDN` layers: before each step of the network, a pass and a step on β with the network frozen.

    Args:
        beta_lr: The learning rate of β, in white units: for SGD, 1 would be least squares on a white batch.
        beta_optimizer: "adam", whose steps a rare level cannot blow up, or "sgd".
        layer_norm: Whether LayerNorm stands before each layer.
        controls_only: Learn β from the controls alone.
        refit: Fit β to the validation rows, as `pmdn` does; the published method does not.
    """

    name: ClassVar[str] = "pmdn-alternating"
    summary: ClassVar[str] = "PMDN as the paper's Algorithm 1, with an optimiser and a pass for β of their own"
    reads_confounds: ClassVar[bool] = True

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        beta_lr: float = 0.01,
        beta_optimizer: Literal["adam", "sgd"] = "adam",
        layer_norm: bool = True,
        controls_only: bool = False,
        refit: bool = False,
    ) -> None:
        require("beta_lr", beta_lr, 0)
        if beta_optimizer not in OPTIMIZERS:
            raise OptionError(f"beta_optimizer must be 'adam' or 'sgd'; got {beta_optimizer!r}.")
        super().__init__(network, setting, layer_norm=layer_norm, controls_only=controls_only, refit=refit)
        self._optimizer = OPTIMIZERS[beta_optimizer](self._betas(), lr=beta_lr)

    def before_step(self, batch: TrainingBatch) -> None:
        """Lines 4 to 6: a forward, and a step on the penalty, whose features are constants."""
        self.training_forward(batch)
        betas = self._betas()
        rows = torch.ones(len(batch.x), device=batch.x.device) if batch.row_weight is None else batch.row_weight
        count = (rows * batch.controls_only() if self.controls_only else rows).sum()
        # The penalty is a mean over rows: processes count by the weight of theirs.
        own = [count * gradient for gradient in torch.autograd.grad(self.model.penalty(), betas)]
        total, *gradients = sum_over_processes(count, *own)
        for beta, gradient in zip(betas, gradients, strict=True):
            beta.grad = gradient / total.clamp(min=1e-12)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """Lines 7 to 9: the task's loss with the new β as constants."""
        task = super().loss(batch, criterion).total
        # Several processes wait for a gradient of every parameter: that of β is zero.
        return Loss(task if processes() == 1 else task + 0 * sum(beta.sum() for beta in self._betas()))

    def network_parameters(self) -> list[nn.Parameter]:
        """All but β."""
        return split_parameters(self).network

    def own_optimizers(self) -> list[Optimizer]:
        """The one of β."""
        return [self._optimizer]

    def _betas(self) -> list[nn.Parameter]:
        return split_parameters(self).coefficients
