"""Distance correlation with the label taken into account: within groups, after a smooth curve, and partial."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deconfound.errors import ShapeError
from deconfound.metrics.checks import matrix, tensor
from deconfound.metrics.distance import u_distance_correlation_sqr
from deconfound.metrics.smoothing import normal_scores, smooth_residuals

if TYPE_CHECKING:
    from deconfound.metrics.checks import Samples

SMALLEST_GROUP = 4


def within_group_dcor_sqr(x: "Samples", y: "Samples", groups: "Samples", *, block: int | None = None) -> Tensor:
    """The bias-corrected dcor² within each group, averaged over the groups, as in the paper.

    `mean_g u_distance_correlation_sqr(x[groups == g], y[groups == g])`, every group counting the same.

    Args:
        x: `(n,)` or `(n, d)`, such as the features. Differentiable.
        y: `(n,)` or `(n, q)`, such as a confound.
        groups: `(n,)` group of each row, such as the label. Every group needs at least 4 rows.
        block: see `u_distance_correlation_sqr`.

    Example:
        >>> label = torch.tensor([0, 1]).repeat(50)
        >>> x = label + 0.01 * torch.arange(100.0) % 0.1     # follows the label and nothing else
        >>> float(u_distance_correlation_sqr(x, label)) > 0.9, float(within_group_dcor_sqr(x, label, label))
        (True, 0.0)
    """
    x, y, groups = tensor(x, "x"), tensor(y, "y"), tensor(groups, "groups")
    if groups.shape != x.shape[:1]:
        raise ShapeError(f"groups must hold one value per row; got {tuple(groups.shape)} for {len(x)} rows.")
    if len(y) != len(x):
        raise ShapeError(f"x and y must have one row per sample each; got {len(x)} and {len(y)} rows.")
    values = []
    for group in torch.unique(groups):
        rows = groups == group
        if int(rows.sum()) < SMALLEST_GROUP:
            raise ShapeError(
                f"every group must have at least {SMALLEST_GROUP} rows; got {int(rows.sum())} in group "
                f"{group.item()!r}. Leave its rows out, or join it with another group."
            )
        values.append(u_distance_correlation_sqr(x[rows], y[rows], block=block))
    return torch.stack(values).mean()


def partial_distance_correlation(x: "Samples", y: "Samples", given: "Samples", *, block: int | None = None) -> Tensor:
    """Partial distance correlation of `x` and `y` given a third variable (Székely and Rizzo 2014).

    With `R` the bias-corrected squared distance correlation of each pair,
    `(R_xy - R_xz R_yz) / sqrt((1 - R_xz²)(1 - R_yz²))`; 0 where `z` leaves nothing of `x` or `y`. It is zero
    in the population when the distances of `x` and `y`, cleared of those of `z`, do not go together, which is
    close to conditional independence but not the same; within-group dcor² is exact where `z` is a group.
    """
    xy = u_distance_correlation_sqr(x, y, block=block)
    xz = u_distance_correlation_sqr(x, given, block=block)
    yz = u_distance_correlation_sqr(y, given, block=block)
    left = (1 - xz.square()) * (1 - yz.square())
    varies = left > 1e-12
    return torch.where(varies, (xy - xz * yz) / torch.where(varies, left, 1).sqrt(), 0)


def residual_dcor_sqr(x: "Samples", y: "Samples", given: "Samples") -> Tensor:
    """The bias-corrected dcor² of what a smooth curve in numeric labels leaves of `x` and of `y`.

    `x (n,) or (n, d)` and a numeric `y (n,)` are taken by their normal scores, so that no tail decides; one-hot
    levels `y (n, q)` stay as they are. Both lose a smooth curve in `given (n,) or (n, k)`, and x its local scale.
    """
    x, y, given = (matrix(values, name) for values, name in ((x, "x"), (y, "y"), (given, "given")))
    return u_distance_correlation_sqr(outputs_beyond(x, given)[0], confound_beyond(y, given)[0])


def outputs_beyond(x: Tensor, given: Tensor, person: Tensor | None = None) -> tuple[Tensor, float]:
    """What a smooth curve in `given (n, k)` leaves of the normal scores of `x (n, d)`, in units of its local scale.

    The second value is what the curve cost in degrees of freedom. `person (n,)` says whose row it is.
    """
    scores = normal_scores(x)
    left, cost = smooth_residuals(scores, given, person)
    # A function of the label leaves rounding: it must not be blown up to unit scale.
    known = left.square().sum(0) <= 1e-10 * (scores - scores.mean(0)).square().sum(0)
    size = left.abs().clamp_min(1e-3 * left.std(0).clamp_min(1e-300)).log()
    spread = (size - smooth_residuals(size, given, person)[0]).exp()
    return torch.where(known, 0, left / spread), cost


def confound_beyond(y: Tensor, given: Tensor, person: Tensor | None = None) -> tuple[Tensor, float]:
    """What a smooth curve leaves of a confound: normal scores of a number, or 0/1 columns of levels; and its cost."""
    numeric = y.shape[1] == 1 and len(torch.unique(y)) > 2
    return smooth_residuals(normal_scores(y) if numeric else y, given, person)
