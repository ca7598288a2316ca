"""The arithmetic of metadata normalisation: pure functions on tensors, no state.

Shapes: features `(n, d)`; regressors `R = [z_C, z_L, 1]` `(n, q)`, white on the training table; removal `c`
`(n, q_C)`, the confounds in the same white units; coefficients `(q, d)`, of which the first `q_C` rows belong
to the confounds. `docs/theory.md` derives each formula.

Where the kernels serve (`deconfound.layers.pmdn.kernels.usable`) the passes over all features go through them. On one
thread of a CPU they go by blocks of rows that stay in its cache: the products are as thin as the metadata, and wait
for memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deconfound.layers.pmdn import kernels

# What a block of rows takes up at most, the fewest rows that are worth a product, and the most regressors: products
# with more are bound by arithmetic, which whole matrices do faster.
BLOCK_BYTES = 2**20
BLOCK_ROWS = 8
BLOCK_REGRESSORS = 32


@dataclass(frozen=True)
class Moments:
    """What a batch tells about its regression: enough for every estimator, and summable over processes.

    Attributes:
        gram: `RᵀR`, `(q, q)`.
        cross: `Rᵀf`, `(q, d)`.
        rows: How many rows took part, a scalar.
    """

    gram: Tensor
    cross: Tensor
    rows: Tensor


def residualize(features: Tensor, removal: Tensor, coefficients: Tensor) -> Tensor:
    """`r = f − c β_C`: the features without the part that the confounds explain.

    Args:
        features: `(n, d)`, or `(n, d, positions)` with one coefficient for all positions.
        removal: `(n, q_C)`.
        coefficients: `(q_C, d)`.
    """
    if features.ndim == 2 and not removal.requires_grad and kernels.usable(features, coefficients):
        residual: Tensor = _Subtract.apply(features, removal, coefficients)
        return residual
    rows = _block(features, removal, coefficients)
    if rows:
        residual = torch.empty_like(features)
        parts = zip(features.split(rows), removal.split(rows), residual.split(rows), strict=True)
        for part, of_part, result in parts:
            torch.addmm(part, of_part, coefficients, alpha=-1, out=result)
        return residual
    if features.ndim == 2 and features.dtype == removal.dtype == coefficients.dtype:
        return torch.addmm(features, removal, coefficients, alpha=-1)  # no room for c β apart from the result
    effect = removal @ coefficients
    return features - (effect if features.ndim == 2 else effect.unsqueeze(-1))


def cross_products(features: Tensor, regressors: Tensor) -> Tensor:
    """`Rᵀf`, `(q, d)`."""
    if not regressors.requires_grad and kernels.usable(features, regressors.T):
        products: Tensor = _Cross.apply(features, regressors)
        return products
    if _block(features, regressors):
        return products_and_some(features, regressors, lambda part: part[:, :0])[0]
    return regressors.T @ features


def products_and_some(features: Tensor, regressors: Tensor, pick: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """`Rᵀf`, `(q, d)`, and some features, picked from each row on the same way through memory."""
    rows = _block(features, regressors)
    if not rows:
        return cross_products(features, regressors), pick(features)
    products = features.new_zeros(regressors.shape[1], features.shape[1])
    some = []
    for part, of_part in zip(features.split(rows), regressors.split(rows), strict=True):
        products.addmm_(of_part.T, part)
        some.append(pick(part))
    return products, torch.cat(some)


def _block(features: Tensor, regressors: Tensor, *others: Tensor) -> int:
    """How many rows to take at a time; 0 for all of them: few, watched by autograd or a compiler, or not on a CPU.

    Several threads would wait for one another at the end of each block: for long where other work wants the cores too.
    """
    if not features.is_cpu or features.ndim != 2 or torch.compiler.is_compiling():
        return 0
    if torch.get_num_threads() > 1 or regressors.shape[1] > BLOCK_REGRESSORS:
        return 0
    others = (regressors, *others)
    watched = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (features, *others))
    if watched or any(other.dtype != features.dtype for other in others):
        return 0
    if torch._C._functorch.maybe_current_level() is not None:  # vmap and its like write into no given tensor
        return 0
    size = features.element_size()
    rows = max(BLOCK_ROWS, BLOCK_BYTES // max(1, features.shape[1] * size))
    return rows if features.numel() * size > 2 * BLOCK_BYTES and len(features) > rows else 0


def pool_positions(features: Tensor) -> Tensor:
    """`(n, d, positions)` → `(n, d)`: one coefficient fits the mean of the positions as it fits them all."""
    return features.mean(-1) if features.ndim == 3 else features


def penalty(features: Tensor, regressors: Tensor, coefficients: Tensor, weights: Tensor | None = None) -> Tensor:
    """`½ Σ_features mean_samples (f − Rβ)²`: Eq. 7 scaled so that SGD with rate η is the one-pass step."""
    errors = (features - regressors @ coefficients).square().sum(-1)
    if weights is None:
        return 0.5 * errors.mean()
    return 0.5 * (weights * errors).sum() / weights.sum().clamp(min=1)


def moments(features: Tensor, regressors: Tensor, weights: Tensor | None = None) -> Moments:
    """Sum `RᵀR` and `Rᵀf` over the rows of a batch; rows of weight 0 take no part."""
    weighted = regressors if weights is None else regressors * weights.unsqueeze(-1)
    rows = weights.sum() if weights is not None else regressors.new_full((), float(len(regressors)))
    return Moments(weighted.T @ regressors, cross_products(features, weighted), rows)


def innovation(coefficients: Tensor, batch: Moments) -> Tensor:
    """`Rᵀ(f − Rβ) / n`, the negative gradient of the penalty: what the batch says β should move by."""
    return torch.addmm(batch.cross, batch.gram, coefficients, alpha=-1) / batch.rows.clamp(min=1)


def cap_step(step: Tensor, batch: Moments) -> Tensor:
    """Keep a step below `1 / λmax` of the batch's Gram matrix, beyond which the descent overshoots."""
    return torch.minimum(step, 1 / eigenvalue_bound(batch.gram / batch.rows.clamp(min=1)))


def eigenvalue_bound(gram: Tensor) -> Tensor:
    """An upper bound of λmax of a Gram matrix: `min(‖G‖_F, 1 + ‖G − I‖_F)`.

    The first is exact for one sample, the second for a white batch; an eigenvalue solver would make a GPU wait.
    """
    away = gram - torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    size: Tensor = torch.linalg.matrix_norm(gram).clamp(min=torch.finfo(gram.dtype).tiny)
    near_white: Tensor = 1 + torch.linalg.matrix_norm(away)
    return torch.minimum(size, near_white)


def least_squares(batch: Moments) -> Tensor:
    """`(RᵀR)⁺ Rᵀf`: the exact fit on a batch; the smallest one where the batch leaves directions open."""
    tolerance = len(batch.gram) * torch.finfo(batch.gram.dtype).eps
    inverse: Tensor = torch.linalg.pinv(batch.gram, rtol=tolerance, hermitian=True)
    return inverse @ batch.cross


def recursive_update(
    coefficients: Tensor, information: Tensor, weight: Tensor, batch: Moments, forgetting: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One block of recursive least squares, solved in `q × q`.

    With `s ← λⁿ s + n` and `A ← (λⁿ s A + RᵀR) / s`, the coefficients move by `A⁻¹ Rᵀ(f − Rβ) / s`. For
    λ = 1 they are those of ridge least squares on every sample seen, whatever the batches were.

    Args:
        coefficients: `(q, d)`.
        information: `A`, `(q, q)`: the mean of `RᵀR` over the samples that still count.
        weight: `s`, a scalar: how many samples still count.
        batch: The new samples.
        forgetting: λ, per sample.

    Returns:
        The new coefficients, information and weight.
    """
    kept = weight * forgetting**batch.rows
    total = kept + batch.rows
    information = (kept * information + batch.gram) / total
    innovation = (batch.cross - batch.gram @ coefficients) / total
    move, _ = torch.linalg.solve_ex(information, innovation)  # the checked solver makes a GPU wait
    return coefficients + move, information, total


class _Subtract(torch.autograd.Function):
    """`f − c β` by the kernel."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, removal: Tensor, coefficients: Tensor) -> Tensor:
        from deconfound.layers.pmdn.kernels import ops

        ctx.save_for_backward(removal)
        residual: Tensor = ops.call(ops.subtract, features, removal, coefficients)
        return residual

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (removal,) = ctx.saved_tensors
        wanted = -cross_products(gradients[0], removal) if ctx.needs_input_grad[2] else None
        return gradients[0], None, wanted


class _Cross(torch.autograd.Function):
    """`Rᵀf` by the kernel."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, regressors: Tensor) -> Tensor:
        from deconfound.layers.pmdn.kernels import ops

        ctx.save_for_backward(regressors)
        ctx.type = features.dtype
        products: Tensor = ops.call(ops.cross, features, regressors)
        return products

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (regressors,) = ctx.saved_tensors
        return (regressors @ gradients[0]).to(ctx.type), None
