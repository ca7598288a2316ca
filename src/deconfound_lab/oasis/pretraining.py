"""A start for every arm: a network that has learned what age and sex look like.

Dementia looks much like fast ageing, there are few cases, and a method that takes age out of the features takes away
what a plain network learns from the many people without dementia. So all networks first learn to tell age and sex, from
the training scans alone, and only then what the arm is about.
"""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from deconfound.methods import Method, TrainingBatch
from deconfound.methods.base import Criterion, Loss
from deconfound_lab.mri.fold import Trainer, build_network
from deconfound_lab.oasis.plan import ARMS, Plan
from deconfound_lab.oasis.schedule import cosine


@final
class Confounds(Method):
    """A network that predicts the columns of the design's confounds, by least squares."""

    name: ClassVar[str] = "confounds"
    summary: ClassVar[str] = "predicts the confounds"
    reads_confounds: ClassVar[bool] = False

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.model = network

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        predicted: Tensor = self.model(x)
        return predicted

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """The mean squared error of the standardised columns."""
        predicted = self(batch.x).float()
        return Loss((predicted - batch.metadata[:, : predicted.shape[1]]).square().mean())


def pretrain(plan: Plan, trainer: Trainer) -> dict[str, Tensor]:
    """The weights of all layers but the last, after so many epochs as the plan says."""
    torch.manual_seed(trainer.seed)
    network = build_network(trainer.plan, ARMS["baseline"], len(trainer.design.confound_columns)).to(trainer.device)
    made = Confounds(network)
    optimizer = torch.optim.AdamW(made.parameters(), lr=plan.lr, weight_decay=plan.weight_decay)
    schedule = cosine(optimizer, plan.pretrain)
    for epoch in range(plan.pretrain):
        trainer.epoch(made, optimizer, plan.batch_size, epoch)
        schedule.step()
    return {name: value for name, value in network.state_dict().items() if not name.startswith("fc3.")}
