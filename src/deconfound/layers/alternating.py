"""PMDN with β as parameters: Algorithm 1 of the paper to the letter, and its Eq. 8 as one objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deconfound.design import Design
from deconfound.errors import DeconfoundError, OptionError
from deconfound.layers.base import MetadataLayer
from deconfound.layers.checkpoint import Share
from deconfound.layers.functional import penalty, pool_positions, residualize
from deconfound.layers.whitened import WhitenedBatch


class PenaltyLayer(MetadataLayer):
    """Base of the layers whose β are `nn.Parameter`s, trained by an optimiser on `penalty`."""

    beta: nn.Parameter

    def __init__(
        self,
        design: Design,
        feature_shape: int | Sequence[int | None],
        *,
        share: Share | None = None,
        channel_axis: int = 1,
    ) -> None:
        super().__init__(design, feature_shape, share=share, channel_axis=channel_axis)
        self.beta = nn.Parameter(torch.zeros(self._directions, *self.coefficient_shape))
        self._penalty: Tensor | None = None

    @property
    def penalty(self) -> Tensor:
        """`½ Σ_features mean_samples (f − b₀ − Mβ)²` of the last training forward, with its graph."""
        if self._penalty is None:
            raise DeconfoundError("penalty must follow a training forward; got none yet. Call the model first.")
        return self._penalty

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the last penalty: it belongs to a graph that cannot be copied."""
        return {**self.__dict__, "_penalty": None}

    def _penalise(self, x: Tensor, batch: WhitenedBatch) -> None:
        features = pool_positions(x)
        finite = torch.isfinite(features).all()
        # Where features are not finite the fit itself stands in, so that the penalty's gradient is zero.
        features = torch.where(finite, features, batch.regressors @ self._beta().detach())
        self._penalty = penalty(features, batch.regressors, self._beta(), batch.weights)
        if self._may_update(batch):
            self._count_skip(finite)


class AlternatingPMDN(PenaltyLayer):
    """PMDN as Algorithm 1 of the paper: a step on β with the network frozen, then one on the network.

    `r = f − c β_C`. The task loss sees β as a constant, and `layer.penalty` sees the features as constants, so
    one optimiser for each of `split_parameters(model)` alternates as in lines 4 to 9; `alternating_step` does
    it. Twice the forward passes of `PMDN`, and any torch optimiser for β.

    Differs from the paper: metadata are whitened, an intercept is fitted, and the penalty is summed over features
    instead of averaged (the 1/C is part of the learning rate).

    Args:
        design: A fitted design.
        feature_shape: The shape of one sample's features.
        share: See `MetadataLayer`.
        channel_axis: See `MetadataLayer`.

    Example:
        >>> import torch, deconfound as dc
        >>> table = {"age": [61.0, 70.0, 78.0, 55.0]}
        >>> design = dc.Design(confounds=["age"]).fit(table)
        >>> layer = dc.AlternatingPMDN(design, 1)
        >>> _ = layer(0.5 * torch.tensor(table["age"])[:, None] + 3, design.encode(table))
        >>> layer.penalty.backward()  # reaches β alone
        >>> with torch.no_grad():
        ...     _ = layer.beta.sub_(layer.beta.grad)  # SGD with rate 1
        >>> round(layer.coefficients()["age"].item(), 3)
        0.5
    """

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        self._penalise(x.detach(), batch)
        return residualize(x, batch.confounds, self._beta()[: batch.confounds.shape[1]].detach().clone())


class JointPMDN(PenaltyLayer):
    """PMDN as the paper's Eq. 8: `loss + λ · layer.penalty` minimised over network and β together.

    Kept for comparison: the penalty also reaches the network, which can lower it by shrinking its features,
    and the task loss also moves β. The paper's alternation avoids both.

    Args:
        design: A fitted design.
        feature_shape: The shape of one sample's features.
        share: See `MetadataLayer`.
        channel_axis: See `MetadataLayer`.

    Example:
        >>> import torch, deconfound as dc
        >>> table = {"age": [61.0, 70.0, 78.0, 55.0]}
        >>> design = dc.Design(confounds=["age"]).fit(table)
        >>> layer = dc.JointPMDN(design, 1)
        >>> features = torch.randn(4, 1, requires_grad=True)
        >>> loss = layer(features, design.encode(table)).square().mean() + 0.1 * layer.penalty
        >>> loss.backward()
        >>> features.grad is not None and layer.beta.grad is not None
        True
    """

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        self._penalise(x, batch)
        return residualize(x, batch.confounds, self._beta()[: batch.confounds.shape[1]])


class SplitParameters(NamedTuple):
    """The parameters of a model, by who trains them."""

    network: list[nn.Parameter]
    coefficients: list[nn.Parameter]


def split_parameters(model: nn.Module) -> SplitParameters:
    """The network's parameters and the β of its penalty layers, for two optimisers.

    Example:
        >>> import torch, deconfound as dc
        >>> design = dc.Design(confounds=["age"]).fit({"age": [61.0, 70.0, 78.0, 55.0]})
        >>> model = torch.nn.ModuleList([torch.nn.Linear(3, 2), dc.AlternatingPMDN(design, 2)])
        >>> network, coefficients = dc.split_parameters(model)
        >>> len(network), len(coefficients)
        (2, 1)
    """
    coefficients = [module.beta for module in _penalty_layers(model)]
    held = {id(parameter) for parameter in coefficients}
    return SplitParameters([p for p in model.parameters() if id(p) not in held], coefficients)


def alternating_step(
    model: nn.Module,
    closure: Callable[[], Tensor],
    network_optimizer: Optimizer,
    coefficient_optimizer: Optimizer,
) -> Tensor:
    """One iteration of Algorithm 1: forward, step on β, forward again, step on the network.

    Args:
        model: A network with `AlternatingPMDN` layers.
        closure: Runs the model on the batch and returns the task loss; called twice.
        network_optimizer: Over `split_parameters(model).network`.
        coefficient_optimizer: Over `split_parameters(model).coefficients`.

    Returns:
        The task loss of the second forward, detached.
    """
    layers = _penalty_layers(model)
    if not layers:
        raise OptionError(
            "model must hold AlternatingPMDN layers; got none. PMDN needs no alternation: train it with your own loop."
        )
    closure()
    coefficient_optimizer.zero_grad()
    torch.stack([layer.penalty for layer in layers]).sum().backward()
    coefficient_optimizer.step()
    loss = closure()
    network_optimizer.zero_grad()
    loss.backward()
    network_optimizer.step()
    return loss.detach()


def _penalty_layers(model: nn.Module) -> list[PenaltyLayer]:
    return [module for module in model.modules() if isinstance(module, PenaltyLayer)]
