"""Launches that cost the host little: a small network waits for its host, not for its GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from deconfound.layers.pmdn.kernels import INTERPRETED
from deconfound.layers.pmdn.kernels.language import VERSION

Number = int | float
# So many kinds of launches are remembered: a service with inputs of ever new sizes does not remember all of them.
MOST_REMEMBERED = 4096
# Since Triton 3.3 a compiled form takes all arguments of its function.
DIRECT = VERSION >= (3, 3) and not INTERPRETED


class Launch:
    """A launch of one of our Triton functions, with everything but its tensors; made once for each kind of launch.

    Triton looks at every argument of every launch to see which of its compiled forms fits. What decides is the type and
    the alignment of tensors and the value of everything else; for tensors of a kind that has come before, the compiled
    form is launched directly.

    Args:
        function: Takes tensors, the first of them never None, then numbers, then what is known when it is compiled.
        grid: How many programs.
        numbers: In order.
        constants: What is known when it is compiled, by name.
        warps: Of each program.
        registers: The most for each thread; None leaves it to the compiler.
    """

    def __init__(
        self,
        function: Any,
        grid: tuple[int, ...],
        numbers: Sequence[Number],
        constants: dict[str, Any],
        warps: int = 4,
        registers: int | None = None,
    ) -> None:
        self.function = function
        self.grid = grid
        self.numbers = numbers
        self.constants = constants
        self.options = {"num_warps": warps, "enable_fp_fusion": True}  # a product and a sum are one instruction
        if registers is not None:
            self.options["maxnreg"] = registers
        self.known: dict[tuple[Any, ...], Callable[..., object]] = {}
        self.rest: tuple[Any, ...] = ()

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch its programs on these tensors."""
        assert tensors[0] is not None
        with _on_device_of(tensors[0]):
            kind = _kind(tensors)
            launch = self.known.get(kind)
            if launch is not None:
                launch(*tensors, *self.rest)
                return
            compiled = self.function[self.grid](*tensors, *self.numbers, **self.constants, **self.options)
            if DIRECT:
                names = self.function.arg_names[-len(self.constants) :]
                self.rest = (*self.numbers, *(self.constants[name] for name in names))
                self.known[kind] = compiled[(*self.grid, 1, 1)[:3]]


def _on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Triton launches on torch's current device, which need not be the one that holds the tensors."""
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return nullcontext()


def _kind(tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
    kinds = [None if tensor is None else (tensor.dtype, tensor.data_ptr() % 16) for tensor in tensors]
    return (tensors[0].device.index if tensors[0] is not None else None, *kinds)
