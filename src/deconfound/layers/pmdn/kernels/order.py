"""The order in which features lie in memory."""

from __future__ import annotations

from torch import Tensor


def in_memory_order(coefficients: Tensor, channels: int) -> Tensor:
    """Coefficients `(q, d)` in the order of features whose channels are last in memory; themselves for 0 channels."""
    if not channels:
        return coefficients
    q, d = coefficients.shape
    return coefficients.reshape(q, channels, d // channels).transpose(1, 2).reshape(q, d)
