"""Everything that the library uses of torch without torch promising it: one function each, with the reason.

Checked with torch 2.6, 2.8, 2.11 and 2.13. Where a name is missing, the function answers as if nothing special went on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def in_backward() -> bool:
    """Whether backward is running: activation checkpointing calls modules again there, which must not learn twice."""
    return bool(torch._C._current_graph_task_id() != -1)


def is_exporting() -> bool:
    """`torch.compiler.is_exporting()`, which up to torch 2.11 is true in compiled code as well, or is missing."""
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


def in_trace() -> bool:
    """Whether `torch.jit.trace` looks on, to which every number is a constant."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined]


def in_functorch() -> bool:
    """Whether a `torch.func` transform runs: its tensors cannot be written into, nor kept."""
    return torch._C._functorch.maybe_current_level() is not None


def in_forward_mode() -> bool:
    """Whether derivatives are taken forward (`torch.autograd.forward_ad`): their tensors cannot be written into."""
    return int(getattr(torch.autograd.forward_ad, "_current_level", -1)) >= 0


def keeps_for_recomputation() -> bool:
    """Whether what this forward saves may be computed again in backward: activation checkpointing is at work.

    The reentrant kind runs the forward without gradients, the other one replaces saved tensors by hooks.
    """
    if not torch.is_grad_enabled():
        return True
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


def written(buffer: torch.Tensor) -> torch.Tensor:
    """A scalar as a view with one axis: compiled code of torch 2.13 loses what is written into scalars of float64."""
    return buffer.view(1) if buffer.ndim == 0 and torch.compiler.is_compiling() else buffer


def backward_reaches_parameters(node: Any) -> bool:
    """Whether the backward that runs computes gradients of parameters near this node, or of inputs alone.

    A saliency map asks for the inputs alone; the running averages of backward must not learn from it. Without a
    parameter nearby the answer is yes.
    """
    nearby = list(_parameter_leaves(node, 6))
    return not nearby or any(_will_run(leaf) for leaf in nearby)


def _parameter_leaves(node: Any, depth: int) -> Iterator[Any]:
    if node is None or depth == 0:
        return
    if isinstance(getattr(node, "variable", None), torch.nn.Parameter):
        yield node
        return
    for following, _ in node.next_functions:
        yield from _parameter_leaves(following, depth - 1)


def _will_run(leaf: Any) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(leaf))
    except RuntimeError:  # raised for leaves that `torch.autograd.grad` was asked for
        return True
