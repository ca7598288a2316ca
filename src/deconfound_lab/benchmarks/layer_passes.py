"""One layer's passes over its features, as ratios to a plain copy of them on the same device."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import nn

from deconfound.design import Design
from deconfound.layers import MDN, PMDN, RMDN, MetadataLayer
from deconfound_lab.benchmarks.cohort import metadata
from deconfound_lab.benchmarks.job import Job, Row
from deconfound_lab.benchmarks.timing import Call, Clock, ratio

# Samples × features: the sizes that the claims are about, and what a CPU is given.
SIZES = {
    "cuda": ((240, 262_144), (1000, 73_728), (64, 2_097_152), (32, 7_077_888)),
    "cpu": ((200, 12_544), (32, 65_536)),
}
QUICK = ((16, 300),)
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LAYERS: Mapping[str, Callable[[Design, int], nn.Module]] = {
    "pmdn": PMDN,
    "pmdn frozen": partial(PMDN, gradient="frozen"),
    "mdn": MDN,
    "rmdn": RMDN,
    "batchnorm": lambda design, d: nn.BatchNorm1d(d),
}


def jobs(device: str, quick: bool = False) -> list[Job]:
    """Each layer at each size in float32; PMDN in half precision too, where the device is made for it."""
    types = [name for name in TYPES if device == "cuda" or name == "float32"]
    sizes = QUICK if quick else SIZES[device]
    return [_job(n, d, name) for name in types for n, d in sizes]


def _job(n: int, d: int, type_: str) -> Job:
    layers = tuple(LAYERS) if type_ == "float32" else ("pmdn",)
    parts = tuple(partial(_measure, n, d, type_, (layer,)) for layer in layers)
    rehearsals = tuple((lambda clock, part=part: list(part(clock))) for part in parts)
    return Job("passes", f"{n} × {d:,}, {type_}", partial(_measure, n, d, type_, layers), rehearsals)


def _measure(n: int, d: int, type_: str, layers: tuple[str, ...], clock: Clock) -> Iterator[Row]:
    design, encoded = metadata(n, device=clock.device)
    x = torch.randn(n, d, device=clock.device).to(TYPES[type_])
    target, gradient = torch.empty_like(x), torch.randn_like(x)
    where = {"n": n, "d": d, "q": design.whitening.shape[1] + 1, "type": type_}
    for layer in layers:
        calls: dict[str, Call] = {"copy": lambda: target.copy_(x)}
        calls |= _passes(LAYERS[layer](design, d).to(clock.device).train(), x, gradient, encoded)
        times = clock.together(calls)
        for what, taken in times.items():
            if what != "copy" or layer == layers[0]:
                found = {"seconds": statistics.median(taken), "ratio": ratio(taken, times["copy"])}
                yield {**where, "layer": layer if what != "copy" else "copy", "pass": what, **found}


def _passes(layer: nn.Module, x: torch.Tensor, gradient: torch.Tensor, encoded: torch.Tensor) -> dict[str, Call]:
    forward: Callable[[torch.Tensor], torch.Tensor] = layer
    calls: dict[str, Call] = {}
    if isinstance(layer, MetadataLayer):
        rows = layer.prepare(encoded)  # shared by the layers of a network, so not part of one layer's pass
        seen = layer.eval().prepare(encoded)
        layer.train()
        forward = partial(layer.normalise, rows=rows)
        calls["eval"] = torch.no_grad()(lambda: layer.normalise(x, seen))
    leaf = x.detach().requires_grad_()
    out = forward(leaf)
    calls["train"] = torch.no_grad()(lambda: forward(x))
    calls["backward"] = lambda: torch.autograd.grad(out, leaf, gradient, retain_graph=True)
    return {what: calls[what] for what in ("train", "backward", "eval") if what in calls}
