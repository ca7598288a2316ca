"""Where a training runs: one process and one device, or Lightning Fabric for several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deconfound.errors import import_extra


class Plain:
    """One process on one device. It has those methods of Fabric that `train` uses.

    Args:
        device: A device of torch; None takes the first GPU, and else the CPU.

    Example:
        >>> Plain("cpu").device
        device(type='cpu')
    """

    global_rank = 0
    world_size = 1

    def __init__(self, device: str | torch.device | None = None) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def setup(self, module: nn.Module, *optimizers: Optimizer) -> tuple[Any, ...]:
        """Move the module to the device, and return all arguments."""
        return module.to(self.device), *optimizers

    def backward(self, loss: Tensor) -> None:
        """Compute gradients."""
        loss.backward()

    def clip_gradients(self, module: nn.Module, optimizer: Optimizer, *, max_norm: float) -> None:
        """Limit the norm of the gradient that this optimiser uses."""
        groups = optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        nn.utils.clip_grad_norm_(parameters, max_norm)

    def all_reduce(self, tensor: Tensor, reduce_op: str = "sum") -> Tensor:
        """Return the tensor: there are no other processes."""
        return tensor

    def barrier(self) -> None:
        """Wait for no one."""


# A `Plain`, or a Fabric object that has been launched.
Launcher = Any


def fabric(**options: Any) -> Launcher:
    """Return a Lightning Fabric for several GPUs, nodes, or another precision.

    Call its `launch(function, …)`, which runs `function(fabric, …)` in each process.

    Args:
        **options: Arguments of `lightning.fabric.Fabric`: accelerator, devices, num_nodes,
            strategy, precision.
    """
    module = import_extra("lightning.fabric", "lightning")
    return module.Fabric(**options)
