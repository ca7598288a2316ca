"""The implicit gradient on the GPU: what `deconfound.layers.pmdn.gradient.update` computes, in two kernels."""
# mypy: ignore-errors

from deconfound.layers.pmdn.kernels.blocks import feature_of, is_last_block, memory_order, start_counting, take_over
from deconfound.layers.pmdn.kernels.gain_kernels import (
    GROUPS,
    TINY,
    adaptive_gain,
    all_finite,
    forgetting,
    keep_sums,
    new_scale,
    sum_blocks,
    update_trend,
)
from deconfound.layers.pmdn.kernels.language import jit, tl
from deconfound.layers.pmdn.kernels.passes import add_products, add_up, is_finite, load_block, load_column, row_block


@jit
def sample_gradients(
    g, gradients, squares, counter, n, d, m, apart, g_row, BN: tl.constexpr, BM: tl.constexpr, RUN: tl.constexpr,
    CHANNELS: tl.constexpr, POSITIONS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`ĝ = n g` of some samples at some sampled features, and their share of `‖ĝ_i‖²`."""
    start_counting(counter, EARLY)
    rows = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    sampled = tl.program_id(1) * BM + tl.arange(0, BM)
    inside = (rows < n)[:, None] & (sampled < m)[None, :]
    places = memory_order(feature_of(sampled, apart, RUN), CHANNELS, POSITIONS)
    block = tl.load(g + rows[:, None] * g_row + places[None, :], mask=inside, other=0.0).to(tl.float32)
    block *= tl.full((), n, tl.float32)
    tl.store(gradients + rows[:, None] * m + sampled[None, :], block, mask=inside)
    tl.store(squares + tl.program_id(1) * n + rows, tl.sum(block * block, axis=1), mask=rows < n)


@jit
def update_size(
    squares, n, m, size, spread, samples, PARTS: tl.constexpr,
    LOG_JUMP: tl.constexpr, SPREADS: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """The logarithm of the gradients' size and its spread after this batch, and whether they are finite."""
    square = tl.zeros((1024,), dtype=tl.float32)
    for start in range(0, n * PARTS, 1024):
        where = start + tl.arange(0, 1024)
        square += tl.load(squares + where, mask=where < n * PARTS, other=0.0)
    rows = tl.full((), n, tl.float32)
    mean = tl.sum(square, axis=0) / (rows * m)
    finite = is_finite(mean)
    change = tl.where(finite & (mean > 0), 0.5 * tl.log(tl.maximum(mean, TINY)) - size, 0.0)
    jumped = tl.abs(change) > tl.maximum(SPREADS * spread / tl.sqrt(rows), LOG_JUMP)
    started = samples > 0
    weight = tl.maximum(rows / (samples + rows), 0.02)
    new_size = size + tl.where(started & (jumped == 0), weight * change, change)
    deviation = tl.minimum(tl.abs(change), LARGEST) * tl.sqrt(rows)
    new_spread = spread + (deviation - spread) * tl.where(started, weight, 0.0)
    return new_size, new_spread, finite


@jit
def sum_gradient_directions(
    gradients, c, mean, squares, size, state, trend, scale, directions, scales, sums, n, d, m, apart,
    C_ROW: tl.constexpr, C_COL: tl.constexpr, Q: tl.constexpr, QP: tl.constexpr, PARTS: tl.constexpr, BA: tl.constexpr,
    BB: tl.constexpr, BM: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr,
    LOG_JUMP: tl.constexpr, SPREADS: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """The directions `c_i ĝ_i − S` of all samples for some features, and the features' share of the sums."""
    log_size, _, _ = update_size(
        squares, n, m, tl.load(size), tl.load(size + 1), tl.load(state), PARTS, LOG_JUMP, SPREADS, LARGEST
    )
    unit = tl.exp(-log_size)
    sampled = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.zeros((QP, BB, BM), dtype=tl.float32)
    plain = tl.zeros((BB, BM), dtype=tl.float32)
    long = tl.zeros((BB, BM), dtype=tl.float32)
    for start in range(0, n, BA * BB):
        rows = row_block(start, BA, BB)
        block = load_block(gradients, rows, sampled, n, m, m, True, True, False, "")
        total = add_products(total, block, c, rows, n, C_ROW, C_COL, Q, QP, BA, BB, BM, False)
        norm = tl.zeros((BA * BB,), dtype=tl.float32)
        for k in tl.static_range(Q):
            c_k = load_column(c, rows, k, n, C_ROW, C_COL, False)
            norm += c_k * c_k
        plain += add_up(block * block, BA, BB, BM)
        long += add_up(block * block * norm[:, None], BA, BB, BM)
    rows_seen = tl.full((), n, tl.float32)
    here = tl.arange(0, QP)[:, None]
    where = here.to(tl.int64) * d + feature_of(sampled, apart, RUN)[None, :]
    old = tl.load(mean + where, mask=(here < Q) & (sampled < m)[None, :], other=0.0)
    towards = tl.sum(total, axis=1) * unit
    forget = forgetting(tl.load(state), rows_seen, WINDOW)
    square = unit * unit * tl.sum(plain, axis=0)
    inverse = new_scale(scale, scales, square, 1.0 / rows_seen, forget, sampled, m)
    own = tl.sum(long, axis=0) * unit * unit
    own += tl.sum(rows_seen * old * old - 2.0 * towards * old, axis=0)
    groups = tl.arange(0, GROUPS)
    of_group = tl.where(groups == 0, tl.sum(own * inverse, axis=0), 0.0)
    keep_sums(
        towards - rows_seen * old, of_group, inverse, trend, directions, sums, sampled, m, Q, QP, QP, QP
    )  # fmt: skip


@jit
def decide_average(
    sums, directions, scales, squares, size, state, trend, scale, numbers, rate, blocks, n, m, positions, prior,
    Q: tl.constexpr, QP: tl.constexpr, PARTS: tl.constexpr, BLOCKS: tl.constexpr, BT: tl.constexpr, FIXED: tl.constexpr,
    WINDOW: tl.constexpr, BATCHES: tl.constexpr, LONGEST: tl.constexpr,
    LOG_JUMP: tl.constexpr, SPREADS: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """How far S moves towards this batch, the units of S, and the new state of both."""
    groups = tl.arange(0, GROUPS)
    inside = groups < 1
    square, product, own = sum_blocks(sums, blocks, BLOCKS)
    rows = tl.full((), n, tl.float32)
    seen = tl.load(state)
    old_size = tl.load(size)
    new_size, new_spread, finite = update_size(
        squares, n, m, old_size, tl.load(size + 1), seen, PARTS, LOG_JUMP, SPREADS, LARGEST
    )
    gain, new_seen, agreed, length = adaptive_gain(
        square, product, tl.maximum(own, 0.0), rows, rows, prior, seen,
        tl.load(state + 1 + groups, mask=inside, other=0.0), tl.load(state + 2 + groups, mask=inside, other=0.0),
        tl.load(state + 3 + groups, mask=inside, other=0.0), WINDOW, BATCHES, LONGEST,
    )  # fmt: skip
    usable = finite & all_finite(square, product, own)
    if FIXED:  # noqa: SIM108 (only what is chosen is compiled)
        share = tl.load(rate)
    else:
        share = tl.sum(tl.where(inside, gain, 0.0), axis=0)
    log_size = tl.where(usable, new_size, old_size)
    ks = tl.arange(0, QP)
    tl.store(numbers + ks, tl.zeros((QP,), dtype=tl.float32) + tl.where(usable, share, 0.0), mask=ks < Q)
    tl.store(numbers + Q, tl.exp(-log_size))
    tl.store(numbers + Q + 1, tl.exp(log_size) / (rows * positions))
    if usable:
        tl.store(state, new_seen)
        tl.store(state + 1 + groups, agreed, mask=inside)
        tl.store(state + 2 + groups, gain / rows, mask=inside)
        tl.store(state + 3 + groups, length, mask=inside)
        tl.store(size, new_size)
        tl.store(size + 1, new_spread)
        update_trend(trend, directions, scale, scales, Q, m, 1.0 / rows, forgetting(seen, rows, WINDOW), BT)


@jit
def direct_and_average(
    gradients, c, mean, squares, directions, scales, sums, counter, size, state, trend, scale, numbers, rate,
    n, d, m, apart, blocks, positions, prior, C_ROW: tl.constexpr, C_COL: tl.constexpr,
    Q: tl.constexpr, QP: tl.constexpr, PARTS: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BM: tl.constexpr,
    RUN: tl.constexpr, BLOCKS: tl.constexpr, BT: tl.constexpr, FIXED: tl.constexpr, WINDOW: tl.constexpr,
    BATCHES: tl.constexpr, LONGEST: tl.constexpr, LOG_JUMP: tl.constexpr, SPREADS: tl.constexpr, LARGEST: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """`sum_gradient_directions`, and in the last block to finish `decide_average`."""
    take_over(EARLY)
    sum_gradient_directions(
        gradients, c, mean, squares, size, state, trend, scale, directions, scales, sums, n, d, m, apart, C_ROW, C_COL,
        Q, QP, PARTS, BA, BB, BM, RUN, WINDOW, LOG_JUMP, SPREADS, LARGEST,
    )  # fmt: skip
    if is_last_block(counter, blocks):
        decide_average(
            sums, directions, scales, squares, size, state, trend, scale, numbers, rate, blocks, n, m, positions, prior,
            Q, QP, PARTS, BLOCKS, BT, FIXED, WINDOW, BATCHES, LONGEST, LOG_JUMP, SPREADS, LARGEST,
        )  # fmt: skip
