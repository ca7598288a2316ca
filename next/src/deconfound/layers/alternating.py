"""Algorithm 1 with its two forward passes and two optimisers: β are parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deconfound.design import Design
from deconfound.errors import OptionError, StateError
from deconfound.layers.arithmetic import positive
from deconfound.layers.base import MetadataLayer
from deconfound.layers.batch import WhitenedBatch


class AlternatingPMDN(MetadataLayer):
    """PMDN as in Algorithm 1: a step on β with the network frozen, then one on the network.

    The task loss treats β as a constant, and `penalty` treats the features as constants. One
    optimiser for each of `split_parameters(model)` therefore alternates as in lines 4 to 9, which
    `alternating_step` does. It costs two forward passes, where `PMDN` needs one, and takes any
    torch optimiser for β.

    Differs from the paper: metadata are whitened, an intercept is fitted, and the penalty is summed
    over features instead of averaged (the 1/C becomes part of the learning rate).

    Args:
        design: A fitted design.
        shape: The shape of one sample's features. Axes of size 1 are shared; see `MetadataLayer`.

    Example:
        >>> import torch, deconfound as dc
        >>> from deconfound.layers import AlternatingPMDN
        >>> table = {"age": [61.5, 70.2, 78.9, 55.4]}
        >>> design = dc.Design(confounds=["age"]).fit(table)
        >>> layer = AlternatingPMDN(design, 1)
        >>> residual = layer(0.5 * torch.tensor(table["age"])[:, None] + 3, design.encode(table))
        >>> layer.penalty.backward()  # reaches β alone
        >>> with torch.no_grad():
        ...     _ = layer.beta.sub_(layer.beta.grad)  # SGD with learning rate 1
        >>> round(layer.coefficients()["age"].item(), 3)
        0.5
    """

    beta: nn.Parameter

    def __init__(self, design: Design, shape: int | Sequence[int]) -> None:
        super().__init__(design, shape)
        self.beta = nn.Parameter(torch.zeros(self._size))
        self._penalty: Tensor | None = None

    @property
    def penalty(self) -> Tensor:
        """The penalty L* of the last training forward pass, with its graph.

        L* = ½ Σ_features mean_samples (f − Rβ)². Plain SGD on it with learning rate η is the step
        of `PMDN(step=η)`.
        """
        if self._penalty is None:
            raise StateError(
                "The penalty belongs to a forward pass in training mode, and there was none yet. "
                "Call the model on a batch first."
            )
        return self._penalty

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        # Line 6 differentiates L* with respect to β alone, so that the features are constants.
        errors = self.pool(x.detach()) - batch.regressors @ self.beta
        if batch.has_weights:
            errors = torch.where(batch.weighted[:, -1:] == 0, 0.0, errors)
        is_finite = errors.isfinite().all()
        squares = torch.where(is_finite, errors, torch.zeros_like(errors)).square().sum(1)
        weight = batch.weighted[:, -1]
        self._penalty = 0.5 * (weight @ squares) / positive(weight.sum())
        if self._may_learn:
            self._count_skip(is_finite)
        # Line 9 differentiates L with respect to W alone: `subtract_effect` detaches β.
        return self.subtract_effect(x, batch.confounds)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the last penalty, because its graph cannot be copied or pickled."""
        return {**self.__dict__, "_penalty": None}


class SplitParameters(NamedTuple):
    """The parameters of a model, for the two optimisers of Algorithm 1."""

    network: list[nn.Parameter]
    coefficients: list[nn.Parameter]


def split_parameters(model: nn.Module) -> SplitParameters:
    """Separate the network's parameters W from the coefficients β.

    Example:
        >>> import torch, deconfound as dc
        >>> from deconfound.layers import AlternatingPMDN, split_parameters
        >>> design = dc.Design(confounds=["age"]).fit({"age": [61.5, 70.2, 78.9, 55.4]})
        >>> model = torch.nn.ModuleList([torch.nn.Linear(3, 2), AlternatingPMDN(design, 2)])
        >>> network, coefficients = split_parameters(model)
        >>> len(network), len(coefficients)
        (2, 1)
    """
    coefficients = [layer.beta for layer in _alternating_layers(model)]
    ids = {id(parameter) for parameter in coefficients}
    network = [parameter for parameter in model.parameters() if id(parameter) not in ids]
    return SplitParameters(network, coefficients)


def alternating_step(
    model: nn.Module,
    closure: Callable[[], Tensor],
    network_optimizer: Optimizer,
    coefficient_optimizer: Optimizer,
) -> Tensor:
    """Take one iteration of Algorithm 1.

    Args:
        model: A network with `AlternatingPMDN` layers, in training mode.
        closure: Runs the model on the batch and returns the task loss. It is called twice.
        network_optimizer: The optimiser of `split_parameters(model).network`.
        coefficient_optimizer: The optimiser of `split_parameters(model).coefficients`.

    Returns:
        The task loss of the second forward pass, detached.
    """
    layers = _alternating_layers(model)
    if not layers:
        raise OptionError(
            "model must contain AlternatingPMDN layers; got none. "
            "PMDN needs no alternation: train it with an ordinary loop."
        )
    # Lines 4 to 6: only the gradient of L* with respect to β is used.
    closure()
    coefficient_optimizer.zero_grad()
    torch.stack([layer.penalty for layer in layers]).sum().backward()
    coefficient_optimizer.step()
    # Lines 7 to 9, with the new β.
    loss = closure()
    network_optimizer.zero_grad()
    loss.backward()
    network_optimizer.step()
    return loss.detach()


def _alternating_layers(model: nn.Module) -> list[AlternatingPMDN]:
    return [module for module in model.modules() if isinstance(module, AlternatingPMDN)]
