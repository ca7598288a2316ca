"""How a pass is cut into programs. `benchmarks/gpu.py` times these cuts beside others."""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """One program's share of a pass.

    Attributes:
        rows: Samples in a block.
        features: Features in a block.
        warps: Warps that work on it.
        hold: Whether the block holds every sample, so that features are read once.
    """

    rows: int
    features: int
    warps: int
    hold: bool = False

    def side_by_side(self, itemsize: int) -> int:
        """Samples that lie side by side in the program's threads, each of which reads 16 bytes at a time."""
        return min(self.rows, max(1, 32 * self.warps * (16 // itemsize) // self.features))


def power_of_two(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def whole_pass(n: int, d: int) -> Tile:
    """For moving the coefficients and subtracting.

    Up to 256 samples one warp holds them all, 128 numbers a thread, so that no thread waits for another. More are read
    twice, with so few features at a time that the second read finds them in the cache.
    """
    rows = max(4, power_of_two(n))
    if rows <= 256:
        return Tile(rows, min(max(16, 4096 // rows), 128, _enough_programs(d)), 1, hold=True)
    return Tile(128, 16, 4)


def products(n: int, d: int) -> Tile:
    """For sums over samples alone."""
    return _cut(n, min(512, _enough_programs(d)))


def subtraction(n: int, d: int) -> Tile:
    """For subtracting alone."""
    return _cut(n, min(512, _enough_programs(d)))


def _cut(n: int, features: int) -> Tile:
    """Blocks of four warps, or fewer where features are few, with 32 numbers a thread."""
    warps = max(1, features // 128)
    return Tile(min(power_of_two(n), 32 * 32 * warps // features), features, warps)


def _enough_programs(d: int) -> int:
    """So few features in a block that the programs of a pass can fill a GPU."""
    return max(16, power_of_two(d // 256))
