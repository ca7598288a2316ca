"""The arithmetic of linear concept erasure within label groups (LEACE, Belrose et al. 2023): pure functions, no state.

Shapes: features `(n, d)`; regressors `[z_C, z_L]` `(n, q)`, white on the training table, of which the first `q_C`
belong to the confounds; groups `(n,)`, which of G label groups each row is in. Within each group both are regressed on
`[1, z_L]`, which for labels that are categories alone is centring; `S_g` `(q_C, d)` is the cross-covariance of what is
left of z_C and of the features, and Σ `(d, d)` the covariance of what is left of the features, pooled over groups. Then

    r = f − E (f − μ),   E = S (Sᵀ Σ⁻¹ S)⁺ Sᵀ Σ⁻¹   with S = [S_1, …, S_G]ᵀ

is the map with `cov(r, z_C | group) = 0` for every group that changes features least, in the norm of Σ⁻¹. With
`Σ = L Lᵀ` it is `L P L⁻¹`, P the projector on the columns of `L⁻¹ S`. Whatever positive Σ stands there, nothing linear
is left; Σ decides only which map of this kind it is.

All factors are Cholesky's: eigenvalues and singular values would make a GPU wait, and no CUDA graph can hold them.
A little of the identity stands in for their cut between directions that vary and those that do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from deconfound.layers.tensors import exact_type, sum_over_processes

# A confound that varies less than this inside a group (1 is its variance in the table) does not vary: metadata are
# float32.
CONSTANT = 1e-6
# How much of the identity is added to correlations at least: those of fewer rows than features have no inverse.
JITTER = 1e-9
# The least λ² of `erasing_map`: products of double precision are no better.
LEAST_SQUARE = 1e-13


@dataclass(frozen=True)
class GroupMoments:
    """What rows tell about features and metadata within label groups, about the means of each group.

    Attributes:
        weight: `(G,)`, how many rows of each group.
        feature_mean: `(G, d)`.
        regressor_mean: `(G, q)`.
        gram: `(G, q, q)`, `Σ w (z − z̄)(z − z̄)ᵀ`.
        cross: `(G, q, d)`, `Σ w (z − z̄)(f − f̄)ᵀ`.
        spread: `(d, d)`, `Σ w (f − f̄)(f − f̄)ᵀ` over all groups; `(d,)` where the covariance is kept as a diagonal.
    """

    weight: Tensor
    feature_mean: Tensor
    regressor_mean: Tensor
    gram: Tensor
    cross: Tensor
    spread: Tensor

    @classmethod
    def empty(cls, groups: int, regressors: int, features: int, full: bool) -> GroupMoments:
        """No rows yet."""
        return cls(
            torch.zeros(groups),
            torch.zeros(groups, features),
            torch.zeros(groups, regressors),
            torch.zeros(groups, regressors, regressors),
            torch.zeros(groups, regressors, features),
            torch.zeros(features, features) if full else torch.zeros(features),
        )

    def tensors(self) -> dict[str, Tensor]:
        """By name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def exact(self) -> GroupMoments:
        """In double precision where the device has it."""
        return GroupMoments(**{name: value.to(exact_type(value)) for name, value in self.tensors().items()})

    def counting(self, rows: float) -> GroupMoments:
        """The same moments, as if of this many rows; fewer stay as they are."""
        share = (rows / self.weight.sum().clamp(min=torch.finfo(self.weight.dtype).tiny)).clamp(max=1)
        scaled = {name: share * getattr(self, name) for name in ("weight", "gram", "cross", "spread")}
        return replace(self, **scaled)


def add_rows(
    before: GroupMoments,
    features: Tensor,
    regressors: Tensor,
    groups: Tensor,
    weights: Tensor,
    memory: float = math.inf,
) -> GroupMoments:
    """The moments of the rows so far and of these, over all processes; those so far fade by `exp(−rows / memory)`.

    Args:
        before: Moments so far, in double precision.
        features: `(n, d)`.
        regressors: `(n, q)`.
        groups: `(n,)`, whole numbers.
        weights: `(n,)`, how many rows each counts for.
        memory: How many rows it takes for those so far to count a third of what they did.
    """
    numbers = torch.arange(len(before.weight), device=groups.device)
    member = (groups.unsqueeze(1) == numbers).to(before.weight) * weights.unsqueeze(1)
    f = features.to(before.weight) - before.feature_mean[groups]
    z = regressors.to(before.weight) - before.regressor_mean[groups]
    by_group = (member.unsqueeze(2) * z.unsqueeze(1)).flatten(1)  # (n, G q)
    spread = (weights.unsqueeze(1) * f).T @ f if before.spread.ndim == 2 else (weights.unsqueeze(1) * f.square()).sum(0)
    count, first_f, first_z, gram, cross, spread = sum_over_processes(
        member.sum(0), member.T @ f, member.T @ z, by_group.T @ z, by_group.T @ f, spread
    )
    kept = torch.exp(-count.sum() / memory)
    weight = kept * before.weight + count
    per_row = 1 / weight.clamp(min=torch.finfo(weight.dtype).tiny).unsqueeze(1)
    shift_f, shift_z = first_f * per_row, first_z * per_row
    outer = first_f.T @ shift_f if spread.ndim == 2 else (first_f * shift_f).sum(0)
    return GroupMoments(
        weight,
        before.feature_mean + shift_f,
        before.regressor_mean + shift_z,
        kept * before.gram + gram.reshape(before.gram.shape) - first_z.unsqueeze(2) * shift_z.unsqueeze(1),
        kept * before.cross + cross.reshape(before.cross.shape) - first_z.unsqueeze(2) * shift_f.unsqueeze(1),
        kept * before.spread + spread - outer,
    )


@dataclass(frozen=True)
class WithinGroups:
    """Covariances within label groups, after regression on the numeric part of keep.

    Attributes:
        cross: `(G q_C, d)`: S, in units of correlation on the side of the confounds; zero where a group has too few
            rows, or a confound does not vary in it.
        covariance: Σ, `(d, d)`, or its diagonal `(d,)`.
        rows: How many rows it is of, a scalar.
    """

    cross: Tensor
    covariance: Tensor
    rows: Tensor


def within_groups(moments: GroupMoments, confounds: int, rounding: float = 0.0) -> WithinGroups:
    """S and Σ of some moments, of whose regressors the first `confounds` are to be erased.

    Args:
        moments: Of the features.
        confounds: q_C.
        rounding: Of the numbers that moments are kept in, relative to them.
    """
    rows = moments.weight.clamp(min=1e-12)[:, None, None]
    gram, cross = moments.gram / rows, moments.cross / rows
    root = _root(gram[:, confounds:, confounds:], _ridge(rounding))
    of_confounds = torch.linalg.solve_triangular(root, gram[:, confounds:, :confounds], upper=False)
    of_features = torch.linalg.solve_triangular(root, cross[:, confounds:], upper=False)
    left = cross[:, :confounds] - of_confounds.mT @ of_features
    variance = gram[:, :confounds, :confounds].diagonal(dim1=1, dim2=2) - of_confounds.square().sum(1)
    enough = (moments.weight >= confounds + 2).unsqueeze(1)
    known = enough & (variance > CONSTANT)
    left = torch.where(known.unsqueeze(2), left / variance.clamp(min=CONSTANT).sqrt().unsqueeze(2), 0.0)
    total = moments.weight.sum().clamp(min=1e-12)
    explained = (moments.weight.sqrt()[:, None, None] * of_features).flatten(0, 1)
    explained = explained.T @ explained if moments.spread.ndim == 2 else explained.square().sum(0)
    spread = moments.spread - explained
    return WithinGroups(left.flatten(0, 1), spread / total, total)


def shrunk(covariance: Tensor, rows: Tensor, shrinkage: float | None, rounding: float = 0.0) -> Tensor:
    """`(1 − ρ) Σ + ρ diag(Σ)`; None takes ρ by the OAS rule (Chen et al. 2010) for the correlations.

    Args:
        covariance: `(d, d)`, or a diagonal `(d,)`, which has nothing to shrink.
        rows: Of how many rows it is.
        shrinkage: ρ, 0 to 1.
        rounding: Of the numbers that the covariance is kept in, relative to them.
    """
    diagonal = covariance if covariance.ndim == 1 else covariance.diagonal()
    diagonal = torch.where(diagonal > torch.finfo(diagonal.dtype).tiny, diagonal, 1.0)  # constant features
    if covariance.ndim == 1:
        return diagonal
    scale = diagonal.sqrt()
    correlation = covariance / scale.unsqueeze(1) / scale
    d = len(diagonal)
    share: Tensor | float | None = shrinkage
    if share is None:
        squares = correlation.square().sum()
        top = (1 - 2 / d) * squares + d**2
        share = (top / ((rows + 1 - 2 / d) * (squares - d)).clamp(min=1e-12)).clamp(max=1.0)
    unit = torch.eye(d, dtype=diagonal.dtype, device=diagonal.device)
    away = correlation - unit * correlation.diagonal()
    return ((1 - share) * away + (1 + _ridge(rounding)) * unit) * scale.unsqueeze(1) * scale


def erasing_map(within: WithinGroups, mean: Tensor, shrinkage: float | None, rounding: float) -> Tensor:
    """`[μ; (L Q)ᵀ; (L⁻ᵀ Q)ᵀ]`, `(1 + 2 G q_C, d)`: `E = (L Q) (L⁻ᵀ Q)ᵀ` with `Q = L⁻¹ S R⁻ᵀ`, `R Rᵀ = Sᵀ Σ⁻¹ S + λ² I`.

    The columns of Q are an orthonormal basis of those of `L⁻¹ S`, in their order, so that both parts of E have numbers
    of one size. Lengths σ of columns beside those before them are about canonical correlations: up to λ they are taken
    for rounding, of longer ones `λ² / σ` is left, 5e-8 of .1 in single precision.

    Args:
        within: S and Σ.
        mean: μ, `(d,)`.
        shrinkage: See `shrunk`.
        rounding: Of the numbers that moments are kept in; its power of .6 is λ, 7e-5 in single precision.
    """
    covariance = shrunk(within.covariance, within.rows, shrinkage, rounding)
    full = covariance.ndim == 2
    root = torch.linalg.cholesky_ex(covariance)[0] if full else covariance.sqrt()
    white = torch.linalg.solve_triangular(root, within.cross.T, upper=False).T if full else within.cross / root
    inner = _root(white @ white.T, max(LEAST_SQUARE, rounding**1.2))
    basis = torch.linalg.solve_triangular(inner, white, upper=False)
    basis = torch.where(basis.square().sum(1, keepdim=True) > 0.5, basis, 0.0)  # the length of what is real is 1
    written = basis @ root.T if full else basis * root
    read = torch.linalg.solve_triangular(root, basis, upper=False, left=False) if full else basis / root
    return torch.cat([mean.unsqueeze(0), written, read])


def _ridge(rounding: float) -> float:
    """How much of the identity outweighs the rounding of moments in matrices of about unit diagonal."""
    return max(JITTER, 10 * rounding)


def _root(gram: Tensor, ridge: float) -> Tensor:
    """L of `gram + ridge (1 + ‖diagonal‖) I = L Lᵀ`, `(…, n, n)`."""
    scale = 1 + torch.linalg.vector_norm(gram.diagonal(dim1=-2, dim2=-1), dim=-1)
    unit = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    root: Tensor = torch.linalg.cholesky_ex(gram + ridge * scale[..., None, None] * unit)[0]
    return root


def rank(erasing: Tensor) -> int:
    """How many directions a map erases: the trace of a projection."""
    written, read = erasing[1:].chunk(2)
    return round(float((written * read).sum()))


def erase(features: Tensor, pooled: Tensor, erasing: Tensor) -> Tensor:
    """`f − E (f̄ − μ)`, with f̄ the features themselves, or of shared positions their mean.

    Args:
        features: `(n, d)`, or `(n, d, positions)`.
        pooled: `(n, d)`.
        erasing: What `erasing_map` returns.
    """
    written, read = erasing[1:].chunk(2)
    part = ((pooled - erasing[0]) @ read.T) @ written
    return features - (part if features.ndim == 2 else part.unsqueeze(-1))


def label_share(moments: GroupMoments, erasing: Tensor, keep_part: Tensor, shrinkage: float | None) -> float:
    """Which share of the effect of the labels on the features, in the norm of Σ⁻¹, a map removes; NaN without any.

    The effect is that beside the confounds, `f = b₀ + c β + L δ`: distances of the group means from their mean, less
    what the confounds explain of them, and the slopes on numeric keep, times how far it varies within groups.

    Args:
        moments: Of the features.
        erasing: The map.
        keep_part: `(q_L, q_C)`, K: `c = z_C + z_L K`.
        shrinkage: See `shrunk`.
    """
    confounds = keep_part.shape[1]
    within = within_groups(moments, confounds)
    share = moments.weight / moments.weight.sum().clamp(min=1e-12)
    gram, cross = moments.gram.sum(0) / within.rows, moments.cross.sum(0) / within.rows
    slopes = torch.linalg.pinv(gram, atol=CONSTANT, rtol=0.0, hermitian=True) @ cross
    mean_z = moments.regressor_mean
    by_confounds = (mean_z[:, :confounds] + mean_z[:, confounds:] @ keep_part) @ slopes[:confounds]
    adjusted = moments.feature_mean - by_confounds
    between = share.sqrt().unsqueeze(1) * (adjusted - share @ adjusted)
    of_keep = slopes[confounds:] - keep_part @ slopes[:confounds]
    varies = gram.diagonal()[confounds:].clamp(min=0).unsqueeze(1)
    signal = torch.cat([between, torch.where(varies > CONSTANT, varies.sqrt() * of_keep, 0.0)])
    covariance = shrunk(within.covariance, within.rows, shrinkage)

    def length(rows: Tensor) -> float:
        white = torch.linalg.solve(covariance, rows.T).T if covariance.ndim == 2 else rows / covariance
        return float((rows * white).sum())

    written, read = erasing[1:].to(signal).chunk(2)
    total = length(signal)
    return length(signal @ read.T @ written) / total if total > 0 else float("nan")
