"""Sums over the processes of a distributed run, so that every process learns from the whole batch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from deconfound.layers.functional import Moments


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def add_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The sums of some tensors over processes, in one exchange, with gradients."""
    if processes() == 1:
        return tensors
    packed = _Sum.apply(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    parts = packed.split([tensor.numel() for tensor in tensors])
    return tuple(part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))


def add_moments(moments: Moments) -> Moments:
    """The moments of the whole batch, of which each process holds a part."""
    return Moments(*add_tensors(moments.gram, moments.cross, moments.rows))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, tensor: Tensor) -> Tensor:
        return _add(tensor)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return _add(gradient)


def _add(tensor: Tensor) -> Tensor:
    total = tensor.clone()
    dist.all_reduce(total)
    return total
