"""Distance correlation against the number of samples, beside `dcor` and statsmodels where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch

from deconfound.metrics import distance_correlation_sqr, u_distance_correlation_sqr
from deconfound_lab.benchmarks.job import Job, Row
from deconfound_lab.benchmarks.timing import Clock

SIZES = {"cuda": (2000, 10_000, 50_000, 100_000), "cpu": (500, 2000, 5000, 20_000)}
FEATURES, CONFOUNDS = 64, 3
# The packages hold n × n matrices in float64.
LARGEST_FOR_PACKAGES = 2000


def jobs(device: str, quick: bool = False) -> list[Job]:
    """One job for each number of samples."""
    sizes = SIZES[device][:1] if quick else SIZES[device]
    return [Job("metrics", f"{n:,} samples", partial(_measure, n)) for n in sizes]


def _measure(n: int, clock: Clock) -> Iterator[Row]:
    """Seconds for `n × 64` against `n × 3`; beside the packages in their float64, with the gap between the values."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, FEATURES, generator=rng), torch.randn(n, CONFOUNDS, generator=rng)
    y = y + 0.3 * x[:, :CONFOUNDS]
    here, there = x.to(clock.device), y.to(clock.device)
    call = partial(u_distance_correlation_sqr, here, there)
    found: Row = {"seconds": clock.seconds(call, 1.0)}
    if clock.device == "cuda":
        found["peak_bytes"] = clock.peak_memory(call)
    yield {"n": n, "by": "deconfound", "type": "float32", **found}
    if n > LARGEST_FOR_PACKAGES or clock.device == "cuda":
        return
    x, y = x.double(), y.double()
    taken = clock.seconds(lambda: u_distance_correlation_sqr(x, y), 1.0)
    yield {"n": n, "by": "deconfound", "type": "float64", "seconds": taken}
    for name, (theirs, ours) in _packages(x.numpy(), y.numpy()).items():
        gap = abs(theirs() - float(ours(x, y)))
        yield {"n": n, "by": name, "type": "float64", "seconds": clock.seconds(theirs, 1.0, 3), "gap": gap}


def _packages(x: Any, y: Any) -> dict[str, tuple[Callable[[], float], Callable[..., torch.Tensor]]]:
    """Each package's call, and our function for the same estimator."""
    threads = torch.get_num_threads()
    found: dict[str, tuple[Callable[[], float], Callable[..., torch.Tensor]]] = {}
    try:
        dcor = import_module("dcor")
        found["dcor"] = (lambda: float(dcor.u_distance_correlation_sqr(x, y)), u_distance_correlation_sqr)
    except ImportError:
        pass
    try:
        statsmodels = import_module("statsmodels.stats.dist_dependence_measures")
        biased = lambda: float(statsmodels.distance_statistics(x, y).distance_correlation ** 2)  # noqa: E731
        found["statsmodels"] = (biased, distance_correlation_sqr)
    except ImportError:
        pass
    torch.set_num_threads(threads)  # numba, which dcor imports, sets them anew for the whole process
    return found
