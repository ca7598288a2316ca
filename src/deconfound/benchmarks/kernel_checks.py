"""The kernels against float64 on the device they run on, and the cuts that were tried for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from deconfound.benchmarks.timing import seconds
from deconfound.kernels.tiles import Tile

Q, CONFOUNDS = 7, 5
# Odd sizes, one sample, one feature, many regressors, more samples than one block holds.
SHAPES = ((37, 1001, 8, 6), (1, 5, 3, 2), (200, 84, 7, 5), (3000, 130, 8, 6), (64, 999, 30, 27), (240, 4096, 7, 5))
TILES: dict[tuple[int, int], tuple[Tile, ...]] = {
    (240, 262_144): (
        Tile(256, 16, 1, True), Tile(256, 64, 4, True), Tile(256, 32, 2, True), Tile(256, 32, 4, True),
        Tile(256, 64, 8, True), Tile(256, 16, 2, True), Tile(64, 64, 4), Tile(64, 32, 2), Tile(256, 16, 4),
    ),
    (1000, 73_728): (
        Tile(1024, 16, 4, True), Tile(1024, 16, 8, True), Tile(1024, 8, 2, True), Tile(1024, 32, 8, True),
        Tile(128, 16, 4), Tile(256, 16, 4), Tile(64, 16, 2), Tile(128, 32, 4), Tile(64, 32, 2),
    ),
    (64, 2_097_152): (
        Tile(64, 64, 1, True), Tile(64, 128, 2, True), Tile(64, 256, 4, True), Tile(64, 128, 4, True),
        Tile(64, 64, 2, True), Tile(64, 32, 1, True), Tile(16, 256, 2),
    ),
    (32, 7_077_888): (
        Tile(32, 128, 1, True), Tile(32, 256, 2, True), Tile(32, 512, 4, True), Tile(32, 256, 4, True),
        Tile(32, 64, 1, True), Tile(32, 128, 2, True), Tile(8, 512, 4),
    ),
}  # fmt: skip
PRODUCTS = (Tile(16, 512, 4), Tile(32, 256, 4), Tile(8, 512, 4), Tile(64, 128, 4), Tile(32, 128, 2))
SUBTRACTIONS = (Tile(8, 512, 4), Tile(16, 512, 4), Tile(8, 1024, 4), Tile(16, 256, 4), Tile(4, 1024, 4))


def check(device: str) -> Iterator[dict[str, Any]]:
    """Relative errors against float64; outputs are poisoned before."""
    from deconfound.kernels import launch

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


def sweep() -> Iterator[dict[str, Any]]:
    """Time the cuts at the claims' sizes, each as a ratio to a plain copy."""
    for (n, d), candidates in TILES.items():
        yield from sweep_at(n, d, candidates)


def sweep_at(
    n: int,
    d: int,
    candidates: Sequence[Tile],
    budget: float = 0.03,
    products: Sequence[Tile] = PRODUCTS,
    subtractions: Sequence[Tile] = SUBTRACTIONS,
) -> Iterator[dict[str, Any]]:
    """Time the cuts at one size."""
    from deconfound.kernels import launch

    x, regressors, removal, beta, gram, numbers = problem(n, d, Q, CONFOUNDS, "cuda", torch.float32)
    target = torch.empty_like(x)
    flag = torch.zeros((), dtype=torch.int32, device="cuda")
    skipped = torch.zeros((), dtype=torch.int64, device="cuda")
    copy = seconds(lambda: target.copy_(x), "cuda", budget)
    kernels: dict[str, tuple[Sequence[Tile], Callable[[Tile], object]]] = {
        "move": (
            candidates,
            lambda tile: launch.move(x, beta, regressors, removal, gram, numbers, flag, skipped, tile=tile),
        ),
        "products": (products, lambda tile: launch.cross(x, regressors, tile)),
        "subtraction": (subtractions, lambda tile: launch.subtract(x, removal, beta[:CONFOUNDS], tile)),
    }
    for kernel, (tiles, call) in kernels.items():
        for tile in tiles:
            found = {"kernel": kernel, "n": n, "d": d, "tile": tuple(tile)}
            try:
                ratio = seconds(lambda tile=tile, call=call: call(tile), "cuda", budget) / copy  # type: ignore[misc]
            except Exception as fault:  # a cut that does not fit the device is a result too
                yield {**found, "fault": str(fault)[:200]}
            else:
                yield {**found, "ratio": ratio, "copy": copy}


def precompile(part: int, parts: int) -> None:
    """Compile every `parts`-th cut, so that some processes together fill Triton's cache on disk."""
    jobs = [(n, kernel_tiles) for (n, _), cuts in TILES.items() for kernel_tiles in cuts]
    for n, tile in jobs[part::parts]:
        list(sweep_at(n, 4096, [tile], 0.0, PRODUCTS[part::parts], SUBTRACTIONS[part::parts]))


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
