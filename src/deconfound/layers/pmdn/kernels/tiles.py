"""The tiles of a pass, one program's share of it. The section `tiles` of `deconfound bench` times them and others."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

# Regressors in one kernel: a program holds sums for each of them, which take registers.
MOST_IN_ONE_KERNEL = 16


class Tile(NamedTuple):
    """One program's share of a pass.

    Attributes:
        rows: Samples in a block; with at most 16 for each warp regressors need no exchange between threads.
        features: Features in a block.
        warps: Warps that work on it.
        registers: The most for each thread, so that more programs run side by side; None leaves it to the compiler.
        hold: Whether the last block stays in registers between its two uses, which pays where there are few blocks.
    """

    rows: int
    features: int
    warps: int
    registers: int | None = None
    hold: bool = False

    def side_by_side(self, itemsize: int) -> int:
        """Samples that lie side by side in the program's threads, each of which reads 16 bytes at a time."""
        return min(self.rows, max(1, 32 * self.warps * (16 // itemsize) // self.features))


def power_of_two(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


# For moving the coefficients and subtracting: for at most so many samples, and for more by the size of a number.
# All programs that run side by side should find their features in the second-level cache when they come back to them.
FULL = {
    32: Tile(16, 128, 1, None, True),
    64: Tile(16, 64, 1, None, True),
    128: Tile(16, 64, 1, 128),
    512: Tile(64, 64, 4, 128),
}
HALF = {64: Tile(8, 128, 1, 168), 512: Tile(16, 64, 1)}
MANY = {4: Tile(128, 32, 4, 128), 2: Tile(64, 64, 4)}


@cache
def whole_pass(n: int, d: int, q: int, itemsize: int) -> Tile:
    """For moving the coefficients of q regressors and subtracting."""
    few = HALF if itemsize == 2 else FULL
    tile = next((tile for most, tile in few.items() if n <= most), MANY[itemsize])
    held = tile.features if q <= 8 else tile.features // 2  # there are sums for each regressor
    least = 16 if n <= 512 else 32  # programs with many samples take long, so that fewer of them keep a GPU busy
    features = min(held, max(least, power_of_two(d // 1024)))
    return tile if features == tile.features else tile._replace(features=features, registers=None)


@cache
def products(n: int, d: int) -> Tile:
    """For sums over samples alone."""
    return _blocks_of_four_warps(n, min(512, _enough_programs(d)))


@cache
def subtraction(n: int, d: int) -> Tile:
    """For subtracting alone."""
    return _blocks_of_four_warps(n, min(1024, _enough_programs(d)))


def _blocks_of_four_warps(n: int, features: int) -> Tile:
    """Blocks of four warps with at most 64 numbers a thread."""
    return Tile(min(power_of_two(n), max(8, 4096 // features), 64), features, 4)


def _enough_programs(d: int) -> int:
    """So few features in a block that the programs of a pass can fill a GPU."""
    return max(16, power_of_two(d // 256))
