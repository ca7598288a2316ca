"""Clocks: medians after a warm-up, and rounds that put what is compared through the same weather."""

from __future__ import annotations

import ctypes
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]

# A sample of a loop lasts at least this long, so that waiting for the device at its end does not count.
SAMPLE = 0.02
# What a GPU counts in a second at most; its sleep is given in cycles.
CYCLES = 2.5e9
# A call this long is not repeated beyond what was needed to warm up.
LONG = 1.0


@dataclass(frozen=True)
class Clock:
    """Times calls on one device.

    Attributes:
        device: "cpu" or "cuda".
        once: Run each call once and time nothing, to compile what there is to compile.
    """

    device: str
    once: bool = False

    def seconds(self, call: Call, budget: float = 0.3, most: int = 50) -> float:
        """The median time of a call, from as many as fit the budget."""
        return statistics.median(self.together({"": call}, budget, most)[""])

    def together(
        self, calls: Mapping[str, Call], budget: float = 0.3, most: int = 50, loop: bool = False
    ) -> dict[str, list[float]]:
        """Times of some calls in rounds, so that whatever else slows the machine slows all of them alike.

        Args:
            calls: What is compared, by name.
            budget: Seconds for all of them together.
            most: Rounds at most.
            loop: On a GPU time calls issued one after the other, host and device together, as a training loop does.
                Otherwise events time them, so that what the host does in the meantime does not count.
        """
        if self.once:
            for call in calls.values():
                call()
            self.synchronise()
            return {name: [math.nan] for name in calls}
        for call in calls.values():
            self._host(call)
        single = {name: self._host(call) for name, call in calls.items()}
        if max(single.values()) > LONG and len(calls) == 1:
            return {name: [taken] for name, taken in single.items()}
        repeats = {name: max(1, int(SAMPLE / max(taken, 1e-6))) if loop else 1 for name, taken in single.items()}
        a_round = sum(taken * repeats[name] for name, taken in single.items())
        rounds = min(most, max(3, int(budget / max(a_round, 1e-6))))
        if self.device == "cuda" and not loop:
            return _by_events(calls, rounds, single)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                times[name].append(self._host(call, repeats[name]))
        return times

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def peak_memory(self, call: Call) -> int:
        """Bytes of GPU memory that a call needs at most beyond what was held before it."""
        self.synchronise()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        self.synchronise()
        return torch.cuda.max_memory_allocated() - before

    def _host(self, call: Call, repeats: int = 1) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        self.synchronise()
        return (time.perf_counter() - start) / repeats


def keep_freed_memory() -> bool:
    """Ask the C library to keep what is freed for the next call; whether it could be asked.

    By default it gives memory back to the system at one call's end and faults it in again in the next, or not, as the
    heap happens to lie: up to half of a step on a CPU, and a matter of luck for each of the calls that are compared.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    trim_threshold, mmap_threshold, most = -1, -3, 2**31 - 1
    return bool(mallopt(trim_threshold, most) and mallopt(mmap_threshold, most))


def ratio(times: Sequence[float], plain: Sequence[float]) -> float:
    """The median over rounds of one call's time over another's."""
    return statistics.median(one / other for one, other in zip(times, plain, strict=True))


def kept_bytes(forward: Call) -> int:
    """Bytes that autograd keeps for backward after a forward pass, each piece of memory once."""
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor.detach()  # a graph that holds its own results is never freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()  # held, so that no address is given out twice
    total = sum(storage.nbytes() for storage in kept.values())
    del result
    return total


def _by_events(calls: Mapping[str, Call], rounds: int, single: Mapping[str, float]) -> dict[str, list[float]]:
    """Times between events, with the device kept waiting before each call for as long as a single one took.

    Meanwhile the host issues the whole call, so that its own pace does not count, however slow it is.
    """
    pairs: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(int(single[name] * CYCLES))
            start.record()
            call()
            end.record()
            pairs[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [start.elapsed_time(end) / 1000 for start, end in found] for name, found in pairs.items()}
