"""Helpers for tensors: precision, order in memory, and sums over the processes of a distributed run."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from deconfound.layers import torch_private

Number = float | Tensor
_DISTRIBUTED = dist.is_available()


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Leave autocast; where there is none, no context is entered, which would cost as much as launching a kernel."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def on_host(tensor: Tensor) -> bool:
    """Whether code may look at this tensor's numbers: that makes no device wait, and no compiler looks on."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def number(scalar: Tensor) -> Number:
    """A scalar as a plain number where a look costs nothing: arithmetic with it costs a hundredth."""
    return scalar.item() if on_host(scalar) else scalar


def all_finite(*tensors: Tensor) -> Tensor | bool:
    """Whether every number is finite; a plain bool where a look costs nothing."""
    if on_host(tensors[0]):
        return all(math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all()) for tensor in tensors)
    return torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).all()


def store(buffer: Tensor, value: Tensor, usable: Tensor | bool) -> None:
    """Write a value of as many numbers into a buffer, if it is usable."""
    buffer = torch_private.written(buffer)
    if usable is True:
        buffer.copy_(value.view_as(buffer))
    elif usable is not False:
        buffer.copy_(torch.where(usable, value.reshape(buffer.shape), buffer))


def exact_type(tensor: Tensor) -> torch.dtype:
    """float64, or on devices without it the tensor's own type."""
    return tensor.dtype if tensor.device.type == "mps" else torch.float64


def in_rows(coefficients: Tensor) -> Tensor:
    """`(q, …)` as `(q, d)`."""
    return coefficients if coefficients.ndim == 2 else coefficients.view(coefficients.shape[0], -1)


def rows_in_memory(x: Tensor) -> tuple[Tensor, int]:
    """`(n, d)` and 0; where channels are last in memory, `(n, d)` in that order without a copy, and their number."""
    if x.ndim > 2 and not x.is_contiguous():
        last = x.movedim(1, -1)
        if last.is_contiguous():
            return last.flatten(1), x.shape[1]
    return x.flatten(1), 0


def like_memory(flat: Tensor, like: Tensor, channels: int) -> Tensor:
    """The inverse of `rows_in_memory`: `flat` in the shape of `like`, with its channels where they were."""
    if channels:
        return flat.view(like.movedim(1, -1).shape).movedim(-1, 1)
    return flat.view(like.shape)


def in_memory_order(coefficients: Tensor, channels: int) -> Tensor:
    """Coefficients `(q, d)` in the order of features whose channels are last in memory; themselves for 0 channels."""
    if not channels:
        return coefficients
    q, d = coefficients.shape
    return coefficients.reshape(q, channels, d // channels).transpose(1, 2).reshape(q, d)


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if _DISTRIBUTED and dist.is_initialized() else 1


def sum_over_processes(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The sums of some tensors over processes, in one exchange, with gradients."""
    if processes() == 1:
        return tensors
    kind = max((tensor.dtype for tensor in tensors), key=lambda dtype: dtype.itemsize)
    packed = _Sum.apply(torch.cat([tensor.reshape(-1).to(kind) for tensor in tensors]))
    parts = packed.split([tensor.numel() for tensor in tensors])
    return tuple(part.reshape(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True))


def gather_over_processes(tensor: Tensor) -> list[Tensor]:
    """The tensor of each process."""
    parts = [torch.empty_like(tensor) for _ in range(processes())]
    dist.all_gather(parts, tensor)
    return parts


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return _add(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _add(gradients[0])


def _add(tensor: Tensor) -> Tensor:
    total = tensor.clone()
    dist.all_reduce(total)
    return total
