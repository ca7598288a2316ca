"""The gain on the GPU: what `deconfound.layers.pmdn.gain` computes, in two kernels on the measured features.

Each formula here is one of `deconfound.layers.pmdn.gain` or `gradient.py` and is tested against it. The first kernel
collects the measured features. Programs of the second take some of them and add up the votes of all samples, and the
one that comes last turns the votes into a gain and commits the state.
"""
# mypy: ignore-errors

from deconfound.layers.pmdn.kernels.language import jit, let_next_begin, tl, wait_for_previous
from deconfound.layers.pmdn.kernels.passes import add_up, is_finite, load_block, load_column, row_block

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
def feature_of(measured, apart, RUN: tl.constexpr):
    """The features that are measured: the first RUN of every `apart`."""
    return measured // RUN * apart + measured % RUN


@jit
def start_counting(counter, EARLY: tl.constexpr):
    """For the next kernel, whose programs are counted; with EARLY they may begin, and wait in `take_over`."""
    if EARLY:
        let_next_begin()
    if tl.program_id(0) + tl.program_id(1) == 0:
        tl.store(counter, 0.0)


@jit
def take_over(EARLY: tl.constexpr):
    """Wait until the kernel before has ended, where this one began before that, and let the next begin as well."""
    if EARLY:
        wait_for_previous()
        let_next_begin()


@jit
def comes_last(counter, programs):
    """Whether all other programs have come here before, so that what they wrote can be read."""
    tl.debug_barrier()  # what this program's threads wrote comes before it is counted
    return tl.atomic_add(counter, 1.0) == programs - 1


@jit
def group_of(k, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """The group of a coefficient, for groups that start at 0, FIRST and SECOND."""
    return tl.where(k >= FIRST, 1, 0) + tl.where(k >= SECOND, 1, 0)


@jit
def measure_errors(
    x, r, weights, coefficients, errors, lengths, units, counter, n, d, m, apart, x_row, R_ROW: tl.constexpr,
    R_COL: tl.constexpr, Q: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, RUN: tl.constexpr, WEIGHTED: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """`e = f − Rβ` of some samples at some measured features, and their share of `‖e_i‖²`.

    And for each group what scales a sample's regressors to length one, times its weight, `(3, n)`.
    """
    start_counting(counter, EARLY)
    rows = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    measured = tl.program_id(1) * BM + tl.arange(0, BM)
    features = feature_of(measured, apart, RUN)
    inside = (rows < n)[:, None] & (measured < m)[None, :]
    places = memory_order(features, CHANNELS, POSITIONS)
    block = tl.load(x + rows[:, None] * x_row + places[None, :], mask=inside, other=0.0).to(tl.float32)
    squares = (tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32))
    for k in tl.static_range(Q):
        r_k = load_column(r, rows, k, n, R_ROW, R_COL, False)
        block -= r_k[:, None] * load_measured(coefficients, k, d, features, measured, m)[None, :]
        squares = add_square(squares, r_k, k, FIRST, SECOND)
    tl.store(errors + rows[:, None] * m + measured[None, :], block, mask=inside)
    length = tl.sum(tl.where(inside, block * block, 0.0), axis=1)
    tl.store(lengths + tl.program_id(1) * n + rows, length, mask=rows < n)
    if tl.program_id(1) == 0:
        for group in tl.static_range(3):
            unit = 1.0 / tl.maximum(tl.sqrt(squares[group]), 1e-12)
            if WEIGHTED:
                unit *= load_column(weights, rows, 0, n, 1, 0, False)
            tl.store(units + group * n + rows, unit, mask=rows < n)


@jit
def add_square(squares, r_k, k: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """The sums of squares of three groups, with the square of regressor k in its own."""
    square = r_k * r_k
    if k < FIRST:
        found = (squares[0] + square, squares[1], squares[2])
    elif k < SECOND:
        found = (squares[0], squares[1] + square, squares[2])
    else:
        found = (squares[0], squares[1], squares[2] + square)
    return found


@jit
def load_measured(coefficients, k, d, features, measured, m):
    """The coefficients of row k at some measured features."""
    return tl.load(coefficients + tl.full((), k, tl.int64) * d + features, mask=measured < m, other=0.0)


@jit
def sum_parts(parts, rows, n, PARTS: tl.constexpr):
    """The sums of what programs found for some samples each, `(PARTS, n)`."""
    total = tl.load(parts + rows, mask=rows < n, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * n + rows, mask=rows < n, other=0.0)
    return total


@jit
def add_votes(
    errors, r, units, lengths, trend, votes, sums, n, m, R_ROW: tl.constexpr, R_COL: tl.constexpr,
    Q: tl.constexpr, QP: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, PARTS: tl.constexpr,
    BA: tl.constexpr, BB: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The votes of all samples for some features, and each group's share of `‖V‖²` and `⟨V, trend⟩`.

    A sample's vote is `R_i e_i`, scaled to length one in each group.
    """
    measured = tl.program_id(0) * BM + tl.arange(0, BM)
    ks = tl.arange(0, QP)[:, None, None]
    total = tl.zeros((QP, BB, BM), dtype=tl.float32)
    for start in range(0, n, BA * BB):
        rows = row_block(start, BA, BB)
        block = load_block(errors, rows, measured, n, m, m, True, True, False, "")
        length = sum_parts(lengths, rows, n, PARTS)
        unit = 1.0 / tl.maximum(tl.sqrt(length), 1e-12)
        block *= tl.where(length == length, unit, length)[:, None]  # a NaN must show
        for k in tl.static_range(Q):
            scale = load_column(units, rows, (k >= FIRST) + (k >= SECOND), n, 1, n, False)
            vote = load_column(r, rows, k, n, R_ROW, R_COL, False) * scale
            total += tl.where(ks == k, add_up(block * vote[:, None], BA, BB, BM)[None, :, :], 0.0)
    keep_votes(tl.sum(total, axis=1), trend, votes, sums, measured, m, Q, QP, FIRST, SECOND)


@jit
def keep_votes(
    total, trend, votes, sums, measured, m,
    Q: tl.constexpr, QP: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Write the votes for some features, and the sums over them that the gain needs, `(blocks, 2, GROUPS)`."""
    ks = tl.arange(0, QP)
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
    """`deconfound.layers.pmdn.gain.adaptive_gain` from `‖V‖²` and `⟨V, trend⟩`: gain, agreement, forget, samples."""
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
    sums, votes, gram, count, prior, agreement, samples, step, trend, numbers, rate, flag, skipped, blocks, fixed, m,
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


@jit
def vote_and_decide(
    errors, r, units, lengths, votes, sums, counter, gram, count, prior, agreement, samples, step, trend, numbers, rate,
    flag, skipped, n, m, programs, fixed, R_ROW: tl.constexpr, R_COL: tl.constexpr, Q: tl.constexpr, QP: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr, PARTS: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr,
    BM: tl.constexpr, BLOCKS: tl.constexpr, BT: tl.constexpr, MODE: tl.constexpr, WINDOW: tl.constexpr,
    BATCHES: tl.constexpr, LONGEST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`add_votes`, and in the program that comes last `decide_step`."""
    take_over(EARLY)
    add_votes(
        errors, r, units, lengths, trend, votes, sums, n, m, R_ROW, R_COL, Q, QP, FIRST, SECOND, PARTS, BA, BB, BM
    )
    if comes_last(counter, programs):
        decide_step(
            sums, votes, gram, count, prior, agreement, samples, step, trend, numbers, rate, flag, skipped, programs,
            fixed, m, Q, QP, FIRST, SECOND, BLOCKS, BT, MODE, WINDOW, BATCHES, LONGEST,
        )  # fmt: skip
