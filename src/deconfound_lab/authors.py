"""PMDN in the formulation of the authors' released code, written anew, so that it can be compared on one footing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from deconfound.methods import Criterion, Loss, Method, Setting, TrainingBatch, task_loss


@final
class AuthorsPMDN(Method):
    """Two passes, two optimisers, raw metadata: uncentred, not whitened, labels and a column of ones among them.

    In the pass for β the residual of all columns, the labels' too, goes on to the next layer, and the penalties of all
    layers are summed over features, so that a deeper one drives earlier β as well; in the task's pass the part of the
    confounds and of the ones is taken out. `pmdn-alternating` of the library is the paper's Algorithm 1 without these.

    Args:
        network: Any module.
        setting: The problem; numeric confounds and labels of 0 and 1.
        beta_lr: Adam's learning rate of β; the authors'.
    """

    name: ClassVar[str] = "pmdn-authors"
    summary: ClassVar[str] = "PMDN as in the authors' code"
    reads_confounds: ClassVar[bool] = True
    _offset: Tensor
    _unit: Tensor

    def __init__(self, network: nn.Module, setting: Setting, *, beta_lr: float = 0.045) -> None:
        super().__init__()
        self.model = network
        design, places = setting.design, setting.places(network)
        zero = design.encode({column.term: [0] for column in design.columns})
        self.register_buffer("_offset", torch.from_numpy(zero))
        self.register_buffer("_unit", torch.tensor([column.unit for column in design.columns], dtype=torch.float32))
        self._taken_out = 1 + sum(column.role == "confound" for column in design.columns)
        self._paths = [place.path for place in places]
        shapes = [tuple(int(size) for size in place.feature_shape or () if size is not None) for place in places]
        self.norms = nn.ModuleList(nn.LayerNorm(shape) for shape in shapes)
        self.betas = nn.ParameterList(torch.zeros(1 + len(design.columns), *shape) for shape in shapes)
        self._optimizer = Adam(self.betas, lr=beta_lr)

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        """Logits, with the confounds' part taken out at each place."""
        assert metadata is not None
        known, width = self._raw(metadata), self._taken_out

        def without_confounds(features: Tensor, beta: Tensor) -> Tensor:
            rest: Tensor = features - torch.tensordot(known[:, :width], beta[:width].detach(), 1)
            return rest

        with self._applied(without_confounds):
            logits: Tensor = self.model(x)
        return logits

    def before_step(self, batch: TrainingBatch) -> None:
        """The pass and the step for β."""
        known, penalties = self._raw(batch.metadata), []

        def without_all(features: Tensor, beta: Tensor) -> Tensor:
            rest: Tensor = features - torch.tensordot(known, beta, 1)
            penalties.append(rest.square().flatten(1).sum(1).mean())
            return rest

        with self._applied(without_all):
            self.model(batch.x)
        gradients = torch.autograd.grad(torch.stack(penalties).sum(), list(self.betas))
        for beta, gradient in zip(self.betas, gradients, strict=True):
            beta.grad = gradient
        self._optimizer.step()
        self._optimizer.zero_grad()

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """The task's loss with the new β as constants."""
        return Loss(task_loss(criterion, self(batch.x, batch.metadata), batch))

    def network_parameters(self) -> list[nn.Parameter]:
        """All but β."""
        held = {id(beta) for beta in self.betas}
        return [parameter for parameter in self.parameters() if id(parameter) not in held]

    def own_optimizers(self) -> list[Optimizer]:
        """The one of β."""
        return [self._optimizer]

    def _raw(self, metadata: Tensor) -> Tensor:
        """Ones, then the columns in their own units; those not given, as at inference, are missing at the end."""
        width = metadata.shape[1]
        own = (metadata - self._offset[:, :width]) * self._unit[:width]
        return torch.cat([torch.ones_like(own[:, :1]), own], 1)

    @contextmanager
    def _applied(self, rest: Callable[[Tensor, Tensor], Tensor]) -> Iterator[None]:
        modules = dict(self.model.named_modules())
        handles = []
        for path, norm, beta in zip(self._paths, self.norms, self.betas, strict=True):

            def hook(module: nn.Module, inputs: Any, output: Tensor, norm: Any = norm, beta: Any = beta) -> Tensor:
                return rest(norm(output), beta)

            handles.append(modules[path].register_forward_hook(hook))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
