"""The kernels as torch operators: called directly in eager code, and opaque to the compiler in compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Sequence  # noqa: UP035 (the one that torch 2.6 takes in an operator)

import torch
from torch import Tensor

from deconfound.layers.pmdn.kernels import deciding, launch
from deconfound.layers.pmdn.kernels.order import in_memory_order


def cross(features: Tensor, regressors: Tensor) -> Tensor:
    """`Rᵀf`, `(q, d)`, in float32."""
    return launch.cross(features, regressors)


def subtract(features: Tensor, removal: Tensor, coefficients: Tensor) -> Tensor:
    """`f − c β`, `(n, d)`, in the type of the features."""
    return launch.subtract(features, removal, coefficients)


def descend(
    features: Tensor,
    regressors: Tensor,
    weighted: Tensor,
    weights: Tensor | None,
    removal: Tensor,
    gram: Tensor,
    count: Tensor,
    prior: Tensor,
    beta: Tensor,
    agreement: Tensor,
    samples: Tensor,
    step: Tensor,
    trend: Tensor,
    skipped: Tensor,
    groups: Sequence[int],
    runs: Sequence[int],
    size: float,
    constants: Sequence[float],
    channels: int,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """One step of PMDN on its penalty, and the residual; see `deciding.decide_step` and `launch.move`.

    Returns:
        `f − c β_C` with the new β, or without `keep` `− c β_C`; and the share of this batch in the averages.
    """
    features, state = launch.row_by_row(features), (agreement, samples, step, trend)
    ordered = in_memory_order(beta, channels)  # before the decision, so that the pass comes right after it
    numbers, flag, rate = deciding.decide_step(
        features,
        regressors,
        weights,
        gram,
        count,
        prior,
        beta,
        state,
        skipped,
        groups,
        runs,
        size,
        constants,
        channels,
    )
    out = launch.move(features, ordered, weighted, removal, gram, numbers, flag, skipped, keep, early=True)
    _put_back(beta, ordered, channels)
    return out, rate


def respond(
    gradient: Tensor,
    removal: Tensor,
    regressors: Tensor,
    mean: Tensor,
    scale: Tensor,
    spread: Tensor,
    agreement: Tensor,
    samples: Tensor,
    step: Tensor,
    trend: Tensor,
    rate: Tensor | None,
    positions: int,
    runs: Sequence[int],
    constants: Sequence[float],
    channels: int,
    keep: bool,
) -> Tensor:
    """Take one batch of gradients into S, and add the way through β; see `deciding.decide_response`."""
    gradient, state = launch.row_by_row(gradient), (agreement, samples, step, trend)
    ordered = in_memory_order(mean, channels)
    numbers = deciding.decide_response(
        gradient, removal, mean, scale, spread, state, rate, positions, runs, constants, channels
    )
    out = launch.move(gradient, ordered, removal, regressors, None, numbers, None, None, keep, early=True)
    _put_back(mean, ordered, channels)
    return out


def _put_back(coefficients: Tensor, ordered: Tensor, channels: int) -> None:
    if channels:
        q, d = coefficients.shape
        coefficients.view(q, channels, d // channels).copy_(ordered.view(q, d // channels, channels).transpose(1, 2))


def _register() -> dict[str, Any]:
    state = ("agreement", "samples", "step", "trend")
    mutated: dict[Callable[..., Any], tuple[str, ...]] = {
        cross: (),
        subtract: (),
        descend: ("beta", "skipped", *state),
        respond: ("mean", "scale", "spread", *state),
    }
    return {
        function.__name__: torch.library.custom_op(f"deconfound::{function.__name__}", function, mutates_args=names)
        for function, names in mutated.items()
    }


_OPERATORS = _register()


def _like(features: Tensor, keep: bool) -> Tensor:
    return features.new_empty(features.shape, dtype=features.dtype if keep else torch.float32)


def _cross_shape(features: Tensor, regressors: Tensor) -> Tensor:
    return features.new_empty((regressors.shape[1], features.shape[1]), dtype=torch.float32)


def _subtract_shape(features: Tensor, removal: Tensor, coefficients: Tensor) -> Tensor:
    return features.new_empty(features.shape)


def _descend_shape(features: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _like(features, others[-1]), features.new_empty((1,), dtype=torch.float32)


def _respond_shape(gradient: Tensor, *others: Any) -> Tensor:
    return _like(gradient, others[-1])


_OPERATORS["cross"].register_fake(_cross_shape)
_OPERATORS["subtract"].register_fake(_subtract_shape)
_OPERATORS["descend"].register_fake(_descend_shape)
_OPERATORS["respond"].register_fake(_respond_shape)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call one of the functions above; through its operator where a compiler looks on."""
    if torch.compiler.is_compiling():
        return getattr(torch.ops.deconfound, function.__name__)(*arguments)
    return function(*arguments)
