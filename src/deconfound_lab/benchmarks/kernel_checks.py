"""The kernels against float64 on the device they run on, and the cuts that were tried for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deconfound.layers.pmdn.kernels.tiles import Tile, products, subtraction, whole_pass
from deconfound_lab.benchmarks.job import Job
from deconfound_lab.benchmarks.timing import Call, Clock, ratio

Q, CONFOUNDS = 7, 5
# Odd sizes, one sample, many regressors, more samples than one block holds.
SHAPES = ((37, 1001, 8, 6), (1, 5, 3, 2), (200, 84, 7, 5), (3000, 130, 8, 6), (64, 999, 30, 27), (240, 4096, 7, 5))
TILES: dict[tuple[int, int], tuple[Tile, ...]] = {
    (240, 262_144): (Tile(64, 32, 4), Tile(64, 16, 4), Tile(32, 16, 2), Tile(128, 32, 8), Tile(32, 32, 4)),
    (1000, 73_728): (Tile(128, 16, 8), Tile(64, 16, 4), Tile(128, 8, 8), Tile(64, 8, 4), Tile(256, 16, 16)),
    (64, 2_097_152): (Tile(64, 128, 4), Tile(64, 64, 4), Tile(32, 64, 2), Tile(16, 64, 1), Tile(32, 128, 4)),
    (32, 7_077_888): (Tile(32, 256, 4), Tile(32, 128, 4), Tile(16, 128, 2), Tile(16, 128, 1), Tile(16, 256, 4)),
}
PRODUCTS = (Tile(8, 512, 4), Tile(16, 512, 4), Tile(16, 256, 4), Tile(32, 128, 4))
SUBTRACTIONS = (Tile(8, 1024, 4), Tile(16, 512, 4), Tile(4, 1024, 4), Tile(8, 512, 4))


def jobs(device: str, quick: bool = False) -> list[Job]:
    """The check of every kernel; there are none on a CPU."""
    return [Job("checks", "against float64", lambda clock: check(clock.device))] if device == "cuda" else []


def tile_jobs(device: str, quick: bool = False) -> list[Job]:
    """The cuts of each pass at each of the claims' sizes: what `deconfound.layers.pmdn.kernels.tiles` is decided by."""
    if device != "cuda":
        return []
    found = []
    for n, d in TILES:
        tried = _cuts(n, d)
        pieces = [partial(_rehearse, n, d, kernel, tile) for kernel, cuts in tried.items() for tile in cuts]
        found.append(Job("tiles", f"{n} × {d:,}", partial(_sweep, n, d, tried), tuple(pieces)))
    return found


def check(device: str) -> Iterator[dict[str, Any]]:
    """Relative errors against float64."""
    from deconfound.layers.pmdn.kernels import launch

    rounding = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}
    for (n, d, q, confounds), (dtype, allowed) in ((s, t) for s in SHAPES for t in rounding.items()):
        x, regressors, removal, beta, gram, numbers = problem(n, d, q, confounds, device, dtype)
        wide = x.double()
        expected = beta.double() + numbers[:q, None].double() * (
            regressors.double().T @ wide - gram.double() @ beta.double()
        )
        flag = torch.zeros((), dtype=torch.int32, device=device)
        skipped = torch.zeros((), dtype=torch.int64, device=device)
        cross = launch.cross(x, regressors)
        eval_ = launch.subtract(x, removal, beta[:confounds])
        eval_expected = wide - removal.double() @ beta[:confounds].double()
        out = launch.move(x, beta, regressors, removal, gram, numbers, flag, skipped)
        yield {
            "n": n, "d": d, "q": q, "type": str(dtype).removeprefix("torch."), "allowed": allowed,
            "beta": error(beta, expected), "residual": error(out, wide - removal.double() @ expected[:confounds]),
            "cross": error(cross, regressors.double().T @ wide), "eval": error(eval_, eval_expected),
        }  # fmt: skip


def _cuts(n: int, d: int) -> dict[str, Sequence[Tile]]:
    """The cut that is chosen, and others beside it."""
    chosen = {"move": whole_pass(n, d, Q, 4), "products": products(n, d), "subtraction": subtraction(n, d)}
    others = {"move": TILES[n, d], "products": PRODUCTS, "subtraction": SUBTRACTIONS}
    return {kernel: tuple(dict.fromkeys((tile, *others[kernel]))) for kernel, tile in chosen.items()}


def _rehearse(n: int, d: int, kernel: str, tile: Tile, clock: Clock) -> None:
    list(_sweep(n, d, {kernel: (tile,)}, clock))


def _sweep(n: int, d: int, cuts: Mapping[str, Sequence[Tile]], clock: Clock) -> Iterator[dict[str, Any]]:
    """Time each cut of each kernel, as a ratio to a plain copy."""
    from deconfound.layers.pmdn.kernels import launch

    x, regressors, removal, beta, gram, numbers = problem(n, d, Q, CONFOUNDS, clock.device, torch.float32)
    target = torch.empty_like(x)
    flag = torch.zeros((), dtype=torch.int32, device=clock.device)
    skipped = torch.zeros((), dtype=torch.int64, device=clock.device)
    kernels: dict[str, Callable[[Tile], object]] = {
        "move": lambda tile: launch.move(x, beta, regressors, removal, gram, numbers, flag, skipped, tile=tile),
        "products": lambda tile: launch.cross(x, regressors, tile),
        "subtraction": lambda tile: launch.subtract(x, removal, beta[:CONFOUNDS], tile),
    }
    for kernel, tile in ((kernel, tile) for kernel, tiles in cuts.items() for tile in tiles):
        found = {"kernel": kernel, "n": n, "d": d, "tile": tuple(tile)}
        calls: dict[str, Call] = {"copy": lambda: target.copy_(x), "kernel": partial(kernels[kernel], tile)}
        try:
            times = clock.together(calls, 0.05)
        except Exception as fault:  # a cut that does not fit the device is a result too
            yield {**found, "fault": str(fault)[:200]}
        else:
            yield {**found, "ratio": ratio(times["kernel"], times["copy"]), "copy": min(times["copy"])}


def problem(n: int, d: int, q: int, confounds: int, device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Features, regressors, removal, coefficients, Gram matrix and the numbers of a step."""
    x = torch.randn(n, d, device=device).to(dtype)
    regressors = torch.randn(n, q, device=device)
    removal = torch.randn(n, confounds, device=device)
    beta = torch.randn(q, d, device=device)
    numbers = torch.cat([torch.full((q,), 0.3 / n, device=device), torch.ones(2, device=device)])
    return x, regressors, removal, beta, regressors.T @ regressors, numbers


def error(got: Tensor, expected: Tensor) -> float:
    """`‖got − expected‖ / ‖expected‖`."""
    return float((got.double() - expected).norm() / expected.norm())
