"""Layers after linear layers or after every block as well, as `docs/decisions/0010-default-places.md` plans it.

`python -m tests.default_places` trains the networks (about ten minutes on one core) and writes the results.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import deconfound as dc
from deconfound.methods import Setting, method
from deconfound.networks import ResNet3D, SyntheticCNN
from deconfound.training import Samples, Schedule, bce, commit, interval, predict_in_memory, train_in_memory
from deconfound_lab.synthetic.images import synthetic_images

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "balance" / "places.json"
SEEDS = 3


def images(seed):
    """Synthetic images whose site goes with the group; 500 to train on, 300 to validate."""
    parts = [synthetic_images(count, 10 * seed + place, kind="sites") for place, count in enumerate((250, 150))]
    tables = [{"site": part.columns["site"], "dx": part.group.numpy()} for part in parts]
    return [part.images for part in parts], tables, ["site"]


def volumes(seed, size=16):
    """Noisy volumes: cases have a fainter core, site B a brighter ground and a steeper slope; most cases are from B."""
    parts, tables = [], []
    axis = torch.linspace(-1, 1, size)
    core = torch.exp(-4 * (axis[:, None, None] ** 2 + axis[:, None] ** 2 + axis**2))
    slope = axis.expand(size, size, size)
    for place, n in enumerate((240, 160)):
        random = torch.Generator().manual_seed(1000 * seed + place)
        case = torch.rand(n, generator=random) < 0.5
        b = torch.rand(n, generator=random) < torch.where(case, 0.8, 0.2)
        gain = 1.0 - 0.6 * case + 0.3 * torch.randn(n, generator=random)
        ground = 0.8 * b + 0.1 * torch.randn(n, generator=random)
        x = gain[:, None, None, None] * core * (1 + 0.5 * b[:, None, None, None])
        x = x + ground[:, None, None, None] * (0.5 + slope) + 0.3 * torch.randn(n, *core.shape, generator=random)
        parts.append(x[:, None])
        tables.append({"site": np.where(b, "B", "A"), "dx": case.long().numpy()})
    return parts, tables, ["site"]


NETWORKS = {
    "synthetic images, CNN": (images, SyntheticCNN, ["conv1", "conv2"], {"steps": 120, "batch_size": 60}),
    "small volumes, 3D ResNet": (
        volumes,
        lambda: ResNet3D(16, (4, 8, 8, 8), (32, 16), 1),
        ["blocks.*"],
        {"steps": 120, "batch_size": 40},
    ),
}


def top_level(network: nn.Module, globs: list[str]) -> list[str]:
    """The blocks themselves, not what is inside them."""
    names = [name for name, _ in network.named_modules()]
    return [name for name in names for each in globs if name == each or (each == "blocks.*" and name.count(".") == 1)]


def cell(name, places, balanced, seed):
    """The validation loss under overlap weights at the best epoch, and what the training cost."""
    make_data, make_network, blocks, length = NETWORKS[name]
    xs, tables, confounds = make_data(seed)
    weights = [dc.balance(table, ["dx"], confounds).row_weight for table in tables]
    design = dc.Design(confounds, keep=["dx"]).fit(tables[0], weight=weights[0] if balanced else None)
    train, validation = (
        Samples(
            x.float(),
            torch.from_numpy(design.encode(table)),
            torch.tensor(table["dx"]).float(),
            weight=torch.from_numpy(weight).float() if balanced else None,
        )
        for x, table, weight in zip(xs, tables, weights, strict=True)
    )
    torch.manual_seed(seed)
    network = make_network()
    linear = [path for path, module in network.named_modules() if isinstance(module, nn.Linear)]
    at = linear if places == "linear" else [*top_level(network, blocks), *linear]
    made = method("pmdn").prepare(network, Setting(design, at, lambda: train.batches(50)))
    schedule = Schedule(**length, lr=2e-3, weight_decay=0.0, validate_every=20)
    start = time.monotonic()

    def losses(logits: Tensor, target: Tensor) -> Tensor:
        return bce(logits.reshape(target.shape), target)

    result = train_in_memory(made, train, validation, losses, schedule, seed=seed)
    seconds = time.monotonic() - start
    each = losses(predict_in_memory(made, validation).logits.double(), validation.target)
    weight = torch.from_numpy(weights[1])
    coefficients = sum(layer.beta.numel() for layer in made.model.layers.values())
    return {
        "loss": round(float((each * weight).sum() / weight.sum()), 4),
        "step": result.best_step,
        "seconds": round(seconds, 1),
        "coefficients": coefficients,
    }


def study():
    """Every cell, and by seed the difference that blocks make."""
    content = {"format": "deconfound-default-places", "plan": "docs/decisions/0010-default-places.md"}
    content |= {"commit": commit(), "cells": {}, "differences": {}}
    for name in NETWORKS:
        for balanced in (True, False):
            found = {p: [cell(name, p, balanced, seed) for seed in range(SEEDS)] for p in ("linear", "blocks")}
            key = f"{name}, {'overlap weights' if balanced else 'no weights'}"
            content["cells"][key] = found
            pairs = zip(found["blocks"], found["linear"], strict=True)
            change = interval([(seed, a["loss"] - b["loss"]) for seed, (a, b) in enumerate(pairs)], 0.0)
            content["differences"][key] = {part: round(getattr(change, part), 4) for part in ("mean", "low", "high")}
            print(key, found, content["differences"][key], flush=True)
    return content


if __name__ == "__main__":
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(study(), indent=1) + "\n")
    sys.exit(0)
