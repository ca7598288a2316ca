"""Where the code runs: how many processes, in which precision, and whether backward recomputes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Return the number of processes of a distributed run, 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sum_over_processes(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Sum each tensor over the processes of a distributed run, in one exchange, with gradients."""
    if world_size() == 1:
        return tensors
    packed = torch.cat([tensor.reshape(-1).to(tensors[0].dtype) for tensor in tensors])
    parts = _AllReduce.apply(packed).split([tensor.numel() for tensor in tensors])
    pairs = zip(parts, tensors, strict=True)
    return tuple(part.reshape(tensor.shape).to(tensor.dtype) for part, tensor in pairs)


def average_over_processes(rows: int, *means: Tensor) -> tuple[Tensor, ...]:
    """Average means over the processes of a distributed run, each of which has its own rows."""
    if world_size() == 1:
        return means
    count = means[0].new_full((), float(rows))
    *sums, total = sum_over_processes(*[rows * mean for mean in means], count)
    return tuple(part / total for part in sums)


class _AllReduce(torch.autograd.Function):
    """The sum over processes; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


def full_precision(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off: small steps of β vanish in half precision."""
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def widest_float(tensor: Tensor) -> torch.dtype:
    """Return float64, or the tensor's own type on Apple GPUs, which have no float64."""
    return tensor.dtype if tensor.device.type == "mps" else torch.float64


def is_recomputing() -> bool:
    """True while backward runs, where activation checkpointing repeats the forward pass.

    A repeated forward pass must not learn from the same batch again.
    """
    return not torch.compiler.is_compiling() and backward_id() != -1


def backward_id() -> int:
    """Return a number for the backward pass that is running, or −1; torch has no public one."""
    return int(torch._C._current_graph_task_id())
