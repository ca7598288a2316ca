"""The arithmetic of metadata normalisation: pure functions on tensors, no state.

Shapes: features `(n, d)`; regressors `R = [z_C, z_L, 1]` `(n, q)`, white on the training table; whitened confounds
`c` `(n, q_C)`, what is multiplied by β_C and subtracted; coefficients `(q, d)`, of which the first `q_C` rows belong
to the confounds and the last is the intercept. `docs/concepts/theory.md` derives each formula.

Where the kernels can be used (`deconfound.layers.pmdn.kernels.usable`) the passes over all features go through them. On
a CPU they go by parts: a product as thin as the metadata is slow as a whole ([decision
0022](../../../docs/decisions/0022-thin-products-on-a-cpu.md)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from deconfound.layers import torch_private
from deconfound.layers.pmdn import kernels
from deconfound.layers.tensors import Number, exact_type, on_host

# Products with more regressors are bound by arithmetic, which whole matrices do faster.
THIN = 32
# Products of more features than so many numbers go by parts on a CPU.
MANY_NUMBERS = 2**18
# With so many or fewer, a look at what else could be done costs more than the arithmetic.
FEW_NUMBERS = 0 if kernels.INTERPRETED else MANY_NUMBERS
# The rows of a part where coefficients are multiplied, and its features where rows are summed on several threads.
PART_ROWS = 8
PART_FEATURES = 512
# What the rows of a part take up at most where they are summed on one thread: they stay in its cache.
PART_BYTES = 2**20
# Directions that vary less than this, relative to the one that varies most, are not fitted: metadata are float32.
OPEN_DIRECTION = 1e-9
# By how many units of rounding a running Gram matrix is off, about.
ROUNDING = 64.0


@dataclass(frozen=True)
class Moments:
    """What a batch tells about its regression: enough for every estimator, and summable over processes.

    Attributes:
        gram: `RᵀWR`, `(q, q)`.
        cross: `RᵀWf`, `(q, d)`.
        rows: `Σw`, how many rows took part.
    """

    gram: Tensor
    cross: Tensor
    rows: Number


def residualize(
    features: Tensor, confounds: Tensor, coefficients: Tensor, scale: float = 1.0, out: Tensor | None = None
) -> Tensor:
    """`r = f − s c β_C`: the features without the part that the confounds explain.

    Args:
        features: `(n, d)`, or `(n, d, positions)` with one coefficient for all positions.
        confounds: `(n, q_C)`.
        coefficients: `(q_C, d)`.
        scale: s.
        out: Memory of the features' shape and type that the residual may take; only where nothing watches.
    """
    plain = features.ndim == 2 and features.dtype == confounds.dtype == coefficients.dtype
    if plain and on_host(features) and features.numel() <= FEW_NUMBERS:
        return torch.addmm(features, confounds, coefficients, alpha=-scale, out=out)
    if features.ndim == 2 and not confounds.requires_grad and kernels.usable(features, coefficients):
        residual: Tensor = _Subtract.apply(features, confounds if scale == 1.0 else confounds * scale, coefficients)
        return residual
    if plain and _by_parts(features, confounds, coefficients):
        return _residual_by_rows(features, confounds, coefficients, scale, out)
    if plain:
        # No memory for c β apart from the result.
        return torch.addmm(features, confounds, coefficients, alpha=-scale, out=out)
    effect = (confounds if scale == 1.0 else confounds * scale) @ coefficients
    return features - (effect if features.ndim == 2 else effect.unsqueeze(-1))


def cross_products(features: Tensor, regressors: Tensor) -> Tensor:
    """`Rᵀf`, `(q, d)`."""
    if on_host(features) and features.numel() <= FEW_NUMBERS:
        return torch.mm(regressors.T, features)
    if kernels.possible(features) and not regressors.requires_grad and kernels.usable(features, regressors.T):
        products: Tensor = _Cross.apply(features, regressors)
        return products
    if not _by_parts(features, regressors):
        return torch.mm(regressors.T, features)
    # Several threads would wait for one another after each part, for long where other work wants the cores too.
    by = _products_by_rows if torch.get_num_threads() == 1 else _products_by_features
    return by(features, regressors)


def _by_parts(features: Tensor, *others: Tensor) -> bool:
    """Whether products go by parts: thin, of many numbers on a CPU, and watched by neither autograd nor a compiler."""
    if not on_host(features) or features.ndim != 2 or features.numel() <= MANY_NUMBERS or others[0].shape[1] > THIN:
        return False
    tensors = (features, *others)
    watched = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if watched or any(tensor.dtype != features.dtype for tensor in others):
        return False
    if torch_private.in_trace():  # which would keep the number of parts
        return False
    return not torch_private.in_functorch() and not torch_private.in_forward_mode()  # which write into no given tensor


def _residual_by_rows(
    features: Tensor, confounds: Tensor, coefficients: Tensor, scale: float, out: Tensor | None
) -> Tensor:
    """`f − s c β_C`, all parts of a few rows in one batched product, and what is left over in another."""
    residual = torch.empty_like(features) if out is None else out
    parts, rest = divmod(len(features), PART_ROWS)
    whole, shape = len(features) - rest, (parts, PART_ROWS)
    if parts:
        torch.baddbmm(
            features[:whole].unflatten(0, shape), confounds[:whole].unflatten(0, shape),
            coefficients.expand(parts, -1, -1), alpha=-scale, out=residual[:whole].unflatten(0, shape),
        )  # fmt: skip
    if rest:
        torch.addmm(features[whole:], confounds[whole:], coefficients, alpha=-scale, out=residual[whole:])
    return residual


def _products_by_rows(features: Tensor, regressors: Tensor) -> Tensor:
    """`Rᵀf`, the sum over parts of rows that stay in a cache."""
    rows = max(PART_ROWS, PART_BYTES // (features.shape[1] * features.element_size()))
    products = features.new_zeros(regressors.shape[1], features.shape[1])
    for part, of_part in zip(features.split(rows), regressors.split(rows), strict=True):
        products.addmm_(of_part.T, part)
    return products


def _products_by_features(features: Tensor, regressors: Tensor) -> Tensor:
    """`Rᵀf`, all parts of some features in one batched product, which several threads share out among them."""
    products = features.new_empty(regressors.shape[1], features.shape[1])
    parts, rest = divmod(features.shape[1], PART_FEATURES)
    whole, shape = features.shape[1] - rest, (parts, PART_FEATURES)
    if parts:
        in_parts = features[:, :whole].unflatten(1, shape).transpose(0, 1)
        found = torch.bmm(regressors.T.expand(parts, -1, -1), in_parts)
        products[:, :whole].unflatten(1, shape).copy_(found.transpose(0, 1))
    if rest:
        torch.mm(regressors.T, features[:, whole:], out=products[:, whole:])
    return products


def pool_positions(features: Tensor) -> Tensor:
    """`(n, d, positions)` → `(n, d)`: one coefficient fits the mean of the positions as it fits them all."""
    return features.mean(-1) if features.ndim == 3 else features


def penalty(features: Tensor, regressors: Tensor, coefficients: Tensor, weights: Tensor | None = None) -> Tensor:
    """`½ Σ_features mean_samples (f − Rβ)²`: Eq. 7 scaled so that SGD with rate η is the one-pass step."""
    errors = (features - regressors @ coefficients).square().sum(-1)
    if weights is None:
        return 0.5 * errors.mean()
    return 0.5 * (weights * errors).sum() / positive(weights.sum())


def positive(total: Number) -> Number:
    """A sum of weights to divide by, 1 where it is 0: a batch of rows that do not count has sums of 0, not NaN."""
    return total + (total <= 0)


def moments(features: Tensor, regressors: Tensor, weights: Tensor | None = None) -> Moments:
    """Sum `RᵀWR` and `RᵀWf` over the rows of a batch, the first in double precision."""
    weighted = regressors if weights is None else regressors * weights.unsqueeze(-1)
    rows = weights.sum() if weights is not None else regressors.new_full((), float(len(regressors)))
    kind = exact_type(regressors)
    return Moments(weighted.to(kind).T @ regressors.to(kind), cross_products(features, weighted), rows)


def eigenvalue_bound(gram: Tensor) -> Number:
    """An upper bound of λmax of a Gram matrix: `min(‖G‖_F, 1 + ‖G − I‖_F)`.

    The first is exact for one sample, the second for a white batch; an eigenvalue solver would make a GPU wait.
    """
    tiny = torch.finfo(gram.dtype).tiny
    if on_host(gram):
        size, apart = torch.linalg.vector_norm(gram).item(), torch.dist(gram, _unit(len(gram), gram.dtype)).item()
        return float(max(min(size, 1 + apart), tiny))  # in this order NaN stays NaN
    unit = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.minimum(torch.linalg.vector_norm(gram).clamp(min=tiny), 1 + torch.dist(gram, unit))


@lru_cache(maxsize=64)
def _unit(size: int, dtype: torch.dtype) -> Tensor:
    """The identity on a CPU, which is only read."""
    return torch.eye(size, dtype=dtype, device="cpu")


def least_squares(batch: Moments, prior: float = 0.0) -> Tensor:
    """`(RᵀWR + k I)⁺ RᵀWf` with a free intercept, the last row: the prior weight k does not hold it.

    Regressors are centred first, so that what a batch cannot tell from its mean (the effect of the one site that is in
    it, say) is credited to the intercept; directions that the rows leave open stay at zero.
    """
    gram, rows = batch.gram.to(exact_type(batch.gram)), positive(batch.gram[-1, -1])
    means = gram[:-1, -1] / rows
    inner = gram[:-1, :-1] - torch.outer(gram[:-1, -1], means)
    inner = inner + prior * torch.eye(len(inner), dtype=inner.dtype, device=inner.device)
    means = means.to(batch.cross)
    rtol = OPEN_DIRECTION if inner.dtype == torch.float64 else 10 * torch.finfo(inner.dtype).eps
    # With a prior no direction is open, and a CUDA graph can hold this solver, but none of eigenvalues.
    inverse = torch.linalg.inv_ex(inner)[0] if prior > 0 else torch.linalg.pinv(inner, rtol=rtol, hermitian=True)
    slopes = inverse.to(batch.cross) @ (batch.cross[:-1] - means.unsqueeze(1) * batch.cross[-1])
    intercept = batch.cross[-1] / rows - means @ slopes
    return torch.cat([slopes, intercept.unsqueeze(0)])


def running_gram(gram: Tensor, samples: Tensor, batch: Moments, prior: float) -> Tensor:
    """The mean of `RᵀWR` over samples so far, in which the identity counts for `prior` samples.

    Args:
        gram: The mean before this batch, `(q, q)`.
        samples: Over how many samples.
        batch: This batch.
        prior: How many samples the identity counts for.
    """
    return torch.lerp(gram, batch.gram.to(gram) / batch.rows, batch.rows / (samples + prior + batch.rows))


def recursive_update(
    coefficients: Tensor, information: Tensor, weight: Tensor, batch: Moments, forgetting: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One block of recursive least squares, solved in `q × q`.

    With `s ← λⁿ s + n` and `A ← (λⁿ s A + RᵀWR) / s`, the coefficients move by `A⁻¹ RᵀW(f − Rβ) / s`. For
    λ = 1 they are those of ridge least squares on every sample seen, whatever the batches were. A little of the
    identity is added to A, as much as it is off by rounding: a direction that recent samples leave open (the other
    sites, in a long run of rows of one) keeps its coefficients.

    Args:
        coefficients: `(q, d)`.
        information: `A`, `(q, q)`: the mean of `RᵀWR` over the samples that still count.
        weight: `s`, a scalar: how many samples still count.
        batch: The moments of the new samples' errors `f − Rβ`, whose rounding is that of the errors: moments of the
            features would bring their own into directions that recent samples leave open.
        forgetting: λ, per sample.

    Returns:
        The new coefficients, information and weight.
    """
    decay = math.log(forgetting) * batch.rows
    kept = weight * (decay.exp() if isinstance(decay, Tensor) else math.exp(decay))
    total = kept + batch.rows
    information = (kept * information + batch.gram) / total
    damping = ROUNDING * torch.finfo(information.dtype).eps * information.diagonal().sum()
    damped = information + damping * torch.eye(len(information), dtype=information.dtype, device=information.device)
    move, _ = torch.linalg.solve_ex(damped, batch.cross / total)  # the checked solver makes a GPU wait
    return coefficients + move, information, total


class _Subtract(torch.autograd.Function):
    """`f − c β` by the kernel."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, confounds: Tensor, coefficients: Tensor) -> Tensor:
        from deconfound.layers.pmdn.kernels import ops

        ctx.save_for_backward(confounds)
        residual: Tensor = ops.call(ops.subtract, features, confounds, coefficients)
        return residual

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (confounds,) = ctx.saved_tensors
        wanted = -cross_products(gradients[0], confounds) if ctx.needs_input_grad[2] else None
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
