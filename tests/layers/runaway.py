"""A linear feature trained on a label that goes with its confound: with β frozen, raw features may run away."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import deconfound as dc


def feature_norms(gradient, noise, steps, balanced=False, rows=256):
    """The raw features' norm before each step; the label is the sign of the confound with some noise."""
    torch.manual_seed(0)
    confound = torch.randn(rows)
    label = (confound + noise * torch.randn(rows) > 0).float()
    inputs = confound[:, None] * torch.randn(6) + 0.3 * torch.randn(rows, 6)
    table = {"c": confound.numpy(), "y": label.numpy()}
    weight = torch.from_numpy(dc.balance(table, ["y"], ["c"]).row_weight).float() if balanced else None
    design = dc.Design(confounds=["c"], keep=["y"]).fit(table, weight=None if weight is None else weight.numpy())
    metadata = torch.from_numpy(design.encode(table))
    first, layer, last = nn.Linear(6, 8), dc.PMDN(design, 8, gradient=gradient), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.03)
    norms = []
    for _ in range(steps):
        features = first(inputs)
        norms.append(features.detach().norm().item())
        logits = last(layer(features, metadata, weight=weight)).squeeze(1)
        loss = binary_cross_entropy_with_logits(logits, label, weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return norms
