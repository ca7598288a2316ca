"""Launches that cost the host little: a small network waits for its host, not for its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deconfound.kernels import INTERPRETED
from deconfound.kernels.language import VERSION

Number = int | float
# So that a service with inputs of ever new sizes does not remember all of them.
MOST_REMEMBERED = 4096
# Since Triton 3.3 a compiled form takes all arguments of its function.
DIRECT = VERSION >= (3, 3) and not INTERPRETED


class Kernel:
    """One of our Triton functions, whose arguments are looked at once for each kind of call.

    Triton looks at every argument of every launch to see which of its compiled forms fits. What decides is the type and
    the alignment of tensors and the value of everything else; for a call whose kind is known, the compiled form is
    launched directly.

    Args:
        function: Takes tensors, the first of them never None, then numbers, then what is known when it is compiled.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.known: dict[tuple[Any, ...] | None, _Compiled] = {}

    def __call__(
        self,
        grid: tuple[int, ...],
        tensors: Sequence[Tensor | None],
        numbers: Sequence[Number],
        constants: dict[str, Any],
        warps: int = 4,
        registers: int | None = None,
    ) -> None:
        """Launch as many programs as the grid says, each of so many warps, with at most so many registers a thread."""
        assert tensors[0] is not None
        with _on_device_of(tensors[0]):
            kind = _kind(tensors, (*numbers, warps, registers), constants) if DIRECT else None
            found = self.known.get(kind)
            if found is not None:
                found.form[(*grid, 1, 1)[:3]](*tensors, *numbers, *found.constants)
                return
            options = {"num_warps": warps, "enable_fp_fusion": True}  # a product and a sum are one instruction
            options |= {} if registers is None else {"maxnreg": registers}
            compiled = self.function[grid](*tensors, *numbers, **constants, **options)
        if kind is not None:
            names = self.function.arg_names[len(tensors) + len(numbers) :]
            self._remember(kind, _Compiled(compiled, tuple(constants[name] for name in names)))

    def _remember(self, kind: tuple[Any, ...], compiled: _Compiled) -> None:
        if len(self.known) >= MOST_REMEMBERED:
            self.known.clear()
        self.known[kind] = compiled


class _Compiled(NamedTuple):
    form: Any
    constants: tuple[Any, ...]


def _on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Triton launches on torch's current device, which need not be the one that holds the tensors."""
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return nullcontext()


def _kind(
    tensors: Sequence[Tensor | None], numbers: Sequence[Number | None], constants: dict[str, Any]
) -> tuple[Any, ...]:
    device = tensors[0].device.index if tensors[0] is not None else None
    kinds = [None if tensor is None else (tensor.dtype, tensor.data_ptr() % 16) for tensor in tensors]
    return (device, *numbers, *constants.values(), *kinds)
