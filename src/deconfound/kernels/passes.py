"""The passes over all features: project on regressors, move the coefficients, subtract."""
# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton knows no unpacking of tuples)

from deconfound.kernels.language import jit, tl

# Names in capitals are known when a kernel is compiled: Q regressors, of which QP is the next power of two, and blocks
# of BD features. A block of samples is BA × BB: BB samples lie side by side in the threads of a program and BA in each
# thread, so a sum over BA needs no exchange between threads, and that over BB is taken once. Two things keep it so.
# Blocks are loaded with two axes, whose order is the same in every version of the compiler, and take the third by
# `reshape`. A column of a block has fewer numbers than there are threads: only then does each thread load its own.
# Rows of `x` are `x_row` numbers apart; WIDE is for more than 2³¹ numbers, EDGE for
# features that do not fill their last block.


@jit
def row_block(start, BA: tl.constexpr, BB: tl.constexpr):
    """The samples of one block, `(BA · BB,)`."""
    return start + tl.arange(0, BA * BB)


@jit
def load_block(x, rows, cols, n, d, x_row, WIDE: tl.constexpr, EDGE: tl.constexpr):
    """Some features of some samples as they are stored, `(BA · BB, BD)`; zero outside."""
    inside = (rows < n)[:, None]
    if EDGE:
        inside = inside & (cols < d)[None, :]
    if WIDE:
        rows = rows.to(tl.int64)
    return tl.load(x + rows[:, None] * x_row + cols[None, :], mask=inside, other=0.0)


@jit
def store_block(out, block, rows, cols, n, d, WIDE: tl.constexpr, EDGE: tl.constexpr):
    """Write a block in the type of `out`."""
    inside = (rows < n)[:, None]
    if EDGE:
        inside = inside & (cols < d)[None, :]
    if WIDE:
        rows = rows.to(tl.int64)
    tl.store(out + rows[:, None] * d + cols[None, :], block.to(out.dtype.element_ty), mask=inside)


@jit
def load_column(matrix, rows, k, n, row_stride, col_stride):
    """Column k of a matrix for some samples, `(BA · BB,)`."""
    return tl.load(matrix + rows * row_stride + k * col_stride, mask=rows < n, other=0.0)


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
def move_and_subtract(
    x, out, coefficients, r, c, gram, numbers, flag, skipped, n, d, x_row, r_row, r_col, c_row, c_col,
    Q: tl.constexpr, QC: tl.constexpr, QP: tl.constexpr, BLOCKS: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr,
    BD: tl.constexpr, GRAM: tl.constexpr, KEEP: tl.constexpr, WIDE: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Move the coefficients of some features towards this batch and subtract `c β` from all its rows, reading x once.

    `numbers` holds a step for each of Q rows, then a and b: β ← β + step (a rᵀx − G β) and out = x − b c β, with the
    Gram matrix G, or without it the identity. A feature whose new coefficients are not finite keeps the old ones;
    with a Gram matrix the first program that meets one counts the batch as skipped. Without KEEP, x is left out of
    the difference. A program holds all samples of its features, in BLOCKS blocks.
    """
    cols = tl.program_id(0) * BD + tl.arange(0, BD)
    held = ()
    for i in tl.static_range(BLOCKS):
        held = held + (load_block(x, row_block(i * BA * BB, BA, BB), cols, n, d, x_row, WIDE, EDGE),)
    ks = tl.arange(0, QP)
    towards = tl.zeros((QP, BD), dtype=tl.float32)
    for k in tl.static_range(Q):
        total = tl.zeros((BB, BD), dtype=tl.float32)
        for i in tl.static_range(BLOCKS):
            r_k = load_column(r, row_block(i * BA * BB, BA, BB), k, n, r_row, r_col)
            total += add_up(held[i].to(tl.float32) * r_k[:, None], BA, BB, BD)
        towards = tl.where((ks == k)[:, None], tl.sum(total, axis=0)[None, :], towards)

    where = ks.to(tl.int64)[:, None] * d + cols[None, :]
    there = (ks < Q)[:, None] & (cols < d)[None, :]
    old = tl.load(coefficients + where, mask=there, other=0.0)
    if GRAM:
        explained = tl.zeros((QP, BD), dtype=tl.float32)
        for j in tl.static_range(Q):
            gram_j = tl.load(gram + ks * Q + j, mask=ks < Q, other=0.0)
            explained += gram_j[:, None] * load_row(coefficients, j, d, cols, d)[None, :]
    else:
        explained = old
    step = tl.load(numbers + ks, mask=ks < Q, other=0.0)
    new = old + step[:, None] * (tl.load(numbers + Q) * towards - explained)
    bad = tl.max(tl.where(is_finite(new), 0, 1), axis=0)
    tl.debug_barrier()  # other threads of this program may still read the old coefficients
    tl.store(coefficients + where, tl.where((bad == 0)[None, :], new, old), mask=there)
    if GRAM:
        any_bad = tl.max(bad, axis=0)
        if any_bad > 0:  # noqa: SIM102 (the exchange must not run otherwise)
            if tl.atomic_xchg(flag, 1) == 0:
                tl.atomic_add(skipped, 1)

    tl.debug_barrier()  # from here on this program's threads read the new ones, which takes fewer registers
    last = tl.load(numbers + Q + 1)
    for i in tl.static_range(BLOCKS):
        rows = row_block(i * BA * BB, BA, BB)
        if KEEP:  # noqa: SIM108 (only what is chosen is compiled)
            left = held[i].to(tl.float32)
        else:
            left = tl.zeros((BA * BB, BD), dtype=tl.float32)
        for k in tl.static_range(QC):
            scaled = load_row(coefficients, k, d, cols, d) * last
            left -= load_column(c, rows, k, n, c_row, c_col)[:, None] * scaled[None, :]
        store_block(out, left, rows, cols, n, d, WIDE, EDGE)


@jit
def sum_products(
    x, out, r, n, d, x_row, r_row, r_col,
    Q: tl.constexpr, QP: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr, WIDE: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """`rᵀx`, `(Q, d)`: the first half of the pass alone, for any number of samples and where others add theirs."""
    cols = tl.program_id(0) * BD + tl.arange(0, BD)
    ks = tl.arange(0, QP)
    total = tl.zeros((QP, BB, BD), dtype=tl.float32)
    for start in range(0, n, BA * BB):
        rows = row_block(start, BA, BB)
        block = load_block(x, rows, cols, n, d, x_row, WIDE, EDGE).to(tl.float32)
        for k in tl.static_range(Q):
            r_k = load_column(r, rows, k, n, r_row, r_col)
            total += tl.where((ks == k)[:, None, None], add_up(block * r_k[:, None], BA, BB, BD)[None, :, :], 0.0)
    where = ks.to(tl.int64)[:, None] * d + cols[None, :]
    tl.store(out + where, tl.sum(total, axis=1), mask=(ks < Q)[:, None] & (cols < d)[None, :])


@jit
def subtract_only(
    x, out, c, coefficients, n, d, x_row, c_row, c_col, b_row,
    Q: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr, WIDE: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """`x − c β`: the second half of the pass alone, and all of eval."""
    rows = row_block(tl.program_id(0) * BA * BB, BA, BB)  # programs side by side read the same coefficients
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    block = load_block(x, rows, cols, n, d, x_row, WIDE, EDGE).to(tl.float32)
    for k in tl.static_range(Q):
        c_k = load_column(c, rows, k, n, c_row, c_col)
        block -= c_k[:, None] * load_row(coefficients, k, b_row, cols, d)[None, :]
    store_block(out, block, rows, cols, n, d, WIDE, EDGE)
