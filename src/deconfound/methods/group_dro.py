"""`group-dro`: the worst group of label and site counts most (Sagawa et al. 2020)."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from deconfound.errors import OptionError
from deconfound.layers.tensors import sum_over_processes
from deconfound.methods.base import Criterion, Loss, Method, Setting, TrainingBatch, require, row_losses, spread_weight
from deconfound.methods.confounds import read_confounds, site_of, which_level
from deconfound.surgery.plan import observe

MOST_GROUPS = 512


@final
class GroupDROMethod(Method):
    """`min_network Σ_g q_g loss_g`, with `q_g ← q_g exp(step · loss_g)`, normalised, for groups g of label and site.

    A group whose loss stays high counts more and more, so that being right for the common pairs of label and site does
    not pay for being wrong for the rare ones. Several labels make a group of each combination. Reads nothing at
    inference. Wants weight decay or early stopping: a network that knows every training row has no worst group.

    Args:
        network: Any module.
        setting: The problem, with `site`; labels are classes.
        step: How fast the weights of groups follow their losses.
    """

    name: ClassVar[str] = "group-dro"
    summary: ClassVar[str] = "the worst group of label and site counts most in the loss"
    reads_confounds: ClassVar[bool] = False
    needs_site: ClassVar[bool] = True

    codes: Tensor
    share: Tensor

    def __init__(self, network: nn.Module, setting: Setting, *, step: float = 0.01) -> None:
        super().__init__()
        require("step", step, 0)
        self.model, self.design, self.step = network, setting.design, step
        self.site = site_of(setting, self.name)
        batch = setting.first_batch()
        width = observe(network, {"": network}, batch.x, "after")[""][0].features[0].numel()
        self.classes = width if batch.target.dtype == torch.int64 else 2 ** batch.target[0].numel()
        groups = self.classes * len(self.site.levels)
        if groups > MOST_GROUPS:
            raise OptionError(
                f"labels and site must make at most {MOST_GROUPS} groups for method 'group-dro'; got {groups}. Choose "
                "fewer labels."
            )
        self.register_buffer("codes", self.site.codes)
        self.register_buffer("share", torch.full((groups,), 1 / groups))

    def fit(self, setting: Setting) -> None:
        """Nothing is learned; labels that are no classes are refused."""
        for batch in setting.training():
            if batch.target.is_floating_point() and not bool(((batch.target == 0) | (batch.target == 1)).all()):
                raise OptionError("labels must be classes for method 'group-dro'; got numbers. Choose another method.")

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """The mean loss of each group, times the group's weight."""
        losses = row_losses(criterion, self.model(batch.x), batch)
        if losses.ndim == 0:
            raise OptionError("a criterion must return one loss per row for method 'group-dro'; got their mean.")
        weight = torch.ones_like(losses) if batch.weight is None else spread_weight(batch.weight, losses)
        rows = losses.reshape(len(batch.x), -1), weight.reshape(len(batch.x), -1)
        member = nn.functional.one_hot(self._groups(batch), len(self.share)).to(losses)
        total, count = member.T @ (rows[0] * rows[1]).sum(1), member.T @ rows[1].sum(1)
        with torch.no_grad():
            everywhere, counted = sum_over_processes(total.detach(), count)
            mean = torch.where(counted > 0, everywhere / counted.clamp(min=1e-12), 0)
            share = self.share * torch.exp(self.step * mean)
            self.share.copy_(share / share.sum())
        weighted = (self.share * torch.where(count > 0, total / count.clamp(min=1e-12), 0)).sum()
        return Loss(weighted * len(self.share), {"task": (total.sum() / count.sum()).detach(), "worst": mean.max()})

    def _groups(self, batch: TrainingBatch) -> Tensor:
        confounds = read_confounds(batch.metadata, self.design, len(batch.x), training=True)
        assert confounds is not None
        site = which_level(self.site.part(confounds), self.codes, self.site, self.name)
        label = batch.target
        if label.is_floating_point():
            label = label.reshape(len(label), -1).long()
            label = (label << torch.arange(label.shape[1], device=label.device)).sum(1)
        return site * self.classes + label
