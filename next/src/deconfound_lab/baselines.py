"""PMDN in forms for comparisons: Algorithm 1 to the letter, the authors' code, and Eq. 8.

All three learn β by an optimiser. The library's `PMDN` takes its step within the forward pass.

Where β has an optimiser of its own, it is not one of `method.optimizers`, whose learning rates
follow the schedule: β keeps its rate while that of the network rises in the first epoch.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from deconfound.attach import plan
from deconfound.layers import split_parameters
from deconfound.methods import (
    Batch,
    Criterion,
    LayeredMethod,
    MakeOptimizer,
    Method,
    Setting,
    Update,
    default_modules,
)

# The authors' learning rate of β, with Adam on raw metadata.
AUTHORS_BETA_RATE = 0.045
# In whitened units. With Adam a rare level cannot blow β up.
LITERAL_BETA_RATE = 0.01

# From β of one module, shape `(columns, …)`, and its features `(n, …)` to what replaces them.
Replacement = Callable[[Tensor, Tensor], Tensor]


class LiteralPMDN(LayeredMethod):
    """Algorithm 1 to the letter: β steps with the network frozen, then the network with the new β.

    Args:
        network: Any module.
        setting: The problem.
        beta_rate: η₁, Adam's learning rate of β.
        **options: As for `LayeredMethod`.

    Attributes:
        beta_optimizer: The optimiser of β.
    """

    layer = "pmdn-alternating"

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        beta_rate: float = LITERAL_BETA_RATE,
        **options: Any,
    ) -> None:
        super().__init__(network, setting, **options)
        coefficients = split_parameters(self.network).coefficients
        self.beta_optimizer: Optimizer = Adam(coefficients, lr=beta_rate)

    def optimizers(self, make: MakeOptimizer) -> Sequence[Optimizer]:
        """Return the optimiser of the network."""
        return [make(split_parameters(self.network).network)]

    def step(
        self,
        model: Any,
        batch: Batch,
        criterion: Criterion,
        optimizers: Sequence[Optimizer],
        update: Update,
    ) -> Tensor:
        """Take lines 4 to 9 of Algorithm 1 on one batch."""
        # Lines 4 to 6: the penalty reaches β alone.
        self.network(batch.x, metadata=batch.metadata, weight=batch.layer_weight)
        update(self.network.penalty(), self.beta_optimizer)
        # Lines 7 to 9: the task's loss reaches the network alone.
        loss: Tensor = model.loss(batch, criterion)
        update(loss, optimizers[0])
        return loss.detach()


class _RawMetadataMethod(Method, ABC):
    """A network with one β for each module of `setting.at`, on raw metadata M = [1, C, L].

    Args:
        network: Any module.
        setting: The problem.

    Attributes:
        betas: One for each module, shape `(columns of M, …)`.
    """

    needs_confounds = True
    zero: Tensor
    units: Tensor

    def __init__(self, network: nn.Module, setting: Setting) -> None:
        super().__init__(network, setting)
        design = setting.design
        at = default_modules(network) if setting.at is None else setting.at
        points = plan(network, design, at, setting.example, per="feature").points
        self._names = [point.name for point in points]
        columns = 1 + len(design.columns)
        self.betas = nn.ParameterList(torch.zeros(columns, *point.shape) for point in points)
        # An encoded column is (value − mean) / unit; this is the encoded value 0 of each.
        zero = design.encode({str(column.term): [0.0] for column in design.columns})
        self.register_buffer("zero", torch.from_numpy(zero))
        units = torch.tensor([column.unit for column in design.columns])
        self.register_buffer("units", units.to(self.zero))
        # The ones and the confounds, which are subtracted; labels only enter the fit.
        self.subtracted = 1 + len(design.confound_columns)

    def raw_metadata(self, metadata: Tensor) -> Tensor:
        """Return M in the user's own units, with a first column of ones, shape `(n, columns)`."""
        raw = (metadata - self.zero) * self.units
        return torch.cat([torch.ones_like(raw[:, :1]), raw], dim=1)

    def run(self, x: Tensor, replace: Replacement) -> Tensor:
        """Return logits of a pass in which each module's output f becomes `replace(β, f)`."""
        with self._hooks(replace):
            logits: Tensor = self.network(x)
        return logits

    @contextmanager
    def _hooks(self, replace: Replacement) -> Iterator[None]:
        handles = [
            self.network.get_submodule(name).register_forward_hook(partial(_call, replace, beta))
            for name, beta in zip(self._names, self.betas, strict=True)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def residual(features: Tensor, metadata: Tensor, beta: Tensor) -> Tensor:
    """Return f − Mβ for features `(n, …)`, metadata `(n, p)` and coefficients `(p, …)`."""
    effect: Tensor = torch.tensordot(metadata, beta, 1)
    return features - effect


def _call(replace: Replacement, beta: Tensor, module: object, x: object, output: Tensor) -> Tensor:
    return replace(beta, output)


class AuthorsPMDN(_RawMetadataMethod):
    """PMDN in the form of the authors' released code, with two passes and two optimisers.

    It differs from Algorithm 1. In the pass for β the residual of all columns goes on to the next
    layer, that of the labels too, and penalties are summed over features, so that a deeper penalty
    drives earlier β as well. Metadata are neither centred nor whitened.

    Args:
        network: Any module, with a LayerNorm before each module of `setting.at`, as published.
        setting: The problem; numeric confounds, and labels of 0 and 1.
        beta_rate: Adam's learning rate of β.

    Attributes:
        beta_optimizer: The optimiser of β.
    """

    def __init__(
        self, network: nn.Module, setting: Setting, *, beta_rate: float = AUTHORS_BETA_RATE
    ) -> None:
        super().__init__(network, setting)
        self.beta_optimizer: Optimizer = Adam(self.betas, lr=beta_rate)

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        """Return logits, with the effect of ones and confounds subtracted; β is a constant."""
        assert metadata is not None
        known = self.raw_metadata(metadata)[:, : self.subtracted]

        def subtract_confounds(beta: Tensor, features: Tensor) -> Tensor:
            return residual(features, known, beta[: self.subtracted].detach())

        return self.run(x, subtract_confounds)

    def optimizers(self, make: MakeOptimizer) -> Sequence[Optimizer]:
        """Return the optimiser of the network."""
        return [make(self.network.parameters())]

    def step(
        self,
        model: Any,
        batch: Batch,
        criterion: Criterion,
        optimizers: Sequence[Optimizer],
        update: Update,
    ) -> Tensor:
        """Take the step of β, then that of the network."""
        update(self.penalty(batch), self.beta_optimizer)
        loss: Tensor = model.loss(batch, criterion)
        update(loss, optimizers[0])
        return loss.detach()

    def penalty(self, batch: Batch) -> Tensor:
        """Return Σ_features mean_samples (f − Mβ)² of the pass for β."""
        raw = self.raw_metadata(batch.metadata)
        penalties: list[Tensor] = []

        def subtract_all(beta: Tensor, features: Tensor) -> Tensor:
            errors = residual(features, raw, beta)
            penalties.append(errors.square().flatten(1).sum(1).mean())
            return errors

        self.run(batch.x, subtract_all)
        return torch.stack(penalties).sum()


class JointPMDN(_RawMetadataMethod):
    """Eq. 8: one objective for the network and β, which one optimiser minimises.

        L(ψ(f − C β_C), y) + λ/C · Σ_features mean_samples (f − Mβ)²

    C is the number of features of all modules. The penalty reaches the features as well, which
    shrink: the trivial solution that the paper's alternation avoids.

    Args:
        network: Any module.
        setting: The problem.
        penalty: λ.
        beta_rate: The learning rate of β, which the optimiser treats as a group of its own.
    """

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        penalty: float = 1.0,
        beta_rate: float = LITERAL_BETA_RATE,
    ) -> None:
        super().__init__(network, setting)
        self.penalty_weight, self.beta_rate = penalty, beta_rate

    def optimizers(self, make: MakeOptimizer) -> Sequence[Optimizer]:
        """Return the one optimiser of the joint objective."""
        optimizer = make(self.network.parameters())
        optimizer.add_param_group({"params": list(self.betas), "lr": self.beta_rate})
        return [optimizer]

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        """Return logits, with the effect of the confounds subtracted."""
        assert metadata is not None
        confounds = self.raw_metadata(metadata)[:, 1 : self.subtracted]

        def subtract_confounds(beta: Tensor, features: Tensor) -> Tensor:
            return residual(features, confounds, beta[1 : self.subtracted])

        return self.run(x, subtract_confounds)

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        """Return the joint objective of a training batch."""
        raw = self.raw_metadata(batch.metadata)
        penalties: list[Tensor] = []

        def subtract_confounds(beta: Tensor, features: Tensor) -> Tensor:
            errors = residual(features, raw, beta)
            penalties.append(errors.square().mean(dim=0).flatten())
            own = slice(1, self.subtracted)
            return residual(features, raw[:, own], beta[own])

        task = criterion(self.run(batch.x, subtract_confounds), batch)
        return task + self.penalty_weight * torch.cat(penalties).mean()
