"""A test of dependence given numeric labels, by residuals that are permuted among neighbours in the label.

Both sides lose a smooth curve in the label; the confound's residuals are then exchanged among people whose labels
lie next to each other. A wrong curve on one side alone does no harm, unequal variances are as unequal among
neighbours in every permuted table, and normal scores keep a heavy tail from deciding. No test of conditional
independence holds for every law (Shah and Peters 2020): a dependence on the label that is finer than its
neighbourhoods and rougher than the curve, on both sides, is taken for a dependence on the confound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deconfound.errors import OptionError, ShapeError
from deconfound.metrics.checks import codes_of, ordinary, samples
from deconfound.metrics.columns import Column, category_codes
from deconfound.metrics.conditional import SMALLEST_GROUP, confound_beyond, outputs_beyond
from deconfound.metrics.distance_tests import Draws, dcor_draws
from deconfound.metrics.permutations import local_groups, permuted_rows, varies_within
from deconfound.metrics.resampling import Estimate, Resampling

if TYPE_CHECKING:
    from deconfound.metrics.checks import Samples

# People in a neighbourhood: fewer hardly move, more differ in their labels.
NEIGHBOURS = 8
# Below this many rows a curve is not fitted within a group of the other labels.
_FEWEST_FOR_A_CURVE = 12


def residual_dcor_test(
    x: "Samples",
    y: "Samples",
    labels: Sequence[Column],
    units: "Samples | None",
    resampling: Resampling,
    statistic: str = "residual_dcor_sqr",
) -> Estimate:
    """dcor² of `x (n, d)` and `y (n, q)` beyond numeric labels (`residual_dcor_sqr`), with interval and p-value.

    Args:
        x: outputs.
        y: encoded confound: one numeric column, or one 0/1 column per level.
        labels: columns without gaps; curves are fitted in the numeric ones, within the groups of the others.
        units: `(n,)` person of each row, or None.
        resampling: how many permutations and bootstrap samples.
        statistic: name of the result.
    """
    return residual_draws(x, y, labels, units, resampling).estimate(statistic)


def residual_draws(
    x: "Samples", y: "Samples", labels: Sequence[Column], units: "Samples | None", resampling: Resampling
) -> Draws:
    """What `residual_dcor_test` is made of."""
    x, y = (ordinary(side.detach()) for side in samples(x, y, at_least=SMALLEST_GROUP))
    if all(label.kind != "numeric" for label in labels):
        raise OptionError("labels must hold a numeric column; got none. Use dcor_test with the groups as cells.")
    for label in labels:
        if len(label.values) != len(x) or not bool(label.present.all()):
            raise ShapeError(f"label {label.name!r} must have a value for every row of x. Leave the other rows out.")
    left = residuals(x, y, labels, codes_of(units, len(x), "units"))
    if len(left.rows) < SMALLEST_GROUP:
        return Draws(float("nan"), torch.zeros(0), torch.zeros(0), 0, 0)
    orders = permuted_rows(left.strata, left.person, resampling.permutations, resampling.generator(), y[left.rows])
    draws = dcor_draws(left.x, left.y, torch.zeros(len(left.rows)), left.person, resampling, orders)
    return replace(draws, null=left.wider * draws.null)


@dataclass(frozen=True)
class Residuals:
    """What curves in the labels leave of `x (m, d)` and `y (m, q)` at the rows where one could be fitted.

    `strata (m,)` are the neighbourhoods within which people may exchange y, `person (m,)` whose row it is. Residuals
    of two curves in the same label vary together more than permuted ones: their squared correlation `wider` times
    as much, `n / (n - d)` with d the degrees of freedom of the stiffer curve and n the effective number of people.
    """

    rows: Tensor
    x: Tensor
    y: Tensor
    strata: Tensor
    person: Tensor
    wider: float


def residuals(
    x: Tensor, y: Tensor, labels: Sequence[Column], units: Tensor | None, neighbours: int = NEIGHBOURS
) -> Residuals:
    """Take smooth curves in the numeric labels out of both sides, within the groups of the other labels."""
    person = torch.arange(len(x)) if units is None else torch.unique(units, return_inverse=True)[1]
    groups = category_codes(labels, len(x))
    given = torch.stack([label.values for label in labels if label.kind == "numeric"], dim=1).double()
    # A confound that a person has once is set against the person's mean label, so that people exchange it whole; one
    # that varies within the person, against the label of its row, which it may depend on.
    once = ~varies_within(person, y)[person]
    of_y = torch.where(once[:, None], _mean_by(given, person)[person], given)
    left_x, left_y = torch.zeros_like(x, dtype=torch.float64), torch.zeros_like(y, dtype=torch.float64)
    strata, cost, people = torch.full((len(x),), -1), 0.0, 0.0
    for group in torch.unique(groups):
        rows = (groups == group).nonzero()[:, 0]
        if len(rows) >= _FEWEST_FOR_A_CURVE:
            left_x[rows], x_cost = outputs_beyond(x[rows], given[rows], person[rows])
            left_y[rows], y_cost = confound_beyond(y[rows], of_y[rows], person[rows])
            cost += min(x_cost, y_cost)
            people += _effective_people(person[rows])
            near = _neighbourhoods(y[rows] - left_y[rows], given[rows], person[rows], neighbours)
            strata[rows] = int(strata.max()) + 1 + near
    kept = (strata >= 0).nonzero()[:, 0]
    wider = people / max(people - cost, 1.0)
    return Residuals(kept, left_x[kept], left_y[kept], strata[kept], person[kept], wider)


def _neighbourhoods(fitted: Tensor, given: Tensor, person: Tensor, size: int) -> Tensor:
    """`(n,)` codes of people with neighbouring labels; several labels are ranked by what they say of the confound."""
    people = torch.unique(person, return_inverse=True)[1]
    place = given[:, 0]
    if given.shape[1] > 1:
        centred = fitted - fitted.mean(0)
        place = centred @ torch.linalg.svd(centred, full_matrices=False)[2][0]
    return local_groups(_mean_by(place[:, None], people)[:, 0], size)[people]


def _effective_people(person: Tensor) -> float:
    """How many people with equally many rows tell as much as these: `n² / Σ n_p²` (Kish 1965)."""
    return len(person) ** 2 / float(torch.unique(person, return_counts=True)[1].square().sum())


def _mean_by(values: Tensor, codes: Tensor) -> Tensor:
    """`(codes, k)` mean of the rows of each code."""
    sums = torch.zeros(int(codes.max()) + 1, values.shape[1], dtype=torch.float64).index_add(0, codes, values.double())
    return sums / torch.bincount(codes).clamp_min(1)[:, None]
