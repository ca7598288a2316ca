"""Speed and memory of the distance correlation: `python benchmarks/distance_correlation.py`.

Against the `dcor` package on the same CPU in the same run; then 100,000 rows within bounded memory, on a GPU where
there is one. Prints one JSON line per measurement.
"""

import argparse
import json
import platform
import resource
import time
from collections.abc import Callable

import torch

from deconfound.metrics import u_distance_correlation_sqr


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """The shortest of a few runs, after one that does not count."""
    call()
    return min(_timed(call) for _ in range(repeats))


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def against_dcor(n: int = 2000, d: int = 64) -> dict[str, object]:
    """Time and agreement beside the `dcor` package."""
    import dcor

    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, n, d, generator=rng, dtype=torch.float64)
    y = y + 0.3 * x
    ours = seconds(lambda: u_distance_correlation_sqr(x, y))
    theirs = seconds(lambda: dcor.u_distance_correlation_sqr(x.numpy(), y.numpy()), repeats=1)
    gap = abs(float(u_distance_correlation_sqr(x, y)) - dcor.u_distance_correlation_sqr(x.numpy(), y.numpy()))
    return {"what": f"n={n} d={d}, CPU", "seconds": ours, "dcor_seconds": theirs, "ratio": theirs / ours, "gap": gap}


def large(n: int, d: int, q: int, device: str) -> dict[str, object]:
    """Time and peak memory of `n × d` against `n × q`, float32."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, d, generator=rng).to(device), torch.randn(n, q, generator=rng).to(device)
    u_distance_correlation_sqr(x[:1000], y[:1000])
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        taken = seconds(lambda: u_distance_correlation_sqr(x, y))
        peak = torch.cuda.max_memory_allocated() / 2**30
    else:
        taken = _timed(lambda: u_distance_correlation_sqr(x, y))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"what": f"n={n} d={d} against q={q}, {device}", "seconds": taken, "peak_gib": peak}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--cpu", action="store_true", help="measure the large case on the CPU even beside a GPU")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() and not options.cpu else "cpu"
    print(json.dumps({"torch": torch.__version__, "machine": platform.machine(), "threads": torch.get_num_threads()}))
    print(json.dumps(large(options.rows, 128, 3, device)))
    print(json.dumps(large(options.rows, 1, 1, device)))
    try:
        print(json.dumps(against_dcor()))
    except ImportError:
        print(json.dumps({"what": "dcor", "skipped": "the dcor package is not installed"}))


if __name__ == "__main__":
    main()
