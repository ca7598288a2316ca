"""The passes over all features: project on regressors, move the coefficients, subtract."""
# mypy: ignore-errors

from deconfound.kernels.language import jit, tl

# Names in capitals are known when a kernel is compiled: Q regressors, of which QP is the next power of two, and blocks
# of BD features. A block of samples is BA × BB: BB samples lie side by side in the threads of a program and BA in each
# thread. Coefficients are `(QP, BB, BD)`, the same for each of the BB. So the first axis always lies within a thread
# and sums over it need no exchange between threads; the sum over BB is taken once. Rows of `x` are `x_row` numbers
# apart; WIDE is for more than 2³¹ numbers.


@jit
def row_block(start, BA: tl.constexpr, BB: tl.constexpr):
    """The samples of one block, `(BA, BB)`."""
    return start + tl.arange(0, BA)[:, None] * BB + tl.arange(0, BB)[None, :]


@jit
def load_block(x, rows, cols, n, d, x_row, WIDE: tl.constexpr):
    """Some features of some samples in full precision, `(BA, BB, BD)`; zero outside."""
    if WIDE:
        rows = rows.to(tl.int64)
    inside = (rows < n)[:, :, None] & (cols < d)[None, None, :]
    return tl.load(x + rows[:, :, None] * x_row + cols[None, None, :], mask=inside, other=0.0).to(tl.float32)


@jit
def store_block(out, block, rows, cols, n, d, WIDE: tl.constexpr):
    """Write a block in the type of `out`."""
    if WIDE:
        rows = rows.to(tl.int64)
    inside = (rows < n)[:, :, None] & (cols < d)[None, None, :]
    tl.store(out + rows[:, :, None] * d + cols[None, None, :], block.to(out.dtype.element_ty), mask=inside)


@jit
def load_column(matrix, rows, k, n, row_stride, col_stride):
    """Column k of a matrix for some samples, `(BA, BB)`."""
    return tl.load(matrix + rows * row_stride + k * col_stride, mask=rows < n, other=0.0)


@jit
def load_row(matrix, k, row_stride, cols, d):
    """Some numbers of row k."""
    return tl.load(matrix + tl.full((), k, tl.int64) * row_stride + cols, mask=cols < d, other=0.0)


@jit
def coefficient_places(cols, row_stride, QP: tl.constexpr, BB: tl.constexpr):
    """Where coefficients lie, `(QP, BB, BD)`."""
    ks = (tl.arange(0, QP)[:, None] + tl.zeros((BB,), dtype=tl.int32)[None, :]).to(tl.int64)
    return ks[:, :, None] * row_stride + cols[None, None, :]


@jit
def pick(coefficients, k, QP: tl.constexpr):
    """Row k of coefficients, `(BB, BD)`."""
    return tl.sum(tl.where((tl.arange(0, QP) == k)[:, None, None], coefficients, 0.0), axis=0)


@jit
def is_finite(x):
    """Neither infinite nor NaN."""
    return tl.abs(x) <= 3.4028234663852886e38


@jit
def add_products(total, x, r, rows, n, r_row, r_col, Q: tl.constexpr, QP: tl.constexpr):
    """Add `rᵀx` of one block to `total`, `(QP, BB, BD)`."""
    ks = tl.arange(0, QP)[:, None, None]
    for k in tl.static_range(Q):
        r_k = load_column(r, rows, k, n, r_row, r_col)
        total += tl.where(ks == k, tl.sum(x * r_k[:, :, None], axis=0)[None, :, :], 0.0)
    return total


@jit
def subtract(x, c, coefficients, rows, n, c_row, c_col, Q: tl.constexpr, QP: tl.constexpr):
    """`x − c β` of one block, for coefficients of which the first Q rows count."""
    for k in tl.static_range(Q):
        c_k = load_column(c, rows, k, n, c_row, c_col)
        x = x - c_k[:, :, None] * pick(coefficients, k, QP)[None, :, :]
    return x


@jit
def move_and_subtract(
    x, out, coefficients, r, c, gram, numbers, flag, skipped, n, d, x_row, r_row, r_col, c_row, c_col,
    Q: tl.constexpr, QC: tl.constexpr, QP: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr,
    GRAM: tl.constexpr, KEEP: tl.constexpr, HOLD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Move the coefficients of some features towards this batch and subtract `c β` from all its rows.

    `numbers` holds a step for each of Q rows, then a and b: β ← β + step (a rᵀx − G β) and out = x − b c β, with the
    Gram matrix G, or without it the identity. A feature whose new coefficients are not finite keeps the old ones;
    with a Gram matrix the first program that meets one counts the batch as skipped. Without KEEP, x is left out of
    the difference. With HOLD the block holds every row and x is read once.
    """
    cols = tl.program_id(0) * BD + tl.arange(0, BD)
    total = tl.zeros((QP, BB, BD), dtype=tl.float32)
    if HOLD:
        held = load_block(x, row_block(0, BA, BB), cols, n, d, x_row, WIDE)
        total = add_products(total, held, r, row_block(0, BA, BB), n, r_row, r_col, Q, QP)
    else:
        for start in range(0, n, BA * BB):
            rows = row_block(start, BA, BB)
            total = add_products(total, load_block(x, rows, cols, n, d, x_row, WIDE), r, rows, n, r_row, r_col, Q, QP)
    towards = tl.sum(total, axis=1, keep_dims=True) * tl.load(numbers + Q)

    ks = tl.arange(0, QP)
    where = coefficient_places(cols, d, QP, BB)
    there = (ks < Q)[:, None, None] & (cols < d)[None, None, :]
    old = tl.load(coefficients + where, mask=there, other=0.0)
    if GRAM:
        explained = tl.zeros((QP, BB, BD), dtype=tl.float32)
        for j in tl.static_range(Q):
            gram_j = tl.load(gram + ks * Q + j, mask=ks < Q, other=0.0)
            explained += gram_j[:, None, None] * pick(old, j, QP)[None, :, :]
    else:
        explained = old
    step = tl.load(numbers + ks, mask=ks < Q, other=0.0)
    new = old + step[:, None, None] * (towards - explained)
    bad = tl.max(tl.where(is_finite(new), 0, 1), axis=0)
    new = tl.where((bad == 0)[None, :, :], new, old)
    tl.debug_barrier()  # other threads of this program may still read the old coefficients
    first = (tl.arange(0, BB) == 0)[None, :, None]
    tl.store(coefficients + where, new, mask=there & first)
    if GRAM:
        any_bad = tl.max(tl.max(bad, axis=1), axis=0)
        if any_bad > 0:  # noqa: SIM102 (the exchange must not run otherwise)
            if tl.atomic_xchg(flag, 1) == 0:
                tl.atomic_add(skipped, 1)

    scaled = new * tl.load(numbers + Q + 1)
    if HOLD:
        if not KEEP:
            held = tl.zeros((BA, BB, BD), dtype=tl.float32)
        held = subtract(held, c, scaled, row_block(0, BA, BB), n, c_row, c_col, QC, QP)
        store_block(out, held, row_block(0, BA, BB), cols, n, d, WIDE)
    else:
        for start in range(0, n, BA * BB):
            rows = row_block(start, BA, BB)
            if KEEP:  # noqa: SIM108 (only what is chosen is compiled)
                block = load_block(x, rows, cols, n, d, x_row, WIDE)
            else:
                block = tl.zeros((BA, BB, BD), dtype=tl.float32)
            store_block(out, subtract(block, c, scaled, rows, n, c_row, c_col, QC, QP), rows, cols, n, d, WIDE)


@jit
def sum_products(
    x, out, r, n, d, x_row, r_row, r_col,
    Q: tl.constexpr, QP: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """`rᵀx`, `(Q, d)`: the first half of the pass alone, where other processes add theirs."""
    cols = tl.program_id(0) * BD + tl.arange(0, BD)
    total = tl.zeros((QP, BB, BD), dtype=tl.float32)
    for start in range(0, n, BA * BB):
        rows = row_block(start, BA, BB)
        total = add_products(total, load_block(x, rows, cols, n, d, x_row, WIDE), r, rows, n, r_row, r_col, Q, QP)
    found = tl.sum(total, axis=1, keep_dims=True) + tl.zeros((QP, BB, BD), dtype=tl.float32)
    first = (tl.arange(0, BB) == 0)[None, :, None] & (cols < d)[None, None, :]
    tl.store(out + coefficient_places(cols, d, QP, BB), found, mask=(tl.arange(0, QP) < Q)[:, None, None] & first)


@jit
def subtract_only(
    x, out, c, coefficients, n, d, x_row, c_row, c_col, b_row,
    Q: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """`x − c β`: the second half of the pass alone, and all of eval."""
    rows = row_block(tl.program_id(0) * BA * BB, BA, BB)  # programs side by side read the same coefficients
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    block = load_block(x, rows, cols, n, d, x_row, WIDE)
    for k in tl.static_range(Q):
        c_k = load_column(c, rows, k, n, c_row, c_col)
        block = block - c_k[:, :, None] * load_row(coefficients, k, b_row, cols, d)[None, None, :]
    store_block(out, block, rows, cols, n, d, WIDE)
