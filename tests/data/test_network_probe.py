"""A plain network on the simulated cohort: the confounding is real, and the disease can be learned."""

import numpy as np
import pytest
import torch
from torch import nn

from deconfound_lab.cohort.cohort import simulate_cohort


def network(outputs):
    def block(a, b):
        return [nn.Conv3d(a, b, 3, stride=2, padding=1), nn.BatchNorm3d(b), nn.ReLU()]

    head = [nn.Flatten(), nn.Linear(32 * 64, 64), nn.ReLU(), nn.Linear(64, outputs)]
    return nn.Sequential(*block(1, 8), *block(8, 16), *block(16, 32), *head)


def train(images, target, loss, outputs, epochs):
    """Train on the first 1,000 people; the outputs for the others, averaged over the last three epochs."""
    torch.manual_seed(0)
    model = network(outputs)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-2)
    kept = []
    for epoch in range(epochs):
        model.train()
        for rows in torch.randperm(1000).split(20):
            optimizer.zero_grad()
            loss(model(images[rows]), target[rows]).backward()
            optimizer.step()
        model.eval()
        if epoch >= epochs - 3:
            with torch.no_grad():
                kept.append(model(images[1000:]))
    return torch.stack(kept).mean(0)


def standardised(cohort):
    images = torch.from_numpy(cohort.read(np.arange(len(cohort))))
    return (images - images[:1000].mean()) / images[:1000].std()


@pytest.mark.slow
def test_a_plain_network_decodes_site_and_age_from_the_volumes():
    cohort = simulate_cohort(32)
    images = standardised(cohort)
    names = sorted(set(cohort.table["site"]))
    site = torch.tensor([names.index(name) for name in cohort.table["site"]])
    guessed = train(images, site, nn.functional.cross_entropy, 3, epochs=6).argmax(1)
    assert (guessed == site[1000:]).float().mean() > 0.9
    age = torch.tensor((cohort.table["age"] - 69) / 11).float()[:, None]
    predicted = train(images, age, nn.functional.mse_loss, 1, epochs=12)
    assert 1 - (predicted - age[1000:]).square().mean() / age[1000:].var() > 0.5


@pytest.mark.slow
def test_a_plain_network_learns_the_labels_where_no_confound_helps_but_not_up_to_the_ceiling():
    cohort = simulate_cohort(32, seed=1, independent=True)
    target = torch.tensor(np.stack([cohort.table["hiv"], cohort.table["mci"]], 1)).float()
    logits = train(standardised(cohort), target, nn.functional.binary_cross_entropy_with_logits, 2, epochs=14)
    right = ((logits > 0).float() == target[1000:]).all(1).float().mean()
    assert 0.5 < right < 0.8
