"""The gain on the GPU: what `deconfound.layers.pmdn.gain` computes, in two kernels on the sampled features.

Each formula here is one of `deconfound.layers.pmdn.gain` or `update` and is tested against it. The first kernel
collects the errors of the sampled features. Blocks of the second take some of these features, sum the directions of all
samples, and the last block to finish reduces what all found to a gain and updates the state.
"""
# mypy: ignore-errors

from deconfound.layers.pmdn.kernels.blocks import feature_of, is_last_block, memory_order, start_counting, take_over
from deconfound.layers.pmdn.kernels.language import jit, tl
from deconfound.layers.pmdn.kernels.passes import add_products, add_up, is_finite, load_block, load_column, row_block

# Groups of coefficients that have a gain each, as a power of two.
GROUPS = tl.constexpr(4)
TINY = tl.constexpr(1e-30)


@jit
def group_of(k, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """The group of a coefficient, for groups that start at 0, FIRST and SECOND."""
    return tl.where(k >= FIRST, 1, 0) + tl.where(k >= SECOND, 1, 0)


@jit
def sample_errors(
    x, r, weights, coefficients, errors, lengths, counter, n, d, m, apart, x_row, R_ROW: tl.constexpr,
    R_COL: tl.constexpr, Q: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, RUN: tl.constexpr, WEIGHTED: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """`e = f − Rβ` of some samples at some sampled features.

    And for each group the squared length of a sample's regressors, times its squared weight, `(n, GROUPS)`.
    """
    start_counting(counter, EARLY)
    rows = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    sampled = tl.program_id(1) * BM + tl.arange(0, BM)
    features = feature_of(sampled, apart, RUN)
    inside = (rows < n)[:, None] & (sampled < m)[None, :]
    places = memory_order(features, CHANNELS, POSITIONS)
    block = tl.load(x + rows[:, None] * x_row + places[None, :], mask=inside, other=0.0).to(tl.float32)
    squares = (tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32))
    for k in tl.static_range(Q):
        r_k = load_column(r, rows, k, n, R_ROW, R_COL, False)
        block -= r_k[:, None] * load_sampled(coefficients, k, d, features, sampled, m)[None, :]
        squares = add_square(squares, r_k, k, FIRST, SECOND)
    tl.store(errors + rows[:, None] * m + sampled[None, :], block, mask=inside)
    if tl.program_id(1) == 0:
        weight = tl.full((BN,), 1.0, tl.float32)
        if WEIGHTED:
            weight = load_column(weights, rows, 0, n, 1, 0, False)
        for group in tl.static_range(3):
            tl.store(lengths + rows * GROUPS + group, squares[group] * weight * weight, mask=rows < n)


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
def load_sampled(coefficients, k, d, features, sampled, m):
    """The coefficients of row k at some sampled features."""
    return tl.load(coefficients + tl.full((), k, tl.int64) * d + features, mask=sampled < m, other=0.0)


@jit
def forgetting(samples, rows, WINDOW: tl.constexpr):
    """`deconfound.layers.pmdn.gain.forgetting`."""
    count = tl.maximum(rows, TINY)
    return tl.maximum(count / (samples + count), tl.minimum(count / WINDOW, 1.0))


@jit
def new_scale(scale, scales, square, share, forget, sampled, m):
    """The running mean square of some features' errors after this batch, also written to `scales`; its inverse."""
    old = tl.load(scale + sampled, mask=sampled < m, other=0.0)
    new = old + (square * share - old) * forget
    tl.store(scales + sampled, new, mask=sampled < m)
    return tl.where(sampled < m, 1.0 / tl.maximum(new, TINY), 0.0)


@jit
def sum_directions(
    errors, weighted, lengths, scale, trend, directions, scales, sums, counts, samples, n, m, R_ROW: tl.constexpr,
    R_COL: tl.constexpr, Q: tl.constexpr, QP: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    BA: tl.constexpr, BB: tl.constexpr, BM: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """The directions of all samples for some features, their scale, and the features' share of each group's sums."""
    sampled = tl.program_id(0) * BM + tl.arange(0, BM)
    groups = tl.arange(0, GROUPS)
    total = tl.zeros((QP, BB, BM), dtype=tl.float32)
    squares = tl.zeros((GROUPS, BB, BM), dtype=tl.float32)
    for start in range(0, n, BA * BB):
        rows = row_block(start, BA, BB)
        block = load_block(errors, rows, sampled, n, m, m, True, True, False, "")
        total = add_products(total, block, weighted, rows, n, R_ROW, R_COL, Q, QP, BA, BB, BM, False)
        for group in tl.static_range(3):
            length = load_column(lengths, rows, group, n, GROUPS, 1, False)
            own = add_up(block * block * length[:, None], BA, BB, BM)
            squares += tl.where((groups == group)[:, None, None], own[None, :, :], 0.0)
    square = tl.sum(squares, axis=1)
    of_features = tl.sum(tl.where((groups == 2)[:, None], square, 0.0), axis=0)  # the intercept's regressor is 1
    forget = forgetting(tl.load(samples), tl.load(counts), WINDOW)
    inverse = new_scale(scale, scales, of_features, 1.0 / tl.maximum(tl.load(counts + 1), TINY), forget, sampled, m)
    own = tl.sum(square * inverse[None, :], axis=1)
    keep_sums(tl.sum(total, axis=1), own, inverse, trend, directions, sums, sampled, m, Q, QP, FIRST, SECOND)


@jit
def keep_sums(
    total, own, inverse, trend, directions, sums, sampled, m,
    Q: tl.constexpr, QP: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Write the directions of some features, and the sums over them that the gain needs, `(blocks, 3, GROUPS)`."""
    ks = tl.arange(0, QP)
    where = ks[:, None] * m + sampled[None, :]
    inside = (ks < Q)[:, None] & (sampled < m)[None, :]
    tl.store(directions + where, total, mask=inside)
    past = tl.load(trend + where, mask=inside, other=0.0)
    groups = tl.arange(0, GROUPS)
    theirs = group_of(ks, FIRST, SECOND)[:, None] == groups[None, :]
    square = tl.sum(tl.where(inside, total * total * inverse[None, :], 0.0), axis=1)
    product = tl.sum(tl.where(inside, total * past * inverse[None, :], 0.0), axis=1)
    here = sums + tl.program_id(0) * 3 * GROUPS + groups
    tl.store(here, tl.sum(tl.where(theirs, square[:, None], 0.0), axis=0))
    tl.store(here + GROUPS, tl.sum(tl.where(theirs, product[:, None], 0.0), axis=0))
    tl.store(here + 2 * GROUPS, own)


@jit
def adaptive_gain(
    square, product, own, rows, squares, prior, samples, agreement, step, length,
    WINDOW: tl.constexpr, BATCHES: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """`deconfound.layers.pmdn.gain.adaptive_gain`: gain, samples, agreement and squared length."""
    count = tl.maximum(rows, TINY)
    effective = count * count / tl.maximum(squares, TINY)
    others = tl.maximum(effective - 1.0, 0.0)
    length = length + (own / tl.maximum(squares, TINY) - length) * forgetting(samples, rows, WINDOW)
    unit = tl.maximum(length, TINY)

    within = (square - own) / tl.maximum(count * count - squares, TINY) / unit
    undone = step / (1.0 + step * WINDOW)
    across = product / count / unit + undone
    remembered = tl.minimum(samples, WINDOW)
    pairs = tl.maximum(others / 2.0 + remembered, 1.0)
    measured = (tl.where(others > 0, others / 2.0 * within, 0.0) + remembered * across) / pairs
    measured = tl.where(samples + others > 0, measured, 1.0)

    average = count / (samples + count + prior)
    recent = tl.maximum(average, tl.minimum(count / WINDOW, 1.0 / BATCHES))
    agreement = agreement + (measured - agreement) * recent
    rho = tl.minimum(tl.maximum(agreement, 0.0), 1.0)
    gain = tl.maximum(effective * rho / (1.0 + others * rho), average)
    return gain, tl.minimum(samples + count, LONGEST), agreement, length


@jit
def update_trend(trend, directions, scale, scales, Q, m, share, forget, BT: tl.constexpr):
    """`trend ← lerp(trend, share · directions, forget)`, and the new scale."""
    for start in range(0, Q * m, BT):
        where = start + tl.arange(0, BT)
        past = tl.load(trend + where, mask=where < Q * m, other=0.0)
        now = tl.load(directions + where, mask=where < Q * m, other=0.0) * share
        tl.store(trend + where, past + (now - past) * forget, mask=where < Q * m)
    for start in range(0, m, BT):
        where = start + tl.arange(0, BT)
        tl.store(scale + where, tl.load(scales + where, mask=where < m, other=0.0), mask=where < m)


@jit
def sum_blocks(sums, blocks, BLOCKS: tl.constexpr):
    """The three sums of each group from those of some features each."""
    block = tl.arange(0, BLOCKS)
    groups = tl.arange(0, GROUPS)
    here = sums + block[:, None] * 3 * GROUPS + groups[None, :]
    inside = (block < blocks)[:, None] & (groups < GROUPS)[None, :]
    square = tl.sum(tl.load(here, mask=inside, other=0.0), axis=0)
    product = tl.sum(tl.load(here + GROUPS, mask=inside, other=0.0), axis=0)
    return square, product, tl.sum(tl.load(here + 2 * GROUPS, mask=inside, other=0.0), axis=0)


@jit
def all_finite(square, product, own):
    """Whether the sums of every group are finite."""
    return tl.min(tl.where(is_finite(square) & is_finite(product) & is_finite(own), 1, 0), axis=0) > 0


@jit
def decide_step(
    sums, directions, scales, gram, counts, start, state, trend, scale, numbers, rate, flag, skipped, blocks, fixed, m,
    Q: tl.constexpr, QP: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BLOCKS: tl.constexpr,
    BT: tl.constexpr, MODE: tl.constexpr, WINDOW: tl.constexpr, BATCHES: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """The step of each coefficient, capped by the Gram matrix, and the gain's new state.

    MODE 0 is the adaptive gain, 1 the plain average, 2 a fixed number. Where the sums are not finite no coefficient
    moves, the state stays and the batch counts as skipped.
    """
    groups = tl.arange(0, GROUPS)
    inside = groups < 3
    square, product, own = sum_blocks(sums, blocks, BLOCKS)
    rows = tl.load(counts)
    seen = tl.load(state)
    prior = tl.load(start + groups, mask=inside, other=0.0)
    gain, new_seen, agreed, length = adaptive_gain(
        square, product, own, rows, tl.load(counts + 1), prior, seen,
        tl.load(state + 1 + groups, mask=inside, other=0.0), tl.load(state + 4 + groups, mask=inside, other=0.0),
        tl.load(state + 7 + groups, mask=inside, other=0.0), WINDOW, BATCHES, LONGEST,
    )  # fmt: skip
    if MODE == 1:
        gain = tl.zeros((GROUPS,), dtype=tl.float32) + rows / tl.maximum(seen + rows, TINY)
    if MODE == 2:
        gain = tl.zeros((GROUPS,), dtype=tl.float32) + fixed
    finite = all_finite(square, product, own)
    usable = finite & (rows > 0)

    ks = tl.arange(0, QP)
    there = (ks < Q)[:, None] & (ks < Q)[None, :]
    count = tl.maximum(rows, TINY)
    covariance = tl.load(gram + ks[:, None] * Q + ks[None, :], mask=there, other=0.0) / count
    away = covariance - tl.where(there & (ks[:, None] == ks[None, :]), 1.0, 0.0)
    size = tl.maximum(tl.sqrt(tl.sum(tl.sum(covariance * covariance, axis=1), axis=0)), TINY)
    near_white = 1.0 + tl.sqrt(tl.sum(tl.sum(away * away, axis=1), axis=0))
    capped = tl.minimum(gain, 1.0 / tl.minimum(size, near_white)) / count

    theirs = group_of(ks, FIRST, SECOND)[:, None] == groups[None, :]
    moves = tl.sum(tl.where(theirs, capped[None, :], 0.0), axis=1)
    first = 0.0
    if MODE < 2:  # the first batch moves the intercept to its mean, and then the others
        first = tl.where(seen == 0, 1.0 / count, 0.0)
        moves = tl.where(ks == Q - 1, tl.maximum(moves, first), moves)  # a step is at most 1 / n
    tl.store(numbers + ks, tl.where(usable, moves, 0.0), mask=ks < Q)
    tl.store(numbers + Q, 1.0)
    tl.store(numbers + Q + 1, 1.0)
    tl.store(numbers + Q + 2, first)
    tl.store(rate, tl.where(usable, tl.sum(tl.where(groups == 0, gain, 0.0), axis=0), 0.0))
    tl.store(flag, tl.where(finite, 0, 1))
    tl.store(skipped, tl.load(skipped) + tl.where(finite, 0, 1))
    if usable:
        tl.store(state, new_seen)
        tl.store(state + 1 + groups, agreed, mask=inside)
        tl.store(state + 4 + groups, capped, mask=inside)
        tl.store(state + 7 + groups, length, mask=inside)
        update_trend(trend, directions, scale, scales, Q, m, 1.0 / count, forgetting(seen, rows, WINDOW), BT)


@jit
def direct_and_decide(
    errors, weighted, lengths, directions, scales, sums, counter, gram, counts, start, state, trend, scale, numbers,
    rate, flag, skipped, n, m, blocks, fixed, R_ROW: tl.constexpr, R_COL: tl.constexpr, Q: tl.constexpr,
    QP: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BM: tl.constexpr,
    BLOCKS: tl.constexpr, BT: tl.constexpr, MODE: tl.constexpr, WINDOW: tl.constexpr, BATCHES: tl.constexpr,
    LONGEST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`sum_directions`, and in the last block to finish `decide_step`."""
    take_over(EARLY)
    sum_directions(
        errors, weighted, lengths, scale, trend, directions, scales, sums, counts, state, n, m, R_ROW, R_COL, Q, QP,
        FIRST, SECOND, BA, BB, BM, WINDOW,
    )  # fmt: skip
    if is_last_block(counter, blocks):
        decide_step(
            sums, directions, scales, gram, counts, start, state, trend, scale, numbers, rate, flag, skipped, blocks,
            fixed, m, Q, QP, FIRST, SECOND, BLOCKS, BT, MODE, WINDOW, BATCHES, LONGEST,
        )  # fmt: skip
