"""Whole training steps: time and memory of each method as ratios to the plain network."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from deconfound.layers import alternating_step, split_parameters
from deconfound_lab.benchmarks.jobs import Job, Row, metadata
from deconfound_lab.benchmarks.networks import METHODS, Case, cases, features_bytes, with_method
from deconfound_lab.benchmarks.timing import Clock, kept_bytes, ratio

MODES = {"cpu": ("eager", "compiled"), "cuda": ("eager", "graph", "compiled")}
# Two optimisers in turn are not one graph, and a solver of R-MDN cannot be captured at every batch size.
CAPTURED = ("none", "batchnorm", "layernorm", "mdn", "pmdn")
# A compiler takes up to a minute for a network: it is given fewer methods, and on a CPU only where it is asked for.
COMPILED = ("none", "batchnorm", "pmdn")
USUAL = {"cpu": ("eager",), "cuda": ("eager", "graph", "compiled")}
# Seconds for the steps of all methods together.
BUDGET = {"cpu": 24.0, "cuda": 6.0}


def jobs(device: str, quick: bool = False, modes: Sequence[str] | None = None) -> list[Job]:
    """Each network in each mode, with the modes in the order given."""
    found = []
    for mode in USUAL[device] if modes is None else modes:
        for case in cases(quick, device):
            methods = {"graph": CAPTURED, "compiled": COMPILED}.get(mode, METHODS)
            name = f"{case.name}, batch {case.batch}, {mode}"
            pieces = tuple(partial(_precompile, case, mode, method) for method in methods)
            measure = partial(_measure, case, mode, methods, quick)
            # A capture that fails leaves torch's random numbers unusable, so that what needs none comes before.
            found.append(Job("steps", name, measure, pieces, late=mode != "eager"))
    return found


@dataclass(frozen=True)
class Step:
    """A training step of one method, and its forward pass alone."""

    train: Callable[[], object]
    loss: Callable[[], Tensor]


def _measure(case: Case, mode: str, methods: Sequence[str], quick: bool, clock: Clock) -> Iterator[Row]:
    steps: dict[str, Step] = {}
    faults: dict[str, str] = {}
    torch._dynamo.reset()
    for method in methods:
        try:
            steps[method] = _warm(case, mode, method, clock)
        except Exception as fault:  # one method that a mode does not serve must not end the run
            if quick:
                raise
            faults[method] = f"{type(fault).__name__}: {fault}"[:300]
    budget, most = (0.0, 3) if quick else (BUDGET[clock.device], 60)
    calls = {method: step.train for method, step in steps.items()}
    times = clock.together(calls, budget, most, loop=True)
    memory = _memory(case, steps, clock) if mode == "eager" else {}
    for method in methods:
        found: Row = {"fault": faults[method]} if method in faults else {}
        if method in times:
            found["seconds"] = statistics.median(times[method])
            if "none" in times:
                found["ratio"] = ratio(times[method], times["none"])
        where = {"network": case.name, "batch": case.batch, "mode": mode, "method": method}
        yield {**where, **found, **memory.get(method, {})}


def _memory(case: Case, steps: dict[str, Step], clock: Clock) -> dict[str, Row]:
    """What each step keeps for backward, beside plain copies in the same places, and on a GPU the most it holds."""
    features = features_bytes(case, clock.device)
    needed = kept_bytes(training_step(case, "copy", "eager", clock.device).loss)
    found: dict[str, Row] = {}
    for method, step in steps.items():
        found[method] = {"kept_bytes": kept_bytes(step.loss), "needed_bytes": needed, "features_bytes": features}
        if clock.device == "cuda":
            found[method]["peak_bytes"] = clock.peak_memory(step.train)
    return found


def _warm(case: Case, mode: str, method: str, clock: Clock) -> Step:
    step = training_step(case, method, mode, clock.device)
    for _ in range(1 if clock.once else 3):
        step.train()
    clock.synchronise()
    return step


def _precompile(case: Case, mode: str, method: str, clock: Clock) -> None:
    torch._dynamo.reset()
    _warm(case, mode, method, clock)


def training_step(case: Case, method: str, mode: str, device: str) -> Step:
    """One method's network with its batch, loss and optimiser."""
    design, encoded = metadata(case.batch, device=device)
    model = with_method(case, method, design, device)
    call: Callable[..., Tensor] = model
    if mode == "compiled":  # on a GPU the compiled code goes into CUDA graphs
        call = torch.compile(model, mode="reduce-overhead" if device == "cuda" else None)
    images = torch.randn(case.batch, *case.shape, device=device)
    labels = torch.randint(0, 2, (case.batch,), device=device).float()
    takes_metadata = method not in ("none", "copy", "batchnorm", "layernorm")

    def loss() -> Tensor:
        half = device == "cuda" and not case.precise
        with torch.autocast(device, torch.bfloat16) if half else nullcontext():
            logits = call(images, metadata=encoded) if takes_metadata else call(images)
        logits = logits.float() if logits.ndim == 1 else logits.float().mean(1)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels)

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-4, fused=True, capturable=device == "cuda")

    if method == "pmdn-alternating":
        network, coefficients = split_parameters(model)
        first, second = optimizer(network), optimizer(coefficients)
        train: Callable[[], object] = lambda: alternating_step(model, loss, first, second)  # noqa: E731
    else:
        train = _plain_step(loss, optimizer(model.parameters()))
    return Step(_captured(train) if mode == "graph" else train, loss)


def _plain_step(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return step


@dataclass(frozen=True)
class Captured:
    """A step as one CUDA graph, replayed by each call; the step is kept because the optimiser's state belongs to it."""

    step: Callable[[], object]
    graph: torch.cuda.CUDAGraph

    def __call__(self) -> None:
        """Train on the batch once more."""
        self.graph.replay()


def _captured(step: Callable[[], object]) -> Captured:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return Captured(step, graph)
