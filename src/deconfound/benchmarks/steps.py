"""Whole training steps: time and memory of each method as ratios to the plain network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from deconfound.benchmarks.cohort import metadata
from deconfound.benchmarks.networks import METHODS, Case, cases, with_method
from deconfound.benchmarks.timing import host_seconds, peak_memory
from deconfound.layers import alternating_step, split_parameters


def measure(
    device: str, modes: Sequence[str], methods: Sequence[str] = METHODS, quick: bool = False, only: str = ""
) -> Iterator[dict[str, Any]]:
    """Time each network with each method, eager, compiled, or captured in a CUDA graph."""
    for case in cases(quick, device):
        if only not in case.name:
            continue
        for mode in modes:
            plain: dict[str, Any] = {}
            for method in methods:
                found = _one(case, method, mode, device, quick)
                if method == "none":
                    plain = found
                if "seconds" in found and "seconds" in plain:
                    found["ratio"] = found["seconds"] / plain["seconds"]
                    if plain.get("bytes"):
                        found["memory_ratio"] = found["bytes"] / plain["bytes"]
                yield {"network": case.name, "batch": case.batch, "mode": mode, "method": method, **found}


def _one(case: Case, method: str, mode: str, device: str, quick: bool) -> dict[str, Any]:
    try:
        step = training_step(case, method, mode, device)
        for _ in range(3):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        rough = host_seconds(step, device, 2)
        repeats = 3 if quick else max(5, min(100, int((0.5 if device == "cuda" else 4.0) / rough)))
        found: dict[str, Any] = {"seconds": min(host_seconds(step, device, repeats) for _ in range(3))}
        if device == "cuda" and mode == "eager":
            found["bytes"] = peak_memory(step)
        return found
    except Exception as fault:  # one method that a mode does not serve must not end the run
        if quick:
            raise
        return {"fault": f"{type(fault).__name__}: {fault}"[:300]}
    finally:
        torch._dynamo.reset()
        if device == "cuda":
            torch.cuda.empty_cache()


def training_step(case: Case, method: str, mode: str, device: str) -> Callable[[], object]:
    """A call that trains the network on one batch."""
    design, encoded = metadata(case.batch, device=device)
    model = with_method(case, method, design, device)
    call: Callable[..., Tensor] = torch.compile(model) if mode == "compiled" else model
    images = torch.randn(case.batch, *case.shape, device=device)
    labels = torch.randint(0, 2, (case.batch,), device=device).float()
    takes_metadata = method not in ("none", "batchnorm", "layernorm")

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
        step: Callable[[], object] = lambda: alternating_step(model, loss, first, second)  # noqa: E731
    else:
        step = _plain_step(loss, optimizer(model.parameters()))
    return captured(step) if mode == "graph" else step


def _plain_step(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return step


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """The step as one CUDA graph, replayed by each call."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
