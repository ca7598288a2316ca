"""How a pass is cut into programs. The section `tiles` of `deconfound bench` times these cuts beside others."""

from __future__ import annotations

from typing import NamedTuple

# What a program of the whole pass may hold: coefficients for each regressor, and samples, which each take registers.
MOST_REGRESSORS, MOST_SAMPLES = 16, 2048


class Tile(NamedTuple):
    """One program's share of a pass.

    Attributes:
        rows: Samples in a block; fewer than the program has threads, see `deconfound.kernels.passes`.
        features: Features in a block.
        warps: Warps that work on it.
    """

    rows: int
    features: int
    warps: int

    def side_by_side(self, itemsize: int) -> int:
        """Samples that lie side by side in the program's threads, each of which reads 16 bytes at a time."""
        return min(self.rows, max(1, 32 * self.warps * (16 // itemsize) // self.features))


def power_of_two(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def whole_pass(n: int, d: int, itemsize: int = 4) -> Tile:
    """For moving the coefficients and subtracting: all samples are held, 256 bytes of them in each thread."""
    samples = max(16, power_of_two(n))
    warps = 4 if samples <= 256 else 8
    features = max(64 // itemsize, 256 * 32 * warps // (samples * itemsize))
    return Tile(min(samples, 16 * warps), min(features, 1024 // itemsize, _enough_programs(d)), warps)


def products(n: int, d: int) -> Tile:
    """For sums over samples alone."""
    return _cut(n, min(512, _enough_programs(d)), 8)


def subtraction(n: int, d: int) -> Tile:
    """For subtracting alone."""
    return _cut(n, min(1024, _enough_programs(d)), 8)


def _cut(n: int, features: int, most: int) -> Tile:
    """Blocks of four warps with at most 64 numbers a thread."""
    return Tile(max(1, min(power_of_two(n), max(most, 4096 // features), 64)), features, 4)


def _enough_programs(d: int) -> int:
    """So few features in a block that the programs of a pass can fill a GPU."""
    return max(16, power_of_two(d // 256))
