"""The passes over all features: project on regressors, move the coefficients, subtract."""
# mypy: ignore-errors

from deconfound.kernels.language import jit, tl

# Names in capitals are known when a kernel is compiled: Q regressors, of which QP is the next power of two; BN samples
# and BD features in a block. Rows of `x` are `x_row` numbers apart; `WIDE` is for more than 2³¹ numbers.


@jit
def block_offsets(rows, cols, row_stride, WIDE: tl.constexpr):
    """Where a block of a matrix lies, `(BN, BD)`."""
    if WIDE:
        offsets = rows.to(tl.int64)[:, None] * row_stride + cols[None, :]
    else:
        offsets = rows[:, None] * row_stride + cols[None, :]
    return offsets


@jit
def is_finite(x):
    """Neither infinite nor NaN."""
    return tl.abs(x) <= 3.4028234663852886e38


@jit
def project(x, r, rows, n, r_row, r_col, Q: tl.constexpr, QP: tl.constexpr, BD: tl.constexpr, DOT: tl.constexpr):
    """`rᵀx` of one block, `(QP, BD)`: the sum over its rows of `r[i, k] x[i, :]`."""
    ks = tl.arange(0, QP)
    if DOT:
        inside = (ks < Q)[:, None] & (rows < n)[None, :]
        r_block = tl.load(r + ks[:, None] * r_col + rows[None, :] * r_row, mask=inside, other=0.0)
        total = tl.dot(r_block, x, input_precision="ieee")
    else:
        total = tl.zeros((QP, BD), dtype=tl.float32)
        for k in tl.static_range(Q):
            r_k = tl.load(r + rows * r_row + k * r_col, mask=rows < n, other=0.0)
            total = tl.where((ks == k)[:, None], tl.sum(x * r_k[:, None], axis=0)[None, :], total)
    return total


@jit
def subtract(
    x, c, coefficients, rows, cols, scale, n, d, c_row, c_col, b_row,
    Q: tl.constexpr, QP: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """`x − scale · c β` of one block, with β `(Q, d)` in memory, its rows `b_row` numbers apart."""
    if DOT:
        ks = tl.arange(0, QP)
        inside = (rows < n)[:, None] & (ks < Q)[None, :]
        c_block = tl.load(c + rows[:, None] * c_row + ks[None, :] * c_col, mask=inside, other=0.0)
        there = (ks < Q)[:, None] & (cols < d)[None, :]
        beta = tl.load(coefficients + ks[:, None].to(tl.int64) * b_row + cols[None, :], mask=there, other=0.0)
        x = x - tl.dot(c_block * scale, beta, input_precision="ieee")
    else:
        for k in tl.static_range(Q):
            c_k = tl.load(c + rows * c_row + k * c_col, mask=rows < n, other=0.0)
            beta_k = load_row(coefficients, k, b_row, cols, d)
            x = x - c_k[:, None] * (beta_k * scale)[None, :]
    return x


@jit
def load_row(matrix, k, row_stride, cols, d):
    """Some numbers of row k."""
    return tl.load(matrix + tl.full((), k, tl.int64) * row_stride + cols, mask=cols < d, other=0.0)


@jit
def move_and_subtract(
    x, out, coefficients, r, c, gram, numbers, flag, skipped, n, d, x_row, r_row, r_col, c_row, c_col,
    Q: tl.constexpr, QC: tl.constexpr, QP: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    GRAM: tl.constexpr, KEEP: tl.constexpr, HOLD: tl.constexpr, DOT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Move the coefficients of some features towards this batch and subtract `c β` from all its rows.

    `numbers` holds a step for each of Q rows, then a and b: β ← β + step (a rᵀx − G β) and out = x − b c β, with the
    Gram matrix G, or without it the identity. A feature whose new coefficients are not finite keeps the old ones;
    with a Gram matrix the first program that meets one counts the batch as skipped. Without KEEP, x is left out of
    the difference. With HOLD the block holds every row and x is read once.
    """
    cols = tl.program_id(0) * BD + tl.arange(0, BD)
    ks = tl.arange(0, QP)
    first = tl.arange(0, BN)
    if HOLD:
        inside = (first < n)[:, None] & (cols < d)[None, :]
        held = tl.load(x + block_offsets(first, cols, x_row, WIDE), mask=inside, other=0.0).to(tl.float32)
        total = project(held, r, first, n, r_row, r_col, Q, QP, BD, DOT)
    else:
        total = tl.zeros((QP, BD), dtype=tl.float32)
        for start in range(0, n, BN):
            rows = start + first
            inside = (rows < n)[:, None] & (cols < d)[None, :]
            block = tl.load(
                x + block_offsets(rows, cols, x_row, WIDE), mask=inside, other=0.0, eviction_policy="evict_last"
            )
            total += project(block.to(tl.float32), r, rows, n, r_row, r_col, Q, QP, BD, DOT)

    where = block_offsets(ks, cols, d, WIDE)
    theirs = (ks < Q)[:, None] & (cols < d)[None, :]
    old = tl.load(coefficients + where, mask=theirs, other=0.0)
    if GRAM:
        explained = tl.zeros((QP, BD), dtype=tl.float32)
        for j in tl.static_range(Q):
            gram_j = tl.load(gram + ks * Q + j, mask=ks < Q, other=0.0)
            explained += gram_j[:, None] * load_row(coefficients, j, d, cols, d)[None, :]
    else:
        explained = old
    step = tl.load(numbers + ks, mask=ks < Q, other=0.0)
    new = old + step[:, None] * (tl.load(numbers + Q) * total - explained)
    bad = tl.max(tl.where(is_finite(new), 0, 1), axis=0)
    new = tl.where((bad == 0)[None, :], new, old)
    tl.debug_barrier()  # other threads of this program may still read the old coefficients
    tl.store(coefficients + where, new, mask=theirs)
    if GRAM:
        any_bad = tl.max(bad, axis=0)
        if any_bad > 0:  # noqa: SIM102 (the exchange must not run otherwise)
            if tl.atomic_xchg(flag, 1) == 0:
                tl.atomic_add(skipped, 1)

    tl.debug_barrier()  # from here on this program's threads read the new ones
    scale = tl.load(numbers + Q + 1)
    if HOLD:
        if not KEEP:
            held = tl.zeros((BN, BD), dtype=tl.float32)
        held = subtract(held, c, coefficients, first, cols, scale, n, d, c_row, c_col, d, QC, QP, DOT)
        inside = (first < n)[:, None] & (cols < d)[None, :]
        tl.store(out + block_offsets(first, cols, d, WIDE), held.to(out.dtype.element_ty), mask=inside)
    else:
        for start in range(0, n, BN):
            rows = start + first
            inside = (rows < n)[:, None] & (cols < d)[None, :]
            if KEEP:
                block = tl.load(
                    x + block_offsets(rows, cols, x_row, WIDE), mask=inside, other=0.0, eviction_policy="evict_first"
                ).to(tl.float32)
            else:
                block = tl.zeros((BN, BD), dtype=tl.float32)
            block = subtract(block, c, coefficients, rows, cols, scale, n, d, c_row, c_col, d, QC, QP, DOT)
            tl.store(out + block_offsets(rows, cols, d, WIDE), block.to(out.dtype.element_ty), mask=inside)


@jit
def sum_products(
    x, out, r, n, d, x_row, r_row, r_col,
    Q: tl.constexpr, QP: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, DOT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """`rᵀx`, `(Q, d)`: the first half of the pass alone, where other processes add theirs."""
    cols = tl.program_id(0) * BD + tl.arange(0, BD)
    ks = tl.arange(0, QP)
    total = tl.zeros((QP, BD), dtype=tl.float32)
    for start in range(0, n, BN):
        rows = start + tl.arange(0, BN)
        inside = (rows < n)[:, None] & (cols < d)[None, :]
        block = tl.load(x + block_offsets(rows, cols, x_row, WIDE), mask=inside, other=0.0).to(tl.float32)
        total += project(block, r, rows, n, r_row, r_col, Q, QP, BD, DOT)
    tl.store(out + block_offsets(ks, cols, d, WIDE), total, mask=(ks < Q)[:, None] & (cols < d)[None, :])


@jit
def subtract_only(
    x, out, c, coefficients, n, d, x_row, c_row, c_col, b_row,
    Q: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """`x − c β`: the second half of the pass alone, and all of eval."""
    cols = tl.program_id(0) * BD + tl.arange(0, BD)
    rows = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (rows < n)[:, None] & (cols < d)[None, :]
    block = tl.load(x + block_offsets(rows, cols, x_row, WIDE), mask=inside, other=0.0).to(tl.float32)
    block = subtract(block, c, coefficients, rows, cols, 1.0, n, d, c_row, c_col, b_row, Q, 16, False)
    tl.store(out + block_offsets(rows, cols, d, WIDE), block.to(out.dtype.element_ty), mask=inside)
