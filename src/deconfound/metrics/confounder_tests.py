"""Tests of partial and full confounding (Spisak 2022) by conditional permutation (Berrett et al. 2020).

- Partial: "given the label, the predictions do not depend on the confound". A small p-value: the model is
  confounded.
- Full: "given the confound, the predictions do not depend on the label". A small p-value: the model knows
  more than the confound tells.

Neither assumes anything about the distribution of the predictions: only the confound given the label
(partial) or the label given the confound (full) is modelled. Where the condition is a category there is no
model at all: rows are permuted within its levels, which is exact. Where it is a quantity, a numeric variable
is taken as normal around a cubic curve in it and a category as a multinomial logistic in the same curve.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deconfound.errors import OptionError, ShapeError
from deconfound.metrics.columns import Column, cells_of
from deconfound.metrics.linear_models import least_squares, log_probabilities
from deconfound.metrics.resampling import LEVEL, Estimate, Resampling, p_value, permuted_rows

if TYPE_CHECKING:
    from deconfound.metrics.distance import Samples

STEPS = 50
# From the order of the rows and two sets of places to the log odds of swapping what stands there.
SwapOdds = Callable[[Tensor, Tensor, Tensor], Tensor]


def partial_confounder_test(
    predictions: "Samples", confound: Column, labels: Sequence[Column], resampling: Resampling | None = None
) -> Estimate:
    """Test that predictions and confound are independent given the labels: a small p says "confounded".

    Args:
        predictions: `(n,)` or `(n, k)` outputs, one row per person.
        confound: the column that should not be there.
        labels: what the model is meant to predict.
        resampling: how many permutations.

    Returns:
        The mean R² of the predictions on the confound, with its p-value and its mean and 95 % quantile under
        the null.
    """
    return _test("partial_confounder_test", predictions, [confound], labels, resampling or Resampling())


def full_confounder_test(
    predictions: "Samples", confound: Column, labels: Sequence[Column], resampling: Resampling | None = None
) -> Estimate:
    """Test that predictions and labels are independent given the confound: a small p says "not fully".

    The arguments are those of `partial_confounder_test`; the statistic is the mean R² of the predictions on
    the labels.
    """
    return _test("full_confounder_test", predictions, labels, [confound], resampling or Resampling())


def conditional_permutations(
    x: Column, given: Sequence[Column], count: int, generator: torch.Generator, steps: int = STEPS
) -> Tensor:
    """`(count, n)` orders of the rows of x, drawn by its distribution given other columns.

    Args:
        x: the column to permute.
        given: what it depends on.
        count: how many orders.
        generator: source of randomness.
        steps: sweeps of random pairwise swaps that lead from the observed order to a common point, and from
            there to each draw along the same pairs backwards, so that the observed order and the draws are
            exchangeable.
    """
    n = len(x.values)
    if all(column.kind != "numeric" for column in given):
        return permuted_rows(cells_of(given)[0], None, count, generator)
    swap_log_odds = _gaussian_odds(x, given) if x.kind == "numeric" else _categorical_odds(x, given)
    pairings = [torch.randperm(n, generator=generator)[: n // 2 * 2].view(2, -1) for _ in range(steps)]
    order = torch.arange(n)[:, None]
    for first, second in pairings:
        order = _swap(order, first, second, swap_log_odds, generator)
    order = order.repeat(1, count)
    for first, second in reversed(pairings):
        order = _swap(order, first, second, swap_log_odds, generator)
    return order.T


def _gaussian_odds(x: Column, given: Sequence[Column]) -> SwapOdds:
    """Log odds of swapping the values at two places: `(x_b - x_a)(μ_i - μ_j) / σ²`."""
    basis, values = _curve(given), x.values
    mean = least_squares(basis, values[:, None], basis)[:, 0]
    spare = max(len(basis) - basis.shape[1] - 1, 1)
    variance = ((values - mean).square().sum() / spare).clamp_min(1e-300)

    def log_odds(order: Tensor, first: Tensor, second: Tensor) -> Tensor:
        gap = (mean[first] - mean[second])[:, None] / variance
        return (values[order[second]] - values[order[first]]) * gap

    return log_odds


def _categorical_odds(x: Column, given: Sequence[Column]) -> SwapOdds:
    """Log odds of swapping the levels at two places, from the probability of every level at every place."""
    basis, codes = _curve(given), x.values.long()
    log_p = log_probabilities(basis, codes, basis, len(x.levels))

    def log_odds(order: Tensor, first: Tensor, second: Tensor) -> Tensor:
        here, there = codes[order[first]], codes[order[second]]
        gain = log_p[first].gather(1, there) + log_p[second].gather(1, here)
        return gain - log_p[first].gather(1, here) - log_p[second].gather(1, there)

    return log_odds


def _swap(
    order: Tensor,
    first: Tensor,
    second: Tensor,
    log_odds: SwapOdds,
    generator: torch.Generator,
) -> Tensor:
    chance = log_odds(order, first, second).sigmoid()
    swapped = torch.rand(chance.shape, generator=generator, dtype=chance.dtype) < chance
    out = order.clone()
    out[first] = torch.where(swapped, order[second], order[first])
    out[second] = torch.where(swapped, order[first], order[second])
    return out


def _curve(given: Sequence[Column]) -> Tensor:
    """`(n, k)`: powers 1 to 3 of standardised quantities, 0/1 columns of categories."""
    parts = []
    for column in given:
        if column.kind == "numeric":
            z = column.values - column.values.mean()
            z = z / z.std().clamp_min(1e-12)
            parts.append(torch.stack([z, z**2, z**3], dim=1))
        else:
            parts.append(column.encoded)
    return torch.cat(parts, dim=1)


def _test(
    statistic: str,
    predictions: "Samples",
    permuted: Sequence[Column],
    given: Sequence[Column],
    resampling: Resampling,
) -> Estimate:
    outputs = torch.as_tensor(predictions).double()
    outputs = outputs[:, None] if outputs.ndim == 1 else outputs
    present = torch.stack([column.present for column in [*permuted, *given]]).all(0)
    if len(outputs) != len(present):
        raise ShapeError(f"predictions must have one row per row of the table; got {len(outputs)} for {len(present)}.")
    outputs = outputs[present]
    x = _joint([column.take(present) for column in permuted])
    orders = conditional_permutations(
        x, [column.take(present) for column in given], resampling.permutations, resampling.generator()
    )
    values = _r_squared(outputs, x, torch.cat([torch.arange(len(outputs))[None], orders]))
    value, null = float(values[0]), values[1:]
    return Estimate(
        statistic,
        value,
        len(outputs),
        p=p_value(value, null),
        chance=float(null.mean()),
        independent=float(null.quantile(LEVEL)),
    )


def _joint(columns: list[Column]) -> Column:
    if len(columns) == 1:
        return columns[0]
    if any(column.kind == "numeric" for column in columns):
        raise OptionError(
            "several labels must all be categories; got a numeric one among "
            f"{', '.join(column.name for column in columns)}. Test them one at a time."
        )
    codes, names = cells_of(columns)
    return Column(" × ".join(column.name for column in columns), "categorical", codes.double(), names)


def _r_squared(outputs: Tensor, x: Column, orders: Tensor) -> Tensor:
    """`(orders,)` share of the outputs' variance that x explains in each order, averaged over outputs."""
    y = outputs - outputs.mean(0)
    y = y / y.norm(dim=0).clamp_min(1e-300)
    basis = x.encoded - x.encoded.mean(0)
    left, singular, _ = torch.linalg.svd(basis, full_matrices=False)
    left = left[:, singular > 1e-9 * singular.max().clamp_min(1e-300)]
    values = [torch.einsum("pnk,nd->pkd", left[part], y).square().sum(1).mean(1) for part in torch.split(orders, 64)]
    return torch.cat(values)
