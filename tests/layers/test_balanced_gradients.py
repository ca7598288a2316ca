"""Once weights break the tie of label and confound, a frozen β hardly matters: in expectation, and for the runaway."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import deconfound as dc


def population(interaction):
    """Every combination of label, confound and noise, as often as it occurs; most cases have confound 1.

    The feature is the label, noise and a linear effect of the confound; with an interaction the confound also scales.
    """
    kinds = itertools.product((0, 1), (-1, 1), (-1.0, 0.2, 0.8))
    cells = [(y, c, u) for y, c, u in kinds for _ in range(8 if y == (c > 0) else 2)]
    y, c, u = (np.array(column, dtype=float) for column in zip(*cells, strict=True))
    feature = (1.5 * y + u) * (1 + interaction * c) + 0.7 * c
    return {"c": np.where(c > 0, "B", "A"), "y": y}, torch.tensor(feature)[:, None]


def gradients(interaction, balanced):
    """Of the weighted loss by the features: frozen β, and through β by the library's full-batch MDN."""
    table, feature = population(interaction)
    weight = dc.balance(table, ["y"], ["c"]).row_weight if balanced else np.ones(len(table["y"]))
    design = dc.Design(confounds=["c"], keep=["y"]).fit(table, weight=weight)
    metadata, target, weight = (torch.from_numpy(v) for v in (design.encode(table, np.float64), table["y"], weight))
    features = feature.clone().requires_grad_()
    residual = dc.MDN(design, 1, gram="batch").double()(features, metadata, weight=weight)
    losses = binary_cross_entropy_with_logits(residual[:, 0], target, reduction="none")
    loss = (weight * losses).sum() / weight.sum()
    through = torch.autograd.grad(loss, [features, residual])
    return through[1], through[0]  # with β frozen ∂r/∂f is the identity


def gap(**options):
    frozen, through = gradients(**options)
    return float((frozen - through).norm() / frozen.norm())


def test_frozen_and_bilevel_gradients_agree_where_label_and_residual_are_independent_of_the_confound():
    assert gap(interaction=0.0, balanced=True) < 1e-10
    assert gap(interaction=0.0, balanced=False) > 0.2  # the control: the tie


def test_they_do_not_agree_where_the_residual_still_depends_on_the_confound():
    """A confound that scales the feature is not removed by a linear layer, balanced or not."""
    assert gap(interaction=0.5, balanced=True) > 0.02


def norms_with_frozen_beta(balanced, steps=1000, rows=256):
    """The raw features' norm while a linear feature is trained on a label that goes with its confound."""
    torch.manual_seed(0)
    confound = torch.randn(rows)
    label = (confound + 0.8 * torch.randn(rows) > 0).float()
    inputs = confound[:, None] * torch.randn(6) + 0.3 * torch.randn(rows, 6)
    table = {"c": confound.numpy(), "y": label.numpy()}
    weight = torch.from_numpy(dc.balance(table, ["y"], ["c"]).row_weight).float() if balanced else torch.ones(rows)
    design = dc.Design(confounds=["c"], keep=["y"]).fit(table, weight=weight.numpy())
    metadata = torch.from_numpy(design.encode(table))
    first, layer, last = nn.Linear(6, 8), dc.PMDN(design, 8, gradient="frozen"), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.03)
    norms = []
    for _ in range(steps):
        features = first(inputs)
        norms.append(features.detach().norm().item())
        logits = last(layer(features, metadata, weight=weight)).squeeze(1)
        loss = (weight * binary_cross_entropy_with_logits(logits, label, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return norms


@pytest.mark.parametrize("balanced", [False, True])
def test_features_with_frozen_beta_no_longer_run_away_under_overlap_weights(balanced):
    norms = norms_with_frozen_beta(balanced)
    grown = norms[-1] / norms[100]
    assert grown < 1.5 if balanced else grown > 2.0
