"""Small linear models in closed form or by a bound on the Hessian, for many targets at once."""

import torch
from torch import Tensor

# Ridge penalties tried, as multiples of the mean squared singular value of the features. Smaller ones let random
# features of a single output fit noise that no held-out row has.
_PENALTIES = torch.logspace(-2, 4, 13, dtype=torch.float64)


def least_squares(x: Tensor, targets: Tensor, at: Tensor) -> Tensor:
    """Fit `targets (n, t)` on `x (n, d)` with an intercept and predict them at other rows."""
    mean, centre = targets.mean(0), x.mean(0)
    weights: Tensor = torch.linalg.lstsq(x - centre, targets - mean, driver="gelsd").solution
    return mean + (at - centre) @ weights


def ridge(x: Tensor, targets: Tensor, at: Tensor) -> Tensor:
    """Ridge regression of each target on `x`, its penalty by generalised cross-validation; `(len(at), t)`.

    For a penalty λ and n rows, `GCV = n |y - ŷ|² / (n - trace H - 1)²`, H being the hat matrix of the centred
    rows.
    """
    mean, centre = targets.mean(0), x.mean(0)
    u, s, vt = torch.linalg.svd(x - centre, full_matrices=False)
    keep = s > s[0] * 1e-10 if len(s) else s > 0
    u, s, vt = u[:, keep], s[keep], vt[keep]
    if not len(s):
        return mean.expand(len(at), -1)
    y = targets - mean
    uy = u.T @ y
    penalties = _PENALTIES.to(s) * s.square().mean()
    shrink = s.square() / (s.square() + penalties[:, None])
    outside = (y.square().sum(0) - uy.square().sum(0)).clamp_min(0)
    errors = outside + torch.einsum("ls,st->lt", (1 - shrink).square(), uy.square())
    spare = (len(x) - 1 - shrink.sum(1)).clamp_min(1e-9)
    best = (errors / spare.square()[:, None]).argmin(0)
    scale = (s[:, None] / (s.square()[:, None] + penalties[best])) * uy
    predicted: Tensor = mean + (at - centre) @ (vt.T @ scale)
    return predicted


def softmax_regression(
    x: Tensor,
    codes: Tensor,
    n_levels: int,
    *,
    penalty: float = 1.0,
    iterations: int = 200,
    tolerance: float = 1e-5,
) -> Tensor:
    """Weights `(t, d + 1, n_levels)` of penalised multinomial logistic models, one per row of `codes (t, n)`.

    Minimises `Σ_i -log p(code_i) + penalty/2 |W|²`, the last row of W being the free intercepts. The Hessian
    never exceeds `½ XᵀX` per level (Böhning 1992), so one inverse serves every step and every target;
    Nesterov's momentum, restarted whenever it points uphill, makes the steps few.
    """
    ones = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
    free = x.new_ones(ones.shape[1])
    free[-1] = 1e-6
    inverse = torch.linalg.inv(0.5 * ones.T @ ones + torch.diag(penalty * free))
    target = torch.nn.functional.one_hot(codes, n_levels).to(x.dtype)
    weights = x.new_zeros(len(codes), ones.shape[1], n_levels)
    ahead, age = weights, x.new_ones(len(codes), 1, 1)
    for _ in range(iterations):
        missing = target - (ones @ ahead).softmax(-1)
        uphill = ones.T @ missing - penalty * free[:, None] * ahead
        new = ahead + inverse @ uphill
        step = new - weights
        backwards = (uphill * step).sum((1, 2), keepdim=True) < 0
        age = torch.where(backwards, 1.0, age)
        ahead = new + (age - 1) / (age + 2) * step
        weights, age = new, age + 1
        if float(step.abs().max()) < tolerance:
            break
    return weights


def log_probabilities(x: Tensor, codes: Tensor, at: Tensor, n_levels: int) -> Tensor:
    """Log probability `(len(at), n_levels)` of every level under a hardly penalised logistic model."""
    scale = x.std(0).clamp_min(1e-12)
    weights = softmax_regression(x / scale, codes[None], n_levels, penalty=1e-2, iterations=400, tolerance=1e-5)[0]
    return ((at / scale) @ weights[:-1] + weights[-1]).log_softmax(-1)
