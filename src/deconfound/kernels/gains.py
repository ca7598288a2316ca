"""The gain on the GPU: what `deconfound.gain` computes, in three kernels on the measured features.

Each formula here is one of `deconfound.gain` or `deconfound.layers.bilevel` and is tested against it. The first kernel
takes some samples and copies their measured features, the second takes some features and adds up the votes, the third
is one program that turns them into a gain and commits the state.
"""
# mypy: ignore-errors

from deconfound.kernels.language import jit, tl
from deconfound.kernels.passes import is_finite

# Groups of coefficients that have a gain each, as a power of two.
GROUPS = tl.constexpr(4)
TINY = tl.constexpr(1.1754943508222875e-38)


@jit
def memory_order(features, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr):
    """Where features lie in a sample whose channels are last in memory; CHANNELS = 0 for the usual order."""
    if CHANNELS > 0:
        features = (features % POSITIONS) * CHANNELS + features // POSITIONS
    return features


@jit
def group_of(k, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """The group of a coefficient, for groups that start at 0, FIRST and SECOND."""
    return tl.where(k >= FIRST, 1, 0) + tl.where(k >= SECOND, 1, 0)


@jit
def measure_errors(
    x, r, coefficients, weights, errors, units, n, d, m, stride, x_row, r_row, r_col,
    Q: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    WEIGHTED: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """`e = f − Rβ` at the measured features, and what turns `R_i e_i` of a sample into a vote of length one."""
    rows = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    inside_rows = rows < n
    length = tl.zeros((BN,), dtype=tl.float32)
    for start in range(0, m, BM):
        measured = start + tl.arange(0, BM)
        features = measured * stride
        inside = inside_rows[:, None] & (measured < m)[None, :]
        places = memory_order(features, CHANNELS, POSITIONS)
        block = tl.load(x + rows[:, None] * x_row + places[None, :], mask=inside, other=0.0).to(tl.float32)
        for k in range(Q):
            r_k = tl.load(r + rows * r_row + k * r_col, mask=inside_rows, other=0.0)
            row_k = coefficients + tl.full((), 1, tl.int64) * k * d
            beta_k = tl.load(row_k + features, mask=measured < m, other=0.0)
            block -= r_k[:, None] * beta_k[None, :]
        tl.store(errors + rows[:, None] * m + measured[None, :], block, mask=inside)
        length += tl.sum(tl.where(inside, block * block, 0.0), axis=1)
    unit = 1.0 / tl.maximum(tl.sqrt(length), 1e-12)
    unit = tl.where(length == length, unit, length)  # a NaN must show
    if WEIGHTED:
        unit *= tl.load(weights + rows, mask=inside_rows, other=0.0)
    for group in tl.static_range(3):
        square = tl.zeros((BN,), dtype=tl.float32)
        for k in range(Q):
            r_k = tl.load(r + rows * r_row + k * r_col, mask=inside_rows, other=0.0)
            square += tl.where(group_of(k, FIRST, SECOND) == group, r_k * r_k, 0.0)
        scale = unit / tl.maximum(tl.sqrt(square), 1e-12)
        tl.store(units + group * n + rows, scale, mask=inside_rows)


@jit
def add_votes(
    errors, r, units, trend, votes, sums, n, m, r_row, r_col,
    Q: tl.constexpr, QP: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The votes of all samples for some features, and each group's share of `‖V‖²` and `⟨V, trend⟩`."""
    measured = tl.program_id(0) * BM + tl.arange(0, BM)
    ks = tl.arange(0, QP)
    total = tl.zeros((QP, BM), dtype=tl.float32)
    for start in range(0, n, BN):
        rows = start + tl.arange(0, BN)
        inside = (rows < n)[:, None] & (measured < m)[None, :]
        block = tl.load(errors + rows[:, None] * m + measured[None, :], mask=inside, other=0.0)
        for k in range(Q):
            r_k = tl.load(r + rows * r_row + k * r_col, mask=rows < n, other=0.0)
            unit = tl.load(units + group_of(k, FIRST, SECOND) * n + rows, mask=rows < n, other=0.0)
            vote = tl.sum(block * (r_k * unit)[:, None], axis=0)
            total += tl.where((ks == k)[:, None], vote[None, :], 0.0)
    keep_votes(total, trend, votes, sums, measured, ks, m, Q, FIRST, SECOND)


@jit
def keep_votes(total, trend, votes, sums, measured, ks, m, Q: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """Write the votes for some features, and the sums over them that the gain needs, `(blocks, 2, GROUPS)`."""
    where = ks[:, None] * m + measured[None, :]
    inside = (ks < Q)[:, None] & (measured < m)[None, :]
    tl.store(votes + where, total, mask=inside)
    past = tl.load(trend + where, mask=inside, other=0.0)
    groups = tl.arange(0, GROUPS)
    theirs = group_of(ks, FIRST, SECOND)[:, None] == groups[None, :]
    square = tl.sum(tl.where(inside, total * total, 0.0), axis=1)
    product = tl.sum(tl.where(inside, total * past, 0.0), axis=1)
    here = sums + tl.program_id(0) * 2 * GROUPS + groups
    tl.store(here, tl.sum(tl.where(theirs, square[:, None], 0.0), axis=0))
    tl.store(here + GROUPS, tl.sum(tl.where(theirs, product[:, None], 0.0), axis=0))


@jit
def adaptive_gain(
    square, product, rows, prior, agreement, samples, step,
    WINDOW: tl.constexpr, BATCHES: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """`deconfound.gain.adaptive_gain` from `‖V‖²` and `⟨V, trend⟩`: gain, agreement, forget, samples."""
    others = tl.maximum(rows - 1.0, 0.0)
    within = (square - rows) / tl.maximum(rows * others, 1.0)
    undone = step / (1.0 + step * WINDOW)
    across = product / tl.maximum(rows, 1.0) + undone
    past = tl.minimum(samples, WINDOW)
    pairs = tl.maximum(others / 2.0 + past, 1.0)
    measured = tl.where(samples + others > 0, (others / 2.0 * within + past * across) / pairs, 1.0)

    average = rows / tl.maximum(samples + rows + prior, 1.0)
    recent = tl.maximum(average, tl.minimum(rows / WINDOW, 1.0 / BATCHES))
    agreement = agreement + (measured - agreement) * recent
    rho = tl.minimum(tl.maximum(agreement, 0.0), 1.0)
    gain = tl.maximum(rows * rho / (1.0 + others * rho), average)

    forget = tl.maximum(rows / tl.maximum(samples + rows, 1.0), tl.minimum(rows / WINDOW, 1.0))
    return gain, agreement, forget, tl.minimum(samples + rows, LONGEST)


@jit
def follow_trend(trend, votes, size, share, forget, BT: tl.constexpr):
    """`trend ← lerp(trend, share · votes, forget)`."""
    for start in range(0, size, BT):
        where = start + tl.arange(0, BT)
        past = tl.load(trend + where, mask=where < size, other=0.0)
        now = tl.load(votes + where, mask=where < size, other=0.0) * share
        tl.store(trend + where, past + (now - past) * forget, mask=where < size)


@jit
def sum_blocks(sums, blocks, BLOCKS: tl.constexpr):
    """`‖V‖²` and `⟨V, trend⟩` of each group from those of some features each."""
    block = tl.arange(0, BLOCKS)
    groups = tl.arange(0, GROUPS)
    here = sums + block[:, None] * 2 * GROUPS + groups[None, :]
    inside = (block < blocks)[:, None] & (groups < GROUPS)[None, :]
    square = tl.sum(tl.load(here, mask=inside, other=0.0), axis=0)
    return square, tl.sum(tl.load(here + GROUPS, mask=inside, other=0.0), axis=0)


@jit
def decide_step(
    sums, blocks, votes, gram, count, prior, agreement, samples, step, trend, numbers, rate, flag, skipped, fixed, m,
    Q: tl.constexpr, QP: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BLOCKS: tl.constexpr,
    BT: tl.constexpr, MODE: tl.constexpr, WINDOW: tl.constexpr, BATCHES: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """The step of each coefficient, capped by the Gram matrix, and the gain's new state.

    MODE 0 is the adaptive gain, 1 the plain average, 2 a fixed number. Where the votes are not finite no coefficient
    moves, the state stays and the batch counts as skipped.
    """
    groups = tl.arange(0, GROUPS)
    inside = groups < 3
    square, product = sum_blocks(sums, blocks, BLOCKS)
    rows = tl.load(count)
    seen = tl.load(samples)
    agreed = tl.load(agreement + groups, mask=inside, other=0.0)
    taken = tl.load(step + groups, mask=inside, other=0.0)
    start = tl.load(prior + groups, mask=inside, other=0.0)
    gain, new_agreed, forget, new_seen = adaptive_gain(
        square, product, rows, start, agreed, seen, taken, WINDOW, BATCHES, LONGEST
    )
    if MODE == 1:
        gain = tl.zeros((GROUPS,), dtype=tl.float32) + rows / tl.maximum(seen + rows, 1.0)
    if MODE == 2:
        gain = tl.zeros((GROUPS,), dtype=tl.float32) + fixed
    finite = tl.min(tl.where(is_finite(square) & is_finite(product), 1, 0), axis=0)
    usable = (finite > 0) & (rows > 0)

    ks = tl.arange(0, QP)
    there = (ks < Q)[:, None] & (ks < Q)[None, :]
    covariance = tl.load(gram + ks[:, None] * Q + ks[None, :], mask=there, other=0.0) / tl.maximum(rows, 1.0)
    away = covariance - tl.where(there & (ks[:, None] == ks[None, :]), 1.0, 0.0)
    size = tl.maximum(tl.sqrt(tl.sum(tl.sum(covariance * covariance, axis=1), axis=0)), TINY)
    near_white = 1.0 + tl.sqrt(tl.sum(tl.sum(away * away, axis=1), axis=0))
    capped = tl.minimum(gain, 1.0 / tl.minimum(size, near_white)) / tl.maximum(rows, 1.0)

    theirs = group_of(ks, FIRST, SECOND)[:, None] == groups[None, :]
    moves = tl.sum(tl.where(theirs, capped[None, :], 0.0), axis=1)
    tl.store(numbers + ks, tl.where(usable, moves, 0.0), mask=ks < Q)
    tl.store(numbers + Q, 1.0)
    tl.store(numbers + Q + 1, 1.0)
    tl.store(rate, tl.sum(tl.where(groups == 0, gain, 0.0), axis=0))
    tl.store(flag, tl.where(finite > 0, 0, 1))
    tl.store(skipped, tl.load(skipped) + tl.where(finite > 0, 0, 1))
    if usable:
        tl.store(agreement + groups, new_agreed, mask=inside)
        tl.store(step + groups, capped, mask=inside)
        tl.store(samples, new_seen)
        follow_trend(trend, votes, Q * m, 1.0 / tl.maximum(rows, 1.0), forget, BT)
