"""PMDN's update of β: one descent step on the penalty, with the gain that `gain.py` derives."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deconfound.layers.functional import eigenvalue_bound, products_and_sampled
from deconfound.layers.pmdn.gain import (
    GainState,
    Numbers,
    adaptive_gain,
    device_sums,
    forgetting,
    grouped,
    host_sums,
    joined_numbers,
    split_numbers,
    sums,
)
from deconfound.layers.pmdn.sampled import Sampled
from deconfound.layers.tensors import processes, sum_over_processes
from deconfound.layers.whitened import WhitenedBatch, positive

# How many samples β = 0 counts for at the start, for confounds, keep and intercept: a β known from a handful of samples
# is noise that can kill a network.
START = (30.0, 30.0, 0.0)


class UpdateRule(NamedTuple):
    """What a layer fixes about its updates.

    Attributes:
        sizes: How many rows of β share a gain: confounds, keep, intercept.
        step: 0 for the adaptive gain, −1 for the plain average, else a fixed step.
        sampled: The features that the gain is computed on.
    """

    sizes: tuple[int, ...]
    step: float
    sampled: Sampled


class _Errors(NamedTuple):
    """What is known of a batch: directions of all features, those of sampled ones, and squared errors.

    And of the batch of all processes, where there are several, the Gram matrix and the counts.
    """

    directions: Tensor
    sampled: Tensor
    squares: Tensor
    gram: Tensor | None
    counts: Tensor | None


@torch.no_grad()
def update(
    beta: Tensor,
    state: GainState,
    skipped: Tensor,
    features: Tensor,
    batch: WhitenedBatch,
    rule: UpdateRule,
    groups: Tensor,
) -> float | Tensor:
    """Move β and the gain in place; returns the share of this batch in the running averages.

    Where what is sampled is not finite nothing moves; elsewhere a feature that is not finite keeps its β.
    """
    errors = _errors(beta, features, batch, rule.sampled, groups)
    if beta.is_cpu and not torch.compiler.is_compiling():  # reading numbers back does not force a device sync
        return _update_on_host(beta, state, skipped, errors, batch, rule)
    return _update_on_device(beta, state, skipped, errors, batch, rule, groups)


def _errors(beta: Tensor, features: Tensor, batch: WhitenedBatch, sampled: Sampled, groups: Tensor) -> _Errors:
    regressors, weighted = batch.regressors, batch.weighted
    assert weighted is not None
    if sampled.all:
        some = torch.addmm(features, regressors, beta, alpha=-1)
        directions = weighted.T @ some
    else:
        cross, some = products_and_sampled(features, weighted, sampled.of)
        directions = torch.addmm(cross, batch.gram(), beta, alpha=-1)
        some = torch.addmm(some, regressors, sampled.of(beta), alpha=-1)
    squares = batch.group_squares(groups).T @ (some * some)
    if processes() == 1:
        return _Errors(directions, sampled.of(directions), squares, None, None)
    directions, squares, gram, counts = sum_over_processes(directions, squares, batch.gram(), batch.counts())
    return _Errors(directions, sampled.of(directions), squares, gram, counts)


def _update_on_host(
    beta: Tensor, state: GainState, skipped: Tensor, errors: _Errors, batch: WhitenedBatch, rule: UpdateRule
) -> float:
    rows, squares = batch.host_counts() if errors.counts is None else errors.counts.tolist()
    if rows == 0:
        return 0.0
    numbers = state.numbers.numpy()
    past = split_numbers(numbers.tolist())
    samples = past[0].samples
    seen, commit = host_sums(state, errors.sampled, errors.squares, errors.squares[-1], squares, rows, samples)
    groups = grouped(seen, rule.sizes)
    if not all(map(math.isfinite, seen)):
        skipped.add_(1)
        return 0.0
    largest = batch.host_eigenvalue_bound() if errors.gram is None else eigenvalue_bound(errors.gram / rows).item()
    rates, moves, new = [], [], []
    for group, start, size, of_group in zip(past, START, rule.sizes, groups, strict=True):
        rate, after = adaptive_gain(group, of_group, rows, squares, start)
        if rule.step:
            rate = rows / (samples + rows) if rule.step < 0 else rule.step
        step = min(rate, 1 / largest) / rows
        rates.append(rate)
        moves += [[step]] * size
        new.append(after._replace(step=step))
    directions = errors.directions
    if samples == 0 and rule.step <= 0:
        gram = batch.gram() if errors.gram is None else errors.gram
        directions, moves[-1] = after_the_mean(directions, gram, 1 / rows), [1 / rows]
    _move(beta, directions, moves, skipped, rule)
    numbers[:] = joined_numbers(new)
    commit()
    return float(rates[0])


def after_the_mean(directions: Tensor, gram: Tensor, share: float | Tensor) -> Tensor:
    """The directions `(q, d)` after the intercept has moved by `share` of its own: they know the features' mean then.

    It is done for the first batch, with a share of 1 / n: means of a hundred sd would otherwise pass for effects.
    """
    return torch.cat([directions[:-1] - gram[:-1, -1:] * (directions[-1:] * share), directions[-1:]])


def _move(beta: Tensor, directions: Tensor, moves: list[list[float]], skipped: Tensor, rule: UpdateRule) -> None:
    steps = beta.new_tensor(moves)
    if rule.sampled.all:  # then the sums have shown that every direction is finite
        beta.addcmul_(steps, directions)
        return
    stepped = torch.addcmul(beta, steps, directions)
    if not math.isfinite(stepped.sum()):
        moved = torch.isfinite(stepped).all(0)
        skipped.add_((~moved.all()).to(skipped.dtype))
        stepped = torch.where(moved, stepped, beta)
    beta.copy_(stepped)


def _update_on_device(
    beta: Tensor,
    state: GainState,
    skipped: Tensor,
    errors: _Errors,
    batch: WhitenedBatch,
    rule: UpdateRule,
    groups: Tensor,
) -> Tensor:
    counts = batch.counts() if errors.counts is None else errors.counts
    rows, squares = counts[0], counts[1]
    past: Numbers = split_numbers(state.numbers)
    forget = forgetting(past.samples, rows)
    scale = torch.lerp(state.scale, errors.squares[-1] / positive(squares), forget)
    seen = device_sums(sums(state, errors.sampled, errors.squares, scale), groups)
    finite = torch.isfinite(torch.stack(list(seen))).all()
    usable = finite & (rows > 0)
    rate, new = adaptive_gain(past, seen, rows, squares, beta.new_tensor(START))
    if rule.step:
        fixed = rows / positive(past.samples + rows) if rule.step < 0 else rows.new_tensor(rule.step)
        rate = fixed.expand_as(rate)
    count = positive(rows)
    bound = batch.eigenvalue_bound() if errors.gram is None else eigenvalue_bound(errors.gram / count)
    step = torch.minimum(rate, 1 / bound) / count
    moves, directions = (groups @ step).unsqueeze(1), errors.directions
    if rule.step <= 0:
        first = (past.samples == 0).to(beta)
        gram = batch.gram() if errors.gram is None else errors.gram
        directions = after_the_mean(directions, gram, first / count)
        moves = torch.cat([moves[:-1], torch.lerp(moves[-1:], 1 / count, first)])
    stepped = torch.addcmul(beta, moves, directions)
    moved = torch.isfinite(stepped).all(0)
    skipped.add_((~(finite & (moved.all() | (rows == 0)))).to(skipped.dtype))
    beta.copy_(torch.where(usable & moved, stepped, beta))
    numbers = torch.cat([new.samples.reshape(1), new.agreement, step, new.length])
    trend = torch.lerp(state.trend, errors.sampled / count, forget)
    for buffer, value in zip(state, (numbers, trend, scale), strict=True):
        buffer.copy_(torch.where(usable, value, buffer))
    share: Tensor = rate[0]
    return share
