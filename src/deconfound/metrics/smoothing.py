"""Smooth curves in a numeric variable, and what they leave: the label's share taken out of outputs and confounds."""

import torch
from torch import Tensor

# Waves over the ranks and over the range, damped like a cubic smoothing spline; GCV picks how many count.
_WAVES = 60
_PENALTIES = torch.logspace(-9, 1, 31, dtype=torch.float64)
# In standard deviations: beyond, waves over the range would follow a few rows.
_RANGE = 3.0


def normal_scores(x: Tensor) -> Tensor:
    """Each column of `x (n, d)` as the normal quantiles of its ranks (ties share one): no tail, no unit."""
    x = x.double()
    ordered = x.sort(0).values.T.contiguous()
    at = x.T.contiguous()
    below, upto = torch.searchsorted(ordered, at), torch.searchsorted(ordered, at, right=True)
    share = ((below + upto).double() / 2 / len(x)).clamp(0.5 / len(x), 1 - 0.5 / len(x))
    scores: Tensor = torch.special.ndtri(share).T
    return scores


def smooth_residuals(targets: Tensor, given: Tensor, person: Tensor | None = None) -> tuple[Tensor, float]:
    """`targets (n, t)` less a smooth additive curve in every column of `given (n, k)`, and what the curves cost.

    The cost is in degrees of freedom, `n - trace (I - H)²` for the hat matrix H, averaged over the targets.

    The curve is a ridge regression on the columns themselves, their normal scores and cosines of their ranks,
    damped by the fourth power of the frequency as in a smoothing spline. Its penalty is chosen for each target by
    generalised cross-validation, or, where a `person (n,)` has several rows, by leaving out one person at a time:
    rows of a person are alike, and a curve that runs from person to person would seem to foretell them.
    """
    y = targets.double() - targets.double().mean(0)
    basis = _waves(given)
    u, s, _ = torch.linalg.svd(basis - basis.mean(0), full_matrices=False)
    keep = s > 1e-9 * s.max().clamp_min(1e-300)
    u, s = u[:, keep], s[keep]
    if not len(s):
        return y, 0.0
    uy = u.T @ y
    shrink = s.square() / (s.square() + len(y) * _PENALTIES[:, None])
    spare = len(y) - 1 - shrink.sum(1)
    # One person alone cannot be left out.
    if person is None or len(torch.unique(person)) in (1, len(y)):
        outside = (y.square().sum(0) - uy.square().sum(0)).clamp_min(0)
        errors = outside + (1 - shrink).square() @ uy.square()
        scores = errors / spare.clamp_min(1e-9).square()[:, None]
    else:
        scores = _left_out_errors(y, u, shrink, person)
    scores[spare < 0.3 * len(y)] = torch.inf
    best = scores.argmin(0)
    cost = (2 * shrink[best] - shrink[best].square()).sum(1).mean()
    return y - u @ (shrink[best].T * uy), float(cost)


def _left_out_errors(y: Tensor, u: Tensor, shrink: Tensor, person: Tensor) -> Tensor:
    """`(penalties, t)` squared errors at the rows of each person of the curve that is fitted to all other people.

    With `H_p` the rows and columns of a person in the hat matrix of curve and mean, the errors `e_p` of the curve
    through all rows become `(I - H_p)⁻¹ e_p`.
    """
    waves = torch.cat([u, torch.full_like(u[:, :1], len(u) ** -0.5)], dim=1)
    unit = torch.unique(person, return_inverse=True)[1]
    size = torch.bincount(unit)
    by_person = unit.argsort(stable=True)
    alike = [by_person[size[unit[by_person]] == rows].view(-1, int(rows)) for rows in torch.unique(size)]
    out = []
    for share in torch.cat([shrink, torch.ones_like(shrink[:, :1])], dim=1):
        left = y - (waves * share) @ (waves.T @ y)
        errors = [_solved(waves[rows], share, left[rows]).square().sum((0, 1)) for rows in alike]
        out.append(torch.stack(errors).sum(0))
    return torch.stack(out)


def _solved(waves: Tensor, share: Tensor, left: Tensor) -> Tensor:
    """`(I - W diag(share) Wᵀ)⁻¹ left` for every person, `waves (people, rows, k)` and `left (people, rows, t)`."""
    rows, k = waves.shape[1:]
    damped, across = waves * share, waves.transpose(1, 2)
    if rows <= k:
        solved: Tensor = torch.linalg.solve(torch.eye(rows).to(waves) - damped @ across, left)
        return solved
    # The same by a matrix of k × k (Woodbury): a person may have thousands of rows.
    inner: Tensor = torch.linalg.solve(torch.eye(k).to(waves) - across @ damped, across @ left)
    return left + damped @ inner


def _waves(given: Tensor) -> Tensor:
    """Each column, its normal scores, and cosines over its ranks and over its range (cut at the far tails)."""
    parts = []
    for column in given.double().T:
        scores = normal_scores(column[:, None])
        raw = column[:, None] - column.median()
        raw = raw / raw.std().clamp_min(1e-300)
        frequency = torch.arange(1, min(_WAVES, len(column) // 2) + 1, dtype=torch.float64)
        parts += [scores, raw]
        for share in (torch.special.ndtr(scores), (raw.clamp(-_RANGE, _RANGE) / _RANGE + 1) / 2):
            parts.append(2**0.5 * (torch.pi * share * frequency).cos() / frequency.square())
    return torch.cat(parts, dim=1)
