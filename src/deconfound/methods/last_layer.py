"""`last-layer`: the last linear layer fitted anew to balanced held-out rows (Kirichenko et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from deconfound.design.propensity import fit_logistic
from deconfound.errors import OptionError
from deconfound.methods.base import Batches, Method, Setting, TrainingBatch, require, row_weight, spread_weight
from deconfound.surgery import collect, last_linear


@final
class LastLayerMethod(Method):
    """The plain network; in the end its last linear layer is fitted anew to the validation rows, weighted for balance.

    What a network has learned often holds the label and the confound side by side; it is the last layer that mixes them
    as the training rows do. See `refit_last_layer`. Reads nothing at inference, and needs no other training.

    Args:
        network: Any module whose output is that of its last linear layer.
        setting: The problem.
        ridge: See `refit_last_layer`.
    """

    name: ClassVar[str] = "last-layer"
    summary: ClassVar[str] = "the plain network, its last layer fitted anew to balanced held-out rows"
    reads_confounds: ClassVar[bool] = False

    def __init__(self, network: nn.Module, setting: Setting, *, ridge: float = 0.01) -> None:
        super().__init__()
        require("ridge", ridge, 0)
        if last_linear(network) is None:
            raise OptionError("network must have a linear layer for method 'last-layer'; got none.")
        self.model, self.ridge = network, ridge
        self.confounds = len(setting.design.confound_columns)

    def refit(self, held_out: Batches) -> None:
        """Fit the last layer to the validation rows."""
        refit_last_layer(self.model, held_out(), self.confounds, self.ridge)


@torch.no_grad()
def refit_last_layer(
    network: nn.Module, held_out: Iterable[TrainingBatch], confounds: int, ridge: float = 0.01
) -> None:
    """Fit the last linear layer of any network, trained here or elsewhere, to held-out rows; the rest stands still.

    Minimises `mean w ℓ(F W + b) + ridge ‖W‖²` over W and b, with F the standardised inputs of the layer and ℓ the
    cross-entropy (squared error for numbers). w are the rows' weights; where they have none, overlap weights from a
    logistic model of the label on the confounds, under which the two are balanced.

    Args:
        network: In place.
        held_out: Rows that it was not trained on.
        confounds: How many of the first metadata columns are confounds.
        ridge: The more, the nearer to a constant prediction.
    """
    path = last_linear(network)
    layer = network.get_submodule(path or "")
    assert isinstance(layer, nn.Linear)
    training = network.training
    network.eval()
    logits, targets, metadata, weights = [], [], [], []
    with collect(network) as inputs:
        for batch in held_out:
            logits.append(network(batch.x).reshape(len(batch.x), -1))
            targets.append(batch.target)
            metadata.append(batch.metadata[:, :confounds])
            weights.append(batch.weight)
    network.train(training)
    features = inputs.features().reshape(-1, layer.in_features).double()
    if not torch.allclose(layer(features.to(layer.weight)), torch.cat(logits), rtol=1e-3, atol=1e-4):
        raise OptionError(f"the network's output must be that of its last linear layer, {path!r}; got another.")
    target = torch.cat(targets)
    given = [weight for weight in weights if weight is not None]
    weight = torch.cat(given) if len(given) == len(weights) else overlap_weights(torch.cat(metadata), target)
    share = row_weight(weight).to(features)[:, None]
    mean = (share * features).sum(0) / share.sum()
    sd = ((share * (features - mean).square()).sum(0) / share.sum()).sqrt()
    sd = torch.where(sd > 1e-9, sd, torch.ones_like(sd))
    coefficients, bias = _minimise((features - mean) / sd, target, weight, ridge, layer.out_features)
    coefficients = coefficients / sd[:, None]
    layer.weight.copy_(coefficients.T)
    if layer.bias is not None:
        layer.bias.copy_(bias - mean @ coefficients)


def overlap_weights(confounds: Tensor, target: Tensor) -> Tensor:
    """`(n,)` or `(n, labels)` with mean 1: `(1/e_own) / Σ_k 1/e_k` with e from a logistic model on the confounds."""
    columns = confounds.double().cpu().numpy()
    if target.is_floating_point() and not bool(((target == 0) | (target == 1)).all()):
        return torch.ones(len(target), dtype=torch.float64, device=target.device)
    labels = target.reshape(len(target), -1).long().cpu().numpy()
    found = []
    for codes in labels.T:
        _, codes = np.unique(codes, return_inverse=True)
        chance = fit_logistic(columns, codes, max(int(codes.max()) + 1, 2)).predict(columns).clip(1e-6)
        each = 1 / chance
        weight = each[np.arange(len(codes)), codes] / each.sum(1)
        found.append(weight / weight.mean())
    weights = torch.from_numpy(np.stack(found, axis=1)).to(target.device)
    return weights if target.ndim > 1 else weights[:, 0]


@torch.enable_grad()
def _minimise(x: Tensor, target: Tensor, weight: Tensor, ridge: float, outputs: int) -> tuple[Tensor, Tensor]:
    coefficients = x.new_zeros(x.shape[1], outputs, requires_grad=True)
    bias = x.new_zeros(outputs, requires_grad=True)
    optimizer = torch.optim.LBFGS([coefficients, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses = _losses(x @ coefficients + bias, target)
        total = (losses * spread_weight(weight, losses)).mean() + ridge * coefficients.square().sum()
        total.backward()
        return total

    optimizer.step(closure)
    return coefficients.detach(), bias.detach()


def _losses(logits: Tensor, target: Tensor) -> Tensor:
    if not target.is_floating_point():
        return cross_entropy(logits, target, reduction="none")
    wanted = target.to(logits).reshape(logits.shape)
    if bool(((wanted == 0) | (wanted == 1)).all()):
        return binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (logits - wanted).square()
