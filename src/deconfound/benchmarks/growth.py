"""How the cost of one PMDN layer grows with samples, features, metadata columns and the number of layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from deconfound.benchmarks.cohort import metadata
from deconfound.benchmarks.timing import seconds
from deconfound.layers import PMDN
from deconfound.surgery import normalize

# One size varies, the others stay at the middle.
SWEEPS: dict[str, dict[str, tuple[int, ...]]] = {
    "cuda": {
        "n": (1, 8, 32, 128, 512, 2048, 8192),
        "d": (64, 1024, 16_384, 262_144, 2_097_152),
        "p": (4, 8, 16, 32, 64, 128, 200),
        "layers": (1, 2, 4, 8, 16, 32),
    },
    "cpu": {
        "n": (1, 8, 32, 128, 512),
        "d": (64, 1024, 16_384, 65_536),
        "p": (4, 8, 16, 32, 64, 128, 200),
        "layers": (1, 2, 4, 8, 16),
    },
}
MIDDLE = {"cuda": (128, 65_536, 8), "cpu": (32, 4096, 8)}


def measure(device: str, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Seconds of forward and backward in training along each axis."""
    n, d, p = MIDDLE[device]
    for axis, values in SWEEPS[device].items():
        for value in values[:2] if quick else values:
            sizes = {"n": n, "d": d, "p": p, "layers": 1} | {axis: value}
            taken = _depth(sizes["layers"], device) if axis == "layers" else _layer(device=device, **sizes)
            yield {"axis": axis, **sizes, "seconds": taken}


def _layer(n: int, d: int, p: int, layers: int, device: str) -> float:
    design, encoded = metadata(n, sites=max(2, p - 2), device=device)
    layer = PMDN(design, d).to(device)
    x = torch.randn(n, d, device=device, requires_grad=True)
    gradient = torch.randn(n, d, device=device)

    def step() -> Tensor:
        (found,) = torch.autograd.grad(layer(x, encoded), x, gradient)
        return found

    return seconds(step, device)


def _depth(layers: int, device: str) -> float:
    design, encoded = metadata(64, device=device)
    network = nn.Sequential(*(nn.Linear(256, 256) for _ in range(layers)))
    model = normalize(network, design, at=[str(index) for index in range(layers)], example=torch.zeros(2, 256))
    model = model.to(device).train()
    x = torch.randn(64, 256, device=device)

    def step() -> None:
        model(x, metadata=encoded).sum().backward()

    return seconds(step, device)
