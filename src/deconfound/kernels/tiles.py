"""How a pass is cut into programs: measured on an H200, see `docs/performance.md`."""

from __future__ import annotations

from typing import NamedTuple

# What one program may hold of the features while it works on them, in numbers; more spills out of the registers.
HELD = 16_384


class Tile(NamedTuple):
    """One program's share of a pass.

    Attributes:
        rows: Samples in a block.
        features: Features in a block.
        warps: Warps that work on it.
        hold: Whether the block holds every sample, so that features are read once.
        dot: Whether sums of products go through Triton's matrix product rather than one sum per regressor.
    """

    rows: int
    features: int
    warps: int
    hold: bool = False
    dot: bool = False


def power_of_two(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def whole_pass(n: int, d: int) -> Tile:
    """For moving the coefficients and subtracting."""
    rows = max(16, power_of_two(n))
    narrow = _enough_programs(d)
    if rows * 16 <= HELD:
        features = min(max(16, HELD // rows), 512, narrow)
        return Tile(rows, features, _warps(rows * features), hold=True)
    return Tile(256, min(32, narrow), _warps(256 * min(32, narrow)))


def products(n: int, d: int) -> Tile:
    """For sums over samples alone."""
    rows = min(64, max(16, power_of_two(n)))
    features = min(128, _enough_programs(d))
    return Tile(rows, features, _warps(rows * features))


def subtraction(n: int, d: int) -> Tile:
    """For subtracting alone."""
    rows = min(32, power_of_two(n))
    features = min(256, _enough_programs(d))
    return Tile(rows, features, _warps(rows * features))


def _enough_programs(d: int) -> int:
    """So few features in a block that the programs of a pass can fill a GPU."""
    return max(16, power_of_two(d // 256))


def _warps(numbers: int) -> int:
    """About 64 numbers a thread."""
    return min(16, max(1, numbers // 2048))
