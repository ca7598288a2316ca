"""How the learning rate goes: up over the first tenth of a training, then down along a cosine to nothing."""

from __future__ import annotations

import math

import torch


def cosine(optimizer: torch.optim.Optimizer, epochs: int) -> torch.optim.lr_scheduler.LRScheduler:
    """A schedule to be stepped once an epoch."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: rate((epoch + 0.5) / epochs))


def rate(share: float) -> float:
    """The learning rate after a share of the training, where the highest is 1.

    Example:
        >>> [round(rate(share), 2) for share in (0.05, 0.1, 0.55, 1.0)]
        [0.5, 1.0, 0.5, 0.0]
    """
    return min(1.0, 10 * share) * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, share - 0.1) / 0.9)))
