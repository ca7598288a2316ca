"""Features as they lie in memory: one row per sample, without a copy where channels come last."""

from __future__ import annotations

from torch import Tensor


def in_memory(x: Tensor) -> tuple[Tensor, int]:
    """`(n, d)` and 0, or where channels are last in memory, `(n, d)` in that order and their number."""
    if x.ndim > 2 and not x.is_contiguous():
        last = x.movedim(1, -1)
        if last.is_contiguous():
            return last.flatten(1), x.shape[1]
    return x.flatten(1), 0


def like_memory(flat: Tensor, like: Tensor, channels: int) -> Tensor:
    """The inverse: `flat` in the shape of `like`, with its channels where they were."""
    if channels:
        return flat.view(like.movedim(1, -1).shape).movedim(-1, 1)
    return flat.view(like.shape)
