"""The kernels as torch operators: called directly in eager code, and opaque to the compiler in compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Sequence  # noqa: UP035 (the one that torch 2.6 takes in an operator)

import torch
from torch import Tensor

from deconfound.layers.pmdn.kernels import launch
from deconfound.layers.tensors import in_memory_order


def cross(features: Tensor, regressors: Tensor) -> Tensor:
    """`Rᵀf`, `(q, d)`, in float32."""
    return launch.cross(features, regressors)


def subtract(features: Tensor, confounds: Tensor, coefficients: Tensor) -> Tensor:
    """`f − c β`, `(n, d)`, in the type of the features."""
    return launch.subtract(features, confounds, coefficients)


def pmdn_forward(
    features: Tensor,
    weighted: Tensor,
    confounds: Tensor,
    gram: Tensor,
    rates: Tensor,
    beta: Tensor,
    skipped: Tensor,
    channels: int,
    whole: bool,
) -> Tensor:
    """One step of PMDN on its penalty, and `f − c β_C` with the new β, or without `whole` `− c β_C`."""
    ordered = in_memory_order(beta, channels)
    flag = torch.zeros((), dtype=torch.int32, device=beta.device)
    by = launch.Descent(gram, flag, skipped)
    out = launch.move(launch.row_by_row(features), ordered, weighted, confounds, rates, by, whole)
    _put_back(beta, ordered, channels)
    return out


def pmdn_backward(
    gradient: Tensor,
    confounds: Tensor,
    through: Tensor,
    share: Tensor,
    mean: Tensor,
    square: Tensor,
    scales: Sequence[float],
    channels: int,
    whole: bool,
) -> Tensor:
    """Take one batch of gradients into S, and add the way through β; without `whole` only the latter."""
    ordered, squares = in_memory_order(mean, channels), in_memory_order(square, channels)
    by = launch.Averaging(squares, scales[0], scales[1])
    out = launch.move(launch.row_by_row(gradient), ordered, confounds, through, share, by, whole)
    _put_back(mean, ordered, channels)
    _put_back(square, squares, channels)
    return out


def _put_back(coefficients: Tensor, ordered: Tensor, channels: int) -> None:
    if channels:
        q, d = coefficients.shape
        coefficients.view(q, channels, d // channels).copy_(ordered.view(q, d // channels, channels).transpose(1, 2))


def _register() -> dict[str, Any]:
    mutated: dict[Callable[..., Any], tuple[str, ...]] = {
        cross: (),
        subtract: (),
        pmdn_forward: ("beta", "skipped"),
        pmdn_backward: ("mean", "square"),
    }
    return {
        function.__name__: torch.library.custom_op(f"deconfound::{function.__name__}", function, mutates_args=names)
        for function, names in mutated.items()
    }


_OPERATORS = _register()


def _cross_shape(features: Tensor, regressors: Tensor) -> Tensor:
    return features.new_empty((regressors.shape[1], features.shape[1]), dtype=torch.float32)


def _subtract_shape(features: Tensor, confounds: Tensor, coefficients: Tensor) -> Tensor:
    return features.new_empty(features.shape)


def _moved_shape(x: Tensor, *others: Any) -> Tensor:
    return x.new_empty(x.shape, dtype=x.dtype if others[-1] else torch.float32)


_OPERATORS["cross"].register_fake(_cross_shape)
_OPERATORS["subtract"].register_fake(_subtract_shape)
_OPERATORS["pmdn_forward"].register_fake(_moved_shape)
_OPERATORS["pmdn_backward"].register_fake(_moved_shape)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call one of the functions above; through its operator where a compiler looks on."""
    if torch.compiler.is_compiling():
        return getattr(torch.ops.deconfound, function.__name__)(*arguments)
    return function(*arguments)
