"""Distance correlation against the number of samples, beside `dcor` and statsmodels where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch

from deconfound.benchmarks.timing import seconds
from deconfound.metrics import u_distance_correlation_sqr

SIZES = {"cuda": (2000, 10_000, 50_000, 100_000), "cpu": (500, 2000, 5000, 20_000)}
# The packages hold n × n matrices in float64.
LARGEST_FOR_PACKAGES = 2000


def measure(device: str, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Seconds for `n × 64` against `n × 3`, and the gap between the packages' values and ours."""
    for n in SIZES[device][:1] if quick else SIZES[device]:
        rng = torch.Generator().manual_seed(0)
        x, y = torch.randn(n, 64, generator=rng), torch.randn(n, 3, generator=rng)
        y = y + 0.3 * x[:, :3]
        here, there = x.to(device), y.to(device)
        taken = seconds(lambda here=here, there=there: u_distance_correlation_sqr(here, there), device, 1.0)  # type: ignore[misc]
        yield {"n": n, "d": 64, "by": "deconfound", "seconds": taken}
        if n > LARGEST_FOR_PACKAGES or device == "cuda":
            continue
        ours = float(u_distance_correlation_sqr(x.double(), y.double()))
        for name, call in _packages(x.double().numpy(), y.double().numpy()).items():
            value = call()
            gap = None if name == "statsmodels" else abs(value - ours)
            yield {"n": n, "d": 64, "by": name, "seconds": seconds(call, "cpu", 1.0, 3), "gap": gap}


def _packages(x: Any, y: Any) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {}
    try:
        dcor = import_module("dcor")
        found["dcor"] = lambda: float(dcor.u_distance_correlation_sqr(x, y))
    except ImportError:
        pass
    try:
        statsmodels = import_module("statsmodels.stats.dist_dependence_measures")
        found["statsmodels"] = lambda: statsmodels.distance_statistics(x, y).distance_correlation
    except ImportError:
        pass
    return found
