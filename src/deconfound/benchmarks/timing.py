"""Clocks: medians after a warm-up, in seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def seconds(call: Callable[[], object], device: str, budget: float = 0.3, most: int = 50) -> float:
    """The median time of a call, from as many as fit the budget.

    On a GPU the calls are timed by events, so that what the host does in the meantime does not count.
    """
    first = _host(call, device)
    first = min(first, _host(call, device))
    repeats = max(3, min(most, int(budget / max(first, 1e-6))))
    if device == "cuda":
        return _events(call, repeats)
    return statistics.median(_host(call, device) for _ in range(repeats))


def host_seconds(call: Callable[[], object], device: str, repeats: int) -> float:
    """Time per call with calls issued one after the other, as a training loop does: host and device together."""
    call()
    synchronise(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronise(device)
    return (time.perf_counter() - start) / repeats


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak_memory(call: Callable[[], object]) -> int:
    """Bytes of GPU memory that a call needs at most beyond what was held before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _host(call: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def _events(call: Callable[[], object], repeats: int) -> float:
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in pairs:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    milliseconds: list[float] = [start.elapsed_time(end) for start, end in pairs]
    return statistics.median(milliseconds) / 1000
