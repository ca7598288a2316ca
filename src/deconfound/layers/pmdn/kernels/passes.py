"""The passes over all features: project on regressors, move the coefficients, subtract."""
# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton knows no unpacking of tuples)

from deconfound.layers.pmdn.kernels.language import jit, tl

# Names in capitals are known when a kernel is compiled: Q regressors, of which QP is the next power of two, and blocks
# of BD features. A block of samples is BA × BB: BB samples lie side by side in the threads of a program and BA in each
# thread, so a sum over BA needs no exchange between threads, and that over BB is taken once. Two things help.
# Blocks are loaded with two axes, whose order is the same in every version of the compiler, and take the third by
# `reshape`. Where a column of a block has fewer numbers than there are threads, each thread loads its own.
# Rows of `x` are `x_row` numbers apart. WIDE is for more than 2³¹ numbers, EDGE for features that do not fill their
# last block, EVEN for samples that do. In FULL blocks every sample exists, so that a mask is for the features at most.


@jit
def row_block(start, BA: tl.constexpr, BB: tl.constexpr):
    """The samples of one block, `(BA · BB,)`."""
    return start + tl.arange(0, BA * BB)


@jit
def load_block(
    x, rows, cols, n, d, x_row, WIDE: tl.constexpr, EDGE: tl.constexpr, FULL: tl.constexpr,
    CACHE: tl.constexpr,
):  # fmt: skip
    """Some features of some samples as they are stored, `(BA · BB, BD)`; zero where there are none.

    CACHE says what the cache should do: keep what will be read again, or forget what will not.
    """
    far = rows.to(tl.int64) if WIDE else rows
    where = far[:, None] * x_row + cols[None, :]
    if FULL and not EDGE:
        block = tl.load(x + where, eviction_policy=CACHE)
    else:
        inside = (rows < n)[:, None] & (cols < d)[None, :]
        block = tl.load(x + where, mask=inside, other=0.0, eviction_policy=CACHE)
    return block


@jit
def store_block(
    out, block, rows, cols, n, d, WIDE: tl.constexpr, EDGE: tl.constexpr, FULL: tl.constexpr,
    CACHE: tl.constexpr,
):  # fmt: skip
    """Write a block in the type of `out`, one row of d numbers after the other."""
    far = rows.to(tl.int64) if WIDE else rows
    where = far[:, None] * d + cols[None, :]
    if FULL and not EDGE:
        tl.store(out + where, block.to(out.dtype.element_ty), eviction_policy=CACHE)
    else:
        inside = (rows < n)[:, None] & (cols < d)[None, :]
        tl.store(out + where, block.to(out.dtype.element_ty), mask=inside, eviction_policy=CACHE)


@jit
def load_column(matrix, rows, k, n, row_stride, col_stride, FULL: tl.constexpr):
    """Column k of a matrix for some samples, `(BA · BB,)`; past the last sample that sample again.

    A mask would cost more: features past the last sample are zero, and what is computed for them is not written.
    """
    if not FULL:
        rows = tl.minimum(rows, n - 1)
    return tl.load(matrix + rows * row_stride + k * col_stride)


@jit
def load_row(matrix, k, row_stride, cols, d):
    """Some numbers of row k."""
    return tl.load(matrix + tl.full((), k, tl.int64) * row_stride + cols, mask=cols < d, other=0.0)


@jit
def add_up(block, BA: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr):
    """The sum over the samples that lie in one thread, `(BB, BD)`."""
    return tl.sum(tl.reshape(block, (BA, BB, BD)), axis=0)


@jit
def is_finite(x):
    """Neither infinite nor NaN."""
    return tl.abs(x) <= 3.4028234663852886e38


@jit
def add_products(
    total, block, r, rows, n, ROW: tl.constexpr, COL: tl.constexpr,
    Q: tl.constexpr, QP: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """`total`, `(QP, BB, BD)`, and the products of a block with each of Q regressors."""
    ks = tl.arange(0, QP)[:, None, None]
    wide = block.to(tl.float32)
    for k in tl.static_range(Q):
        product = add_up(wide * load_column(r, rows, k, n, ROW, COL, FULL)[:, None], BA, BB, BD)
        total += tl.where(ks == k, product[None, :, :], 0.0)
    return total


@jit
def add_squares(squares, block, BA: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr):
    """`squares`, `(BB, BD)`, and the squares of a block."""
    wide = block.to(tl.float32)
    return squares + add_up(wide * wide, BA, BB, BD)


@jit
def take_away(
    block, c, rows, n, beta, ROW: tl.constexpr, COL: tl.constexpr, QC: tl.constexpr, WHOLE: tl.constexpr,
    FULL: tl.constexpr,
):  # fmt: skip
    """A block without `c β`, in float32, for a tuple of rows of β; without WHOLE `− c β` alone."""
    left = block.to(tl.float32)
    if not WHOLE:
        left = tl.zeros_like(left)
    for k in tl.static_range(QC):
        left -= load_column(c, rows, k, n, ROW, COL, FULL)[:, None] * beta[k][None, :]
    return left


@jit
def descend(
    towards, coefficients, gram, rates, flag, skipped, cols, d, Q: tl.constexpr, QP: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """`deconfound.layers.pmdn.update.descend` for some features; the first program that skips one counts the batch."""
    ks = tl.arange(0, QP)
    where = ks.to(tl.int64)[:, None] * d + cols[None, :]
    there = (ks < Q)[:, None] & (cols < d)[None, :]
    old = tl.load(coefficients + where, mask=there, other=0.0)
    move = towards
    for j in tl.static_range(Q):
        gram_j = tl.load(gram + ks * Q + j, mask=ks < Q, other=0.0)
        move -= gram_j[:, None] * load_row(coefficients, j, d, cols, d)[None, :]
    sums = tl.load(gram + ks * Q + Q - 1, mask=ks < Q - 1, other=0.0) * tl.load(rates + 2)
    intercept = tl.sum(tl.where((ks == Q - 1)[:, None], move, 0.0), axis=0)
    move -= sums[:, None] * intercept[None, :]
    new = old + tl.where(ks == Q - 1, tl.load(rates + 1), tl.load(rates))[:, None] * move
    bad = tl.max(tl.where(is_finite(new), 0, 1), axis=0)
    tl.debug_barrier()  # other threads of this program may still read the old coefficients
    tl.store(coefficients + where, tl.where((bad == 0)[None, :], new, old), mask=there)
    any_bad = tl.max(bad, axis=0)
    if any_bad > 0:  # noqa: SIM102 (the exchange must not run otherwise)
        if tl.atomic_xchg(flag, 1) == 0:
            tl.atomic_add(skipped, 1)


@jit
def average(total, found, mean, square, share, most, cols, d, Q: tl.constexpr, QP: tl.constexpr):
    """`deconfound.layers.pmdn.gradient.average` for some features."""
    part = tl.load(share)
    old = load_row(square, 0, d, cols, d)
    known = (old > 0) & (found > 0)
    ratio = tl.where(known, found / tl.where(known, old, 1.0), 1.0)
    jumped = tl.maximum(ratio, 1.0 / ratio) > most
    growth = tl.sqrt(tl.where(jumped, ratio, 1.0))

    ks = tl.arange(0, QP)
    where = ks.to(tl.int64)[:, None] * d + cols[None, :]
    there = (ks < Q)[:, None] & (cols < d)[None, :]
    before = tl.load(mean + where, mask=there, other=0.0)
    grown = before * growth[None, :]
    new = grown + part * (total - grown)
    bad = tl.maximum(tl.max(tl.where(is_finite(new), 0, 1), axis=0), tl.where(is_finite(found), 0, 1))
    tl.store(mean + where, tl.where((bad == 0)[None, :], new, before), mask=there)
    followed = tl.where(known, old + part * (found - old), old)
    tl.store(square + cols, tl.where(jumped | (old == 0), found, followed), mask=(cols < d) & (bad == 0))


@jit
def move_and_subtract(
    x, out, coefficients, r, c, rates, gram, flag, skipped, square, n, d, x_row, scale, most,
    R_ROW: tl.constexpr, R_COL: tl.constexpr, C_ROW: tl.constexpr, C_COL: tl.constexpr,
    Q: tl.constexpr, QC: tl.constexpr, QP: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr,
    FORWARD: tl.constexpr, WHOLE: tl.constexpr, HOLD: tl.constexpr, EVEN: tl.constexpr,
    WIDE: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Move the coefficients of some features towards this batch and write `x − scale c β` for all its rows.

    FORWARD is a descent step on β, with `rates` and a Gram matrix; else coefficients are the running average S of
    backward, with a mean square for each feature, which jumps where it is off by more than `most`, and `rates` the
    share of the batch. Without WHOLE, x is left out of the difference.

    A program takes all samples of its features, block by block, and then the same blocks again, beginning with the
    last: with HOLD that one is still in registers. The others are in a cache.
    """
    cols = tl.program_id(0) * BD + tl.arange(0, BD)
    final = (n - 1) // (BA * BB) * (BA * BB)
    total = tl.zeros((QP, BB, BD), dtype=tl.float32)
    squares = tl.zeros((BB, BD), dtype=tl.float32)
    for start in range(0, final, BA * BB):
        rows = row_block(start, BA, BB)
        block = load_block(x, rows, cols, n, d, x_row, WIDE, EDGE, True, "evict_last")
        total = add_products(total, block, r, rows, n, R_ROW, R_COL, Q, QP, BA, BB, BD, True)
        if not FORWARD:
            squares = add_squares(squares, block, BA, BB, BD)
    rows = row_block(final, BA, BB)
    block = load_block(x, rows, cols, n, d, x_row, WIDE, EDGE, EVEN, "")
    total = add_products(total, block, r, rows, n, R_ROW, R_COL, Q, QP, BA, BB, BD, EVEN)
    towards = tl.sum(total, axis=1)
    if FORWARD:
        descend(towards, coefficients, gram, rates, flag, skipped, cols, d, Q, QP, BD)
    else:
        found = tl.sum(add_squares(squares, block, BA, BB, BD), axis=0) * tl.full((), n, tl.float32)
        average(towards, found, coefficients, square, rates, most, cols, d, Q, QP)
    tl.debug_barrier()  # from here on this program's threads may read the new coefficients

    beta = ()
    for k in tl.static_range(QC):
        beta = beta + (load_row(coefficients, k, d, cols, d) * scale,)
    if not HOLD:
        block = load_block(x, rows, cols, n, d, x_row, WIDE, EDGE, EVEN, "evict_first")
    left = take_away(block, c, rows, n, beta, C_ROW, C_COL, QC, WHOLE, EVEN)
    store_block(out, left, rows, cols, n, d, WIDE, EDGE, EVEN, "evict_first")
    for start in range(0, final, BA * BB):
        rows = row_block(start, BA, BB)
        block = load_block(x, rows, cols, n, d, x_row, WIDE, EDGE, True, "evict_first")
        left = take_away(block, c, rows, n, beta, C_ROW, C_COL, QC, WHOLE, True)
        store_block(out, left, rows, cols, n, d, WIDE, EDGE, True, "evict_first")


@jit
def sum_products(
    x, out, r, n, d, x_row, R_ROW: tl.constexpr, R_COL: tl.constexpr,
    Q: tl.constexpr, QP: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr, WIDE: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """`rᵀx`, `(Q, d)`: the first half of the pass alone, where others add theirs before the second."""
    cols = tl.program_id(0) * BD + tl.arange(0, BD)
    ks = tl.arange(0, QP)
    total = tl.zeros((QP, BB, BD), dtype=tl.float32)
    for start in range(0, n, BA * BB):
        rows = row_block(start, BA, BB)
        block = load_block(x, rows, cols, n, d, x_row, WIDE, EDGE, False, "")
        total = add_products(total, block, r, rows, n, R_ROW, R_COL, Q, QP, BA, BB, BD, False)
    where = ks.to(tl.int64)[:, None] * d + cols[None, :]
    tl.store(out + where, tl.sum(total, axis=1), mask=(ks < Q)[:, None] & (cols < d)[None, :])


@jit
def subtract_only(
    x, out, c, coefficients, n, d, x_row, b_row, row_blocks, C_ROW: tl.constexpr, C_COL: tl.constexpr,
    Q: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr, WIDE: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """`x − c β`: the second half of the pass alone, and all of eval."""
    program = tl.program_id(0)  # programs side by side read the same coefficients
    rows = row_block(program % row_blocks * (BA * BB), BA, BB)
    cols = program // row_blocks * BD + tl.arange(0, BD)
    block = load_block(x, rows, cols, n, d, x_row, WIDE, EDGE, False, "")
    beta = ()
    for k in tl.static_range(Q):
        beta = beta + (load_row(coefficients, k, b_row, cols, d),)
    left = take_away(block, c, rows, n, beta, C_ROW, C_COL, Q, True, False)
    store_block(out, left, rows, cols, n, d, WIDE, EDGE, False, "")
