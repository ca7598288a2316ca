"""The kernels as torch operators: called directly in eager code, and opaque to the compiler in compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Sequence  # noqa: UP035 (the one that torch 2.6 takes in an operator)

import torch
from torch import Tensor

from deconfound.layers.pmdn.kernels import deciding, launch
from deconfound.layers.tensors import in_memory_order


def cross(features: Tensor, regressors: Tensor) -> Tensor:
    """`Rᵀf`, `(q, d)`, in float32."""
    return launch.cross(features, regressors)


def subtract(features: Tensor, confounds: Tensor, coefficients: Tensor) -> Tensor:
    """`f − c β`, `(n, d)`, in the type of the features."""
    return launch.subtract(features, confounds, coefficients)


def pmdn_forward(
    features: Tensor,
    regressors: Tensor,
    weighted: Tensor,
    weights: Tensor | None,
    confounds: Tensor,
    gram: Tensor,
    counts: Tensor,
    start: Tensor,
    beta: Tensor,
    numbers: Tensor,
    trend: Tensor,
    scale: Tensor,
    skipped: Tensor,
    groups: Sequence[int],
    runs: Sequence[int],
    step: float,
    constants: Sequence[float],
    channels: int,
    whole: bool,
) -> tuple[Tensor, Tensor]:
    """One step of PMDN on its penalty, and the residual; see `deciding.decide_step` and `launch.move`.

    Returns:
        `f − c β_C` with the new β, or without `whole` `− c β_C`; and the share of this batch in the averages.
    """
    features = launch.row_by_row(features)
    ordered = in_memory_order(beta, channels)  # before the decision, so that the pass comes right after it
    decided, flag, rate = deciding.decide_step(
        features, regressors, weighted, weights, gram, counts, start, beta, (numbers, trend, scale), skipped, groups,
        runs, step, constants, channels,
    )  # fmt: skip
    out = launch.move(features, ordered, weighted, confounds, gram, decided, flag, skipped, whole, early=True)
    _put_back(beta, ordered, channels)
    return out, rate


def pmdn_backward(
    gradient: Tensor,
    confounds: Tensor,
    through: Tensor,
    mean: Tensor,
    size: Tensor,
    numbers: Tensor,
    trend: Tensor,
    scale: Tensor,
    rate: Tensor | None,
    positions: int,
    runs: Sequence[int],
    constants: Sequence[float],
    channels: int,
    whole: bool,
) -> Tensor:
    """Take one batch of gradients into S, and add the way through β; see `deciding.decide_average`."""
    gradient, state = launch.row_by_row(gradient), (numbers, trend, scale)
    ordered = in_memory_order(mean, channels)
    decided = deciding.decide_average(
        gradient, confounds, mean, size, state, rate, positions, runs, constants, channels
    )
    out = launch.move(gradient, ordered, confounds, through, None, decided, None, None, whole, early=True)
    _put_back(mean, ordered, channels)
    return out


def _put_back(coefficients: Tensor, ordered: Tensor, channels: int) -> None:
    if channels:
        q, d = coefficients.shape
        coefficients.view(q, channels, d // channels).copy_(ordered.view(q, d // channels, channels).transpose(1, 2))


def _register() -> dict[str, Any]:
    state = ("numbers", "trend", "scale")
    mutated: dict[Callable[..., Any], tuple[str, ...]] = {
        cross: (),
        subtract: (),
        pmdn_forward: ("beta", "skipped", *state),
        pmdn_backward: ("mean", "size", *state),
    }
    return {
        function.__name__: torch.library.custom_op(f"deconfound::{function.__name__}", function, mutates_args=names)
        for function, names in mutated.items()
    }


_OPERATORS = _register()


def _like(features: Tensor, whole: bool) -> Tensor:
    return features.new_empty(features.shape, dtype=features.dtype if whole else torch.float32)


def _cross_shape(features: Tensor, regressors: Tensor) -> Tensor:
    return features.new_empty((regressors.shape[1], features.shape[1]), dtype=torch.float32)


def _subtract_shape(features: Tensor, confounds: Tensor, coefficients: Tensor) -> Tensor:
    return features.new_empty(features.shape)


def _forward_shape(features: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _like(features, others[-1]), features.new_empty((1,), dtype=torch.float32)


def _backward_shape(gradient: Tensor, *others: Any) -> Tensor:
    return _like(gradient, others[-1])


_OPERATORS["cross"].register_fake(_cross_shape)
_OPERATORS["subtract"].register_fake(_subtract_shape)
_OPERATORS["pmdn_forward"].register_fake(_forward_shape)
_OPERATORS["pmdn_backward"].register_fake(_backward_shape)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call one of the functions above; through its operator where a compiler looks on."""
    if torch.compiler.is_compiling():
        return getattr(torch.ops.deconfound, function.__name__)(*arguments)
    return function(*arguments)
