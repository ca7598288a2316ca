"""Tests of partial and full confounding (Spisak 2022) by permutations that keep what is conditioned on.

- Partial: "given the label, the predictions do not depend on the confound". A small p-value: the model is
  confounded.
- Full: "given the confound, the predictions do not depend on the label". A small p-value: the model knows
  more than the confound tells.

Where the condition is a category, rows are permuted within its levels, which is exact. Where it is numeric, smooth
curves in it are taken out of both sides and residuals are permuted among neighbours (`residual_tests`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deconfound.errors import ShapeError
from deconfound.metrics.checks import codes_of, matrix
from deconfound.metrics.columns import Column, cells_of
from deconfound.metrics.correlation import unit_length
from deconfound.metrics.permutations import movable, permuted_rows
from deconfound.metrics.resampling import Estimate, Resampling, estimate
from deconfound.metrics.residual_tests import NEIGHBOURS, residuals

if TYPE_CHECKING:
    from deconfound.metrics.checks import Samples


def partial_confounder_test(
    predictions: "Samples",
    confound: Column,
    labels: Sequence[Column],
    resampling: Resampling | None = None,
    units: "Samples | None" = None,
) -> Estimate:
    """Test that predictions and confound are independent given the labels: a small p says "confounded".

    Args:
        predictions: `(n,)` or `(n, k)` outputs.
        confound: the column that should not be there.
        labels: what the model is meant to predict.
        resampling: how many permutations.
        units: `(n,)` person of each row; by default every row is a person of its own.

    Returns:
        The mean R² of the predictions on the confound, with its p-value and its mean and 95 % quantile under
        the null.
    """
    return _test("partial_confounder_test", predictions, [confound], labels, resampling or Resampling(), units)


def full_confounder_test(
    predictions: "Samples",
    confound: Column,
    labels: Sequence[Column],
    resampling: Resampling | None = None,
    units: "Samples | None" = None,
) -> Estimate:
    """Test that predictions and labels are independent given the confound: a small p says "not fully".

    The arguments are those of `partial_confounder_test`; the statistic is the mean R² of the predictions on
    the labels.
    """
    return _test("full_confounder_test", predictions, labels, [confound], resampling or Resampling(), units)


def conditional_permutations(
    x: Column, given: Sequence[Column], count: int, generator: torch.Generator, neighbours: int = NEIGHBOURS
) -> Tensor:
    """`(count, n)` orders of the rows of x that keep what it may depend on.

    Rows are exchanged within the levels of categories, and among neighbours in numeric columns (take a curve in
    them out of x first).

    Args:
        x: the column to permute.
        given: what it depends on.
        count: how many orders.
        generator: source of randomness.
        neighbours: how many rows exchange values among each other, given numeric columns.
    """
    if all(column.kind != "numeric" for column in given):
        strata = cells_of(given)[0]
    else:
        found = residuals(x.encoded, x.encoded, given, None, neighbours)
        strata = torch.arange(-len(x.values), 0)
        strata[found.rows] = found.strata
    return permuted_rows(strata, None, count, generator)


def _test(
    statistic: str,
    predictions: "Samples",
    permuted: Sequence[Column],
    given: Sequence[Column],
    resampling: Resampling,
    units: "Samples | None",
) -> Estimate:
    outputs, table = matrix(predictions, "predictions").detach().double(), permuted[0].values
    rows = torch.stack([column.present for column in [*permuted, *given]]).all(0).nonzero()[:, 0]
    if len(outputs) != len(table):
        raise ShapeError(f"predictions must have one row per row of the table; got {len(outputs)} for {len(table)}.")
    given = [column.take(rows) for column in given]
    outputs, values = outputs[rows], torch.stack([column.values[rows] for column in permuted], dim=1)
    basis = torch.cat([column.take(rows).encoded for column in permuted], dim=1)
    codes, wider = codes_of(units, len(table), "units"), 1.0
    people = None if codes is None else codes[rows]
    nothing = Estimate(statistic, float("nan"), 0, movable=0)
    if not len(rows):
        return nothing
    if any(column.kind == "numeric" for column in given):
        left = residuals(outputs, basis, given, people)
        wider = left.wider
        outputs, basis, values, strata, people = left.x, left.y, values[left.rows], left.strata, left.person
    else:
        strata = cells_of(given)[0]
    if not len(outputs):
        return nothing
    orders = permuted_rows(strata, people, resampling.permutations, resampling.generator(), values)
    found = _r_squared(outputs, basis, torch.cat([torch.arange(len(outputs))[None], orders]))
    return estimate(statistic, float(found[0]), len(outputs), wider * found[1:], movable=movable(values, orders))


def _r_squared(outputs: Tensor, basis: Tensor, orders: Tensor) -> Tensor:
    """`(orders,)` share of the outputs' variance that the permuted basis explains, averaged over outputs."""
    y, basis = unit_length(outputs), unit_length(basis)
    left, singular, _ = torch.linalg.svd(basis, full_matrices=False)
    left = left[:, singular > 1e-9 * singular.max().clamp_min(1e-300)]
    values = [torch.einsum("pnk,nd->pkd", left[part], y).square().sum(1).mean(1) for part in torch.split(orders, 16)]
    return torch.cat(values)
