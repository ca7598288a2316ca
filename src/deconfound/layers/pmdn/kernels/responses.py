"""The bi-level average on the GPU: what `deconfound.layers.pmdn.gradient.follow` computes, in two kernels."""
# mypy: ignore-errors

from deconfound.layers.pmdn.kernels.gains import (
    GROUPS,
    TINY,
    adaptive_gain,
    comes_last,
    feature_of,
    follow_trend,
    keep_votes,
    load_measured,
    memory_order,
    start_counting,
    sum_blocks,
    sum_parts,
    take_over,
)
from deconfound.layers.pmdn.kernels.language import jit, tl
from deconfound.layers.pmdn.kernels.passes import add_up, is_finite, load_block, load_column, row_block


@jit
def measure_gradients(
    g, c, mean, gradients, squares, products, sizes, counter, n, d, m, apart, g_row,
    C_ROW: tl.constexpr, C_COL: tl.constexpr, Q: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    RUN: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`ĝ = n g` of some samples at some measured features, their share of `‖ĝ_i‖²`, `⟨c_i S, ĝ_i⟩` and `‖S‖²`."""
    start_counting(counter, EARLY)
    rows = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    measured = tl.program_id(1) * BM + tl.arange(0, BM)
    features = feature_of(measured, apart, RUN)
    inside = (rows < n)[:, None] & (measured < m)[None, :]
    places = memory_order(features, CHANNELS, POSITIONS)
    block = tl.load(g + rows[:, None] * g_row + places[None, :], mask=inside, other=0.0).to(tl.float32)
    block *= tl.full((), n, tl.float32)
    explained = tl.zeros((BN, BM), dtype=tl.float32)
    size = tl.zeros((BM,), dtype=tl.float32)
    for k in tl.static_range(Q):
        c_k = load_column(c, rows, k, n, C_ROW, C_COL, False)
        mean_k = load_measured(mean, k, d, features, measured, m)
        explained += c_k[:, None] * mean_k[None, :]
        size += mean_k * mean_k
    tl.store(gradients + rows[:, None] * m + measured[None, :], block, mask=inside)
    part = tl.program_id(1)
    tl.store(squares + part * n + rows, tl.sum(block * block, axis=1), mask=rows < n)
    tl.store(products + part * n + rows, tl.sum(block * explained, axis=1), mask=rows < n)
    if tl.program_id(0) == 0:
        tl.store(sizes + part, tl.sum(size, axis=0))


@jit
def follow_scale(
    squares, n, m, scale, spread, samples, PARTS: tl.constexpr,
    LOG_JUMP: tl.constexpr, SPREADS: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """The logarithm of the gradients' size and its spread after this batch, and whether they are finite."""
    square = tl.zeros((1024,), dtype=tl.float32)
    for start in range(0, n * PARTS, 1024):
        where = start + tl.arange(0, 1024)
        square += tl.load(squares + where, mask=where < n * PARTS, other=0.0)
    rows = tl.full((), n, tl.float32)
    size = tl.sqrt(tl.sum(square, axis=0) / (rows * m))
    finite = is_finite(size)
    change = tl.where(finite & (size > 0), tl.log(tl.maximum(size, TINY)) - scale, 0.0)
    jumped = tl.abs(change) > tl.maximum(SPREADS * spread / tl.sqrt(rows), LOG_JUMP)
    started = samples > 0
    weight = tl.maximum(rows / (samples + rows), 0.02)
    new_scale = scale + tl.where(started & (jumped == 0), weight * change, change)
    deviation = tl.minimum(tl.abs(change), LARGEST) * tl.sqrt(rows)
    new_spread = spread + (deviation - spread) * tl.where(started, weight, 0.0)
    return new_scale, new_spread, finite


@jit
def add_responses(
    gradients, c, mean, squares, products, sizes, scale, spread, samples, trend, votes, sums, n, d, m, apart,
    C_ROW: tl.constexpr, C_COL: tl.constexpr, Q: tl.constexpr, QP: tl.constexpr, PARTS: tl.constexpr, BA: tl.constexpr,
    BB: tl.constexpr, BM: tl.constexpr, RUN: tl.constexpr,
    LOG_JUMP: tl.constexpr, SPREADS: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """The votes `c_i ĝ_i − S`, each of length one, of all samples for some features."""
    log_size, _, _ = follow_scale(
        squares, n, m, tl.load(scale), tl.load(spread), tl.load(samples), PARTS, LOG_JUMP, SPREADS, LARGEST
    )
    unit = tl.exp(-log_size)
    size = tl.load(sizes)
    for part in tl.static_range(1, PARTS):
        size += tl.load(sizes + part)
    measured = tl.program_id(0) * BM + tl.arange(0, BM)
    ks = tl.arange(0, QP)[:, None, None]
    total = tl.zeros((QP, BB, BM), dtype=tl.float32)
    lengths = tl.zeros((BA * BB,), dtype=tl.float32)
    for start in range(0, n, BA * BB):
        rows = row_block(start, BA, BB)
        block = load_block(gradients, rows, measured, n, m, m, True, True, False, "")
        norm = tl.zeros((BA * BB,), dtype=tl.float32)
        for k in tl.static_range(Q):
            c_k = load_column(c, rows, k, n, C_ROW, C_COL, False)
            norm += c_k * c_k
        parts = norm * sum_parts(squares, rows, n, PARTS) * unit * unit + size
        squared = parts - 2.0 * sum_parts(products, rows, n, PARTS) * unit
        # Where the two parts cancel, what is left is rounding and must not count as a full vote.
        length = 1.0 / tl.sqrt(tl.maximum(tl.maximum(squared, 1e-6 * parts), TINY))
        length = tl.where(rows < n, length, 0.0)
        lengths += length
        for k in tl.static_range(Q):
            vote = load_column(c, rows, k, n, C_ROW, C_COL, False) * length * unit
            total += tl.where(ks == k, add_up(block * vote[:, None], BA, BB, BM)[None, :, :], 0.0)
    here = tl.arange(0, QP)[:, None]
    where = here.to(tl.int64) * d + feature_of(measured, apart, RUN)[None, :]
    old = tl.load(mean + where, mask=(here < Q) & (measured < m)[None, :], other=0.0)
    result = tl.sum(total, axis=1) - tl.sum(lengths, axis=0) * old
    keep_votes(result, trend, votes, sums, measured, m, Q, QP, QP, QP)


@jit
def decide_response(
    sums, votes, squares, agreement, samples, step, trend, scale, spread, numbers, rate, blocks, n, m, positions, prior,
    Q: tl.constexpr, QP: tl.constexpr, PARTS: tl.constexpr, BLOCKS: tl.constexpr, BT: tl.constexpr, FIXED: tl.constexpr,
    WINDOW: tl.constexpr, BATCHES: tl.constexpr, LONGEST: tl.constexpr,
    LOG_JUMP: tl.constexpr, SPREADS: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """How far S moves towards this batch, the units of S, and the new state of both."""
    groups = tl.arange(0, GROUPS)
    inside = groups < 1
    square, product = sum_blocks(sums, blocks, BLOCKS)
    rows = tl.full((), n, tl.float32)
    seen = tl.load(samples)
    old_scale = tl.load(scale)
    new_scale, new_spread, finite = follow_scale(
        squares, n, m, old_scale, tl.load(spread), seen, PARTS, LOG_JUMP, SPREADS, LARGEST
    )
    agreed = tl.load(agreement + groups, mask=inside, other=0.0)
    taken = tl.load(step + groups, mask=inside, other=0.0)
    gain, new_agreed, forget, new_seen = adaptive_gain(
        square, product, rows, prior, agreed, seen, taken, WINDOW, BATCHES, LONGEST
    )
    counted = tl.where(is_finite(square) & is_finite(product), 1, 0)
    usable = finite & (tl.min(counted, axis=0) > 0)
    if FIXED:  # noqa: SIM108 (only what is chosen is compiled)
        share = tl.load(rate)
    else:
        share = tl.sum(tl.where(inside, gain, 0.0), axis=0)
    log_size = tl.where(usable, new_scale, old_scale)
    ks = tl.arange(0, QP)
    tl.store(numbers + ks, tl.zeros((QP,), dtype=tl.float32) + tl.where(usable, share, 0.0), mask=ks < Q)
    tl.store(numbers + Q, tl.exp(-log_size))
    tl.store(numbers + Q + 1, tl.exp(log_size) / (rows * positions))
    if usable:
        tl.store(agreement + groups, new_agreed, mask=inside)
        tl.store(step + groups, gain / rows, mask=inside)
        tl.store(samples, new_seen)
        tl.store(scale, new_scale)
        tl.store(spread, new_spread)
        follow_trend(trend, votes, Q * m, 1.0 / rows, forget, BT)


@jit
def vote_and_decide(
    gradients, c, mean, squares, products, sizes, votes, sums, counter, agreement, samples, step, trend, scale, spread,
    numbers, rate, n, d, m, apart, programs, positions, prior, C_ROW: tl.constexpr, C_COL: tl.constexpr,
    Q: tl.constexpr, QP: tl.constexpr, PARTS: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BM: tl.constexpr,
    RUN: tl.constexpr, BLOCKS: tl.constexpr, BT: tl.constexpr, FIXED: tl.constexpr, WINDOW: tl.constexpr,
    BATCHES: tl.constexpr, LONGEST: tl.constexpr, LOG_JUMP: tl.constexpr, SPREADS: tl.constexpr, LARGEST: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """`add_responses`, and in the program that comes last `decide_response`."""
    take_over(EARLY)
    add_responses(
        gradients, c, mean, squares, products, sizes, scale, spread, samples, trend, votes, sums, n, d, m, apart,
        C_ROW, C_COL, Q, QP, PARTS, BA, BB, BM, RUN, LOG_JUMP, SPREADS, LARGEST,
    )  # fmt: skip
    if comes_last(counter, programs):
        decide_response(
            sums, votes, squares, agreement, samples, step, trend, scale, spread, numbers, rate, programs, n, m,
            positions, prior, Q, QP, PARTS, BLOCKS, BT, FIXED, WINDOW, BATCHES, LONGEST, LOG_JUMP, SPREADS, LARGEST,
        )  # fmt: skip
