"""How a pass is cut into programs. The section `tiles` of `deconfound bench` times these cuts beside others."""

from __future__ import annotations

from typing import NamedTuple

# What a program of the whole pass may hold: coefficients for each regressor, and samples, which each take registers.
MOST_REGRESSORS, MOST_SAMPLES = 16, 1024


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
    """For moving the coefficients and subtracting, with all samples held in registers.

    Programs of one warp wait for nobody, but hold few samples; several warps share more of them, or of half precision.
    """
    if itemsize == 2:
        tile = _first(n, {32: Tile(16, 256, 2), 64: Tile(32, 128, 2), 256: Tile(32, 32, 2)}, Tile(128, 32, 8))
    else:
        tile = _first(n, {64: Tile(16, 64, 1), 256: Tile(64, 32, 4)}, Tile(128, 32, 8))
    return tile._replace(features=min(tile.features, _enough_programs(d)))


def _first(n: int, tiles: dict[int, Tile], otherwise: Tile) -> Tile:
    """The tile of the smallest number of samples that is not below n."""
    return next((tile for most, tile in tiles.items() if n <= most), otherwise)


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
