"""One layer by itself: exact against float64, its passes over a plain copy, and how its cost grows."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.layers import MDN, PMDN, RMDN, MetadataLayer
from deconfound.surgery import normalize
from deconfound_lab.benchmarks.jobs import Job, Row, metadata
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
# Odd sizes, few samples, many sites, more samples than one block holds: samples, features, sites.
CHECKED = ((37, 1001, 4), (4, 5, 2), (200, 84, 4), (3000, 130, 4), (64, 999, 25), (240, 4096, 4))
# What rounding of the written residual alone may cost.
ROUNDING = {"float32": 1e-6, "bfloat16": 4e-3, "float16": 5e-4}
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


def check_jobs(device: str, quick: bool = False) -> list[Job]:
    """The kernels against float64; there are none on a CPU."""
    return [Job("checks", "against float64", lambda clock: check(clock.device))] if device == "cuda" else []


def check(device: str) -> Iterator[Row]:
    """Relative errors of PMDN in training and eval against the same layer in float64, which no kernel serves."""
    for (n, d, sites), (type_, allowed) in ((size, item) for size in CHECKED for item in ROUNDING.items()):
        design, encoded = metadata(n, sites, device)
        x, gradient = (torch.randn(n, d, device=device).to(TYPES[type_]) for _ in range(2))
        layer = PMDN(design, d).to(device)
        exact = copy.deepcopy(layer).double()
        found, expected = _trained(layer, x, gradient, encoded), _trained(exact, x.double(), gradient.double(), encoded)
        errors = {what: error(found[what], expected[what]) for what in expected}
        yield {"n": n, "d": d, "q": len(design.columns) + 1, "type": type_, "allowed": allowed, **errors}


def _trained(layer: MetadataLayer, x: Tensor, gradient: Tensor, encoded: Tensor) -> dict[str, Tensor]:
    """Coefficients, residual and gradient after two training steps, and the residual in eval."""
    leaf = x.detach().requires_grad_()
    for _ in range(2):
        residual = layer.train()(leaf, encoded.to(layer.beta.dtype))
        (back,) = torch.autograd.grad(residual, leaf, gradient)
    with torch.no_grad():
        seen = layer.eval()(x, encoded.to(layer.beta.dtype))
    return {"beta": layer.beta.detach(), "residual": residual.detach(), "gradient": back, "eval": seen}


def error(got: Tensor, expected: Tensor) -> float:
    """`‖got − expected‖ / ‖expected‖`."""
    return float((got.double() - expected).norm() / expected.norm())


def pass_jobs(device: str, quick: bool = False) -> list[Job]:
    """Each layer at each size in float32; PMDN in half precision too, where the device is made for it."""
    types = [name for name in TYPES if device == "cuda" or name == "float32"]
    sizes = QUICK if quick else SIZES[device]
    return [_pass_job(n, d, name) for name in types for n, d in sizes]


def _pass_job(n: int, d: int, type_: str) -> Job:
    layers = tuple(LAYERS) if type_ == "float32" else ("pmdn",)
    parts = tuple(partial(_passes_at, n, d, type_, (layer,)) for layer in layers)
    pieces = tuple((lambda clock, part=part: list(part(clock))) for part in parts)
    return Job("passes", f"{n} × {d:,}, {type_}", partial(_passes_at, n, d, type_, layers), pieces)


def _passes_at(n: int, d: int, type_: str, layers: tuple[str, ...], clock: Clock) -> Iterator[Row]:
    design, encoded = metadata(n, device=clock.device)
    x = torch.randn(n, d, device=clock.device).to(TYPES[type_])
    target, gradient = torch.empty_like(x), torch.randn_like(x)
    where = {"n": n, "d": d, "q": len(design.columns) + 1, "type": type_}
    for layer in layers:
        calls: dict[str, Call] = {"copy": lambda: target.copy_(x)}
        calls |= _passes(LAYERS[layer](design, d).to(clock.device).train(), x, gradient, encoded)
        times = clock.together(calls)
        for what, taken in times.items():
            if what != "copy" or layer == layers[0]:
                found = {"seconds": statistics.median(taken), "ratio": ratio(taken, times["copy"])}
                yield {**where, "layer": layer if what != "copy" else "copy", "pass": what, **found}


def _passes(layer: nn.Module, x: Tensor, gradient: Tensor, encoded: Tensor) -> dict[str, Call]:
    calls: dict[str, Call] = {}
    # Backward has a layer of its own: what the other passes change is not what it was recorded with.
    forward, recorded = _forward(layer, encoded), _forward(copy.deepcopy(layer), encoded)
    if isinstance(layer, MetadataLayer):
        seen = layer.eval().whiten(encoded)
        evaluated = copy.deepcopy(layer)
        layer.train()
        calls["eval"] = torch.no_grad()(lambda: evaluated.normalise(x, seen))
    leaf = x.detach().requires_grad_()
    out = recorded(leaf)
    calls["train"] = torch.no_grad()(lambda: forward(x))
    calls["backward"] = lambda: torch.autograd.grad(out, leaf, gradient, retain_graph=True)
    return {what: calls[what] for what in ("train", "backward", "eval") if what in calls}


def _forward(layer: nn.Module, encoded: Tensor) -> Callable[[Tensor], Tensor]:
    """A training forward; layers of a network share the whitening, so it is no part of one layer's pass."""
    return partial(layer.normalise, batch=layer.whiten(encoded)) if isinstance(layer, MetadataLayer) else layer


def growth_jobs(device: str, quick: bool = False) -> list[Job]:
    """How the cost of a PMDN layer grows with samples, features, metadata columns and the number of layers."""
    found = []
    sizes = "quick" if quick else device
    for axis, values in SWEEPS[sizes].items():
        measure = partial(_growth, axis, values, MIDDLE[sizes])
        pieces = tuple((lambda clock, v=v, a=axis: list(_growth(a, (v,), MIDDLE[sizes], clock))) for v in values)
        name = {"n": "samples", "d": "features", "p": "columns"}.get(axis, axis)
        found.append(Job("growth", name, measure, pieces))
    return found


def _growth(axis: str, values: tuple[int, ...], middle: tuple[int, int, int], clock: Clock) -> Iterator[Row]:
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
    rows = layer.whiten(encoded)

    def step() -> Tensor:
        (found,) = torch.autograd.grad(layer.normalise(x, rows), x, gradient)
        return found

    return {"seconds": clock.seconds(step), "whitening": clock.seconds(lambda: layer.whiten(encoded), 0.1)}


def _depth(layers: int, clock: Clock) -> Row:
    design, encoded = metadata(BATCH, device=clock.device)
    network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    model = normalize(network, design, at=[str(index) for index in range(layers)], example=torch.zeros(2, WIDTH))
    model = model.to(clock.device).train()
    x = torch.randn(BATCH, WIDTH, device=clock.device)

    def step() -> None:
        model(x, metadata=encoded).sum().backward()

    return {"seconds": clock.seconds(step)}
