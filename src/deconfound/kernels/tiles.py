"""How a pass is cut into programs: measured on an H200, see `docs/performance.md`."""

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

    @property
    def side_by_side(self) -> int:
        """Samples that lie side by side in the program's threads, at four features a thread."""
        return min(self.rows, max(1, 128 * self.warps // self.features))


def power_of_two(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def whole_pass(n: int, d: int) -> Tile:
    """For moving the coefficients and subtracting."""
    rows = max(4, power_of_two(n))
    narrow = _enough_programs(d)
    if rows <= 1024:
        features = min(max(16, 16_384 // rows), 256, narrow)
        return Tile(rows, features, _warps(rows * features, 128), hold=True)
    return Tile(128, min(32, narrow), 4)


def products(n: int, d: int) -> Tile:
    """For sums over samples alone."""
    rows = min(32, power_of_two(n))
    features = min(256, _enough_programs(d))
    return Tile(rows, features, _warps(rows * features, 64))


def subtraction(n: int, d: int) -> Tile:
    """For subtracting alone."""
    rows = min(16, power_of_two(n))
    features = min(512, _enough_programs(d))
    return Tile(rows, features, _warps(rows * features, 64))


def _enough_programs(d: int) -> int:
    """So few features in a block that the programs of a pass can fill a GPU."""
    return max(16, power_of_two(d // 256))


def _warps(numbers: int, each: int) -> int:
    """So many that a thread holds about `each` numbers."""
    return min(8, max(1, power_of_two(numbers // (32 * each))))
