"""What a layer costs the host: an MLP on tables, the commonest use, where the arithmetic is next to nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from deconfound.training import threads
from deconfound_lab.benchmarks.jobs import Job, Row, metadata
from deconfound_lab.benchmarks.layers import LAYERS
from deconfound_lab.benchmarks.networks import METHODS, Case, TableMLP
from deconfound_lab.benchmarks.steps import training_step
from deconfound_lab.benchmarks.timing import Clock, ratio

CASE = Case("MLP 200-64-32-1", TableMLP, ("fc1", "fc2", "fc3"), (200,), 64)
THREADS = {"cpu": (1, 2), "cuda": (1,)}
# One layer by itself: features as the MLP has them.
BATCH, WIDTH = 64, 64


def jobs(device: str, quick: bool = False) -> list[Job]:
    """The MLP's training step with one and two threads, and forward and backward of each layer alone."""
    found = [
        Job("host", f"{CASE.name}, batch {CASE.batch}, {_named(count)}", partial(_steps, count, quick))
        for count in THREADS[device]
    ]
    return [*found, Job("host", f"one layer, {BATCH} × {WIDTH}", partial(_layers, quick))]


def _steps(count: int, quick: bool, clock: Clock) -> Iterator[Row]:
    """Training steps of every method, in rounds."""
    with threads(count):
        calls = {method: training_step(CASE, method, "eager", clock.device).train for method in METHODS}
        for call in calls.values():
            for _ in range(3):
                call()
        times = clock.together(calls, 0.0 if quick else 8.0, 3 if quick else 200, loop=True)
    for method, taken in times.items():
        found = {"seconds": statistics.median(taken), "ratio": ratio(taken, times["none"])}
        yield {"network": CASE.name, "batch": CASE.batch, "threads": count, "method": method, **found}


def _layers(quick: bool, clock: Clock) -> Iterator[Row]:
    """Seconds of the host for forward and backward of one layer in training, on one thread."""
    design, encoded = metadata(BATCH, device=clock.device)
    x = torch.randn(BATCH, WIDTH, device=clock.device, requires_grad=True)
    gradient = torch.randn(BATCH, WIDTH, device=clock.device)
    with threads(1):
        for name, make in LAYERS.items():
            layer = make(design, WIDTH).to(clock.device).train()
            arguments: tuple[Tensor, ...] = (x,) if name == "batchnorm" else (x, encoded)

            def step(layer: torch.nn.Module = layer, arguments: tuple[Tensor, ...] = arguments) -> None:
                torch.autograd.grad(layer(*arguments), x, gradient)

            taken = clock.together({name: step}, 0.0 if quick else 1.0, 200, loop=True)[name]
            yield {"layer": name, "n": BATCH, "d": WIDTH, "seconds": statistics.median(taken)}


def _named(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
