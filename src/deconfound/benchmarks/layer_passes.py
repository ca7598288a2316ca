"""One layer's passes over its features, as ratios to a plain copy of them on the same device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from deconfound.benchmarks.cohort import metadata
from deconfound.benchmarks.timing import seconds
from deconfound.layers import MDN, PMDN, RMDN, MetadataLayer

# Samples × features, float32: the sizes that the claims are about.
SIZES = ((240, 262_144), (1000, 73_728), (64, 2_097_152), (32, 7_077_888))
SMALL = ((200, 12_544), (32, 65_536))
QUICK = ((16, 300),)
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def measure(device: str, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Time forward in training, its backward and eval of each layer at each size, and a plain copy."""
    sizes = QUICK if quick else SMALL if device == "cpu" else SIZES
    for n, d in sizes:
        names = TYPES if device == "cuda" else {"float32": torch.float32}
        for name, dtype in names.items():
            yield from _at(n, d, name, dtype, device)


def _at(n: int, d: int, name: str, dtype: torch.dtype, device: str) -> Iterator[dict[str, Any]]:
    design, encoded = metadata(n, device=device)
    x = torch.randn(n, d, device=device).to(dtype)
    gradient = torch.randn(n, d, device=device).to(dtype)
    target = torch.empty_like(x)
    where = {"n": n, "d": d, "q": design.whitening.shape[1] + 1, "type": name}
    copy = seconds(lambda: target.copy_(x), device)
    yield {**where, "layer": "copy", "pass": "copy", "seconds": copy, "ratio": 1.0}
    plain: dict[str, Callable[[], MetadataLayer]] = {"pmdn": lambda: PMDN(design, d)}
    if dtype == torch.float32:
        plain |= {
            "pmdn frozen": lambda: PMDN(design, d, gradient="frozen"),
            "mdn": lambda: MDN(design, d),
            "rmdn": lambda: RMDN(design, d),
        }
    for layer_name, make in plain.items():
        layer = make().to(device)
        for what, taken in _passes(layer, x, gradient, encoded, device):
            yield {**where, "layer": layer_name, "pass": what, "seconds": taken, "ratio": taken / copy}
    if dtype == torch.float32:
        norm = torch.nn.BatchNorm1d(d).to(device)
        taken = seconds(lambda: norm(x), device)
        yield {**where, "layer": "batchnorm", "pass": "train", "seconds": taken, "ratio": taken / copy}


def _passes(
    layer: MetadataLayer, x: Tensor, gradient: Tensor, encoded: Tensor, device: str
) -> Iterator[tuple[str, float]]:
    layer.train()
    rows = layer.prepare(encoded)  # shared by the layers of a network, so not part of one layer's pass
    with torch.no_grad():
        yield "train", seconds(lambda: layer.normalise(x, rows), device)
    leaf = x.detach().requires_grad_()
    out = layer.normalise(leaf, rows)
    yield "backward", seconds(lambda: torch.autograd.grad(out, leaf, gradient, retain_graph=True), device)
    layer.eval()
    rows = layer.prepare(encoded)
    with torch.no_grad():
        yield "eval", seconds(lambda: layer.normalise(x, rows), device)
