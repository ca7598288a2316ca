"""Once weights break the tie of label and confound, a frozen β hardly matters: in expectation, and for the runaway."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import deconfound as dc
from tests.layers.runaway import feature_norms


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


@pytest.mark.parametrize("balanced", [False, True])
def test_features_with_frozen_beta_no_longer_run_away_under_overlap_weights(balanced):
    norms = feature_norms("frozen", noise=0.8, steps=1000, balanced=balanced)
    grown = norms[-1] / norms[100]
    assert grown < 1.5 if balanced else grown > 2.0
