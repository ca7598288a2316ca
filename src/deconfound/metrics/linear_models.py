"""Ridge regression in closed form, for many targets at once."""

import torch
from torch import Tensor

# Ridge penalties tried, as multiples of the mean squared singular value of the features. Smaller ones let random
# features of a single output fit noise that no held-out row has.
_PENALTIES = torch.logspace(-2, 4, 13, dtype=torch.float64)


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


def held_out_ridge(x: Tensor, targets: Tensor, fold: Tensor) -> Tensor:
    """`(n, t)` predictions of each row by a regression on the rows of the other folds."""
    out = torch.empty_like(targets)
    for held in torch.unique(fold):
        train, test = fold != held, fold == held
        out[test] = ridge(x[train], targets[train], x[test])
    return out
