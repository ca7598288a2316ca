"""How the cost of one PMDN layer grows with samples, features, metadata columns and the number of layers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from deconfound.layers import PMDN
from deconfound.surgery import normalize
from deconfound_lab.benchmarks.cohort import metadata
from deconfound_lab.benchmarks.job import Job, Row
from deconfound_lab.benchmarks.timing import Clock

# One size varies, the others stay at the middle.
SWEEPS: dict[str, dict[str, tuple[int, ...]]] = {
    "cuda": {
        "n": (1, 8, 32, 128, 512, 2048, 8192),
        "d": (64, 1024, 16_384, 262_144, 2_097_152),
        "p": (4, 8, 16, 32, 64, 128, 200),
        "layers": (1, 2, 4, 8, 16, 32),
    },
    "quick": {"n": (1, 8), "d": (64, 128), "p": (4, 8), "layers": (1, 2)},
    "cpu": {
        "n": (1, 8, 32, 128, 512, 2048),
        "d": (64, 1024, 16_384, 65_536, 262_144),
        "p": (4, 8, 16, 32, 64, 128, 200),
        "layers": (1, 2, 4, 8, 16, 32),
    },
}
MIDDLE = {"cuda": (128, 65_536, 8), "cpu": (128, 16_384, 8), "quick": (8, 64, 4)}
# Of the networks whose layers are counted.
WIDTH, BATCH = 256, 64


def jobs(device: str, quick: bool = False) -> list[Job]:
    """One job for each axis."""
    found = []
    sizes = "quick" if quick else device
    for axis, values in SWEEPS[sizes].items():
        measure = partial(_measure, axis, values, MIDDLE[sizes])
        rehearsals = tuple(partial(_rehearse, axis, value, MIDDLE[sizes]) for value in values)
        found.append(
            Job("growth", {"n": "samples", "d": "features", "p": "columns"}.get(axis, axis), measure, rehearsals)
        )
    return found


def _rehearse(axis: str, value: int, middle: tuple[int, int, int], clock: Clock) -> None:
    list(_measure(axis, (value,), middle, clock))


def _measure(axis: str, values: tuple[int, ...], middle: tuple[int, int, int], clock: Clock) -> Iterator[Row]:
    n, d, p = middle
    for value in values:
        if axis == "layers":
            yield {"axis": axis, "n": BATCH, "d": WIDTH, "p": 6, "layers": value, **_depth(value, clock)}
        else:
            sizes = {"n": n, "d": d, "p": p} | {axis: value}
            yield {"axis": axis, **sizes, "layers": 1, **_layer(clock=clock, **sizes)}


def _layer(n: int, d: int, p: int, clock: Clock) -> Row:
    """Forward and backward in training, and what layers of one design share: the whitening."""
    design, encoded = metadata(n, sites=max(2, p - 2), device=clock.device)
    layer = PMDN(design, d).to(clock.device)
    x = torch.randn(n, d, device=clock.device, requires_grad=True)
    gradient = torch.randn(n, d, device=clock.device)
    rows = layer.prepare(encoded)

    def step() -> Tensor:
        (found,) = torch.autograd.grad(layer.normalise(x, rows), x, gradient)
        return found

    return {"seconds": clock.seconds(step), "whitening": clock.seconds(lambda: layer.prepare(encoded), 0.1)}


def _depth(layers: int, clock: Clock) -> Row:
    design, encoded = metadata(BATCH, device=clock.device)
    network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    model = normalize(network, design, at=[str(index) for index in range(layers)], example=torch.zeros(2, WIDTH))
    model = model.to(clock.device).train()
    x = torch.randn(BATCH, WIDTH, device=clock.device)

    def step() -> None:
        model(x, metadata=encoded).sum().backward()

    return {"seconds": clock.seconds(step)}
