# ruff: noqa: RUF005 (the compiler of kernels knows no unpacking into a tuple)
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportMissingParameterType=false, reportArgumentType=false, reportAssignmentType=false
# The kernels below are a language of their own, read by its compiler: a tuple changes its length as a loop is unrolled.
"""The device side of area attention on CUDA: the backward pass, one kernel for the queries, one for keys and values.

Weights are computed again from the scores and the row's log-sum-exp; nothing of the size (T, S) is stored, nothing is added atomically, so
the same input gives the same bits. Letters as in `regard.ops.kernels.area_triton`.
"""

from __future__ import annotations

from regard.ops.kernels.area_triton_forward import (
    add_window,
    blocks_seen,
    decode,
    enter,
    full_blocks,
    jit,
    locate,
    locate_inside,
    may_attend,
    read_rows,
    tl,
    to_items,
    window_sums,
    write_rows,
)


@jit
def item_tiles(left, right, lse, allowed, scale, EDGE: tl.constexpr, P: tl.constexpr):
    """Return the tiles log2 of (item weight) and dW of one place of the blocks.

    left: tiles of queries and of their gradients, right: of keys and values, or the other way round for tiles (blocks, rows); lse and
    scale: in base 2; EDGE: whether `allowed` counts.
    """
    e = tl.dot(left[0], tl.trans(right[0]), input_precision=P.precision) * scale - lse
    dw = tl.dot(left[1], tl.trans(right[1]), input_precision=P.precision)
    if EDGE:
        e = tl.where(allowed, e, float("-inf"))
        if P.masked or P.causal:  # a masked product may be infinite, and 0 * inf is NaN
            dw = tl.where(allowed, dw, 0.0)
    return e, dw


@jit
def window_gradients(scores, dw, delta, START: tl.constexpr, ACROSS: tl.constexpr, P: tl.constexpr):
    """Return the weights P_s and the score gradients dA_s / s of the windows that start at the tile START, spread over their items."""
    AREA_HIGH: tl.constexpr = P.area_high
    AREA_WIDE: tl.constexpr = P.area_wide
    sums = window_sums(scores, 0.0, START, ACROSS, P)
    dp = window_sums(dw, delta, START, ACROSS, P)
    weights = ()
    gradients = ()
    for h in tl.static_range(AREA_HIGH):
        for c in tl.static_range(AREA_WIDE):
            p = tl.exp2(sums[h * AREA_WIDE + c] * (1.0 / ((h + 1) * (c + 1))))
            weights = weights + (p,)
            gradients = gradients + (p * dp[h * AREA_WIDE + c] * (1.0 / ((h + 1) * (c + 1))),)
    return to_items(weights, P), to_items(gradients, P)


@jit
def read_queries(query, tensors, strides, sizes, row, group, P: tl.constexpr):
    """Return a tile of queries, of their contexts' gradients, and (rows,) log-sum-exp in base 2 and delta."""
    real = row < sizes[1]
    b = (group // sizes[0]).to(tl.int64)
    h = (group % sizes[0]).to(tl.int64)
    rows = group.to(tl.int64) * sizes[1] + row
    q = read_rows(query, strides[0][2], row, real, P.key_size, P.key_padded)
    pointer = tensors[4] + b * strides[3][0] + h * strides[3][1]
    grad = read_rows(pointer, strides[3][2], row, real, P.value_size, P.value_padded)
    lse = tl.load(tensors[5] + rows, mask=real, other=float("inf")) * 1.4426950408889634
    delta = tl.load(tensors[6] + rows, mask=real, other=0.0)
    return q, grad, lse, delta


@jit
def query_step(tiles, row, begin, dq, call, EDGE: tl.constexpr, P: tl.constexpr):
    """Add what a tile of blocks gives to dQ; tiles: of queries, gradients, (rows, 1) log-sum-exp and delta; others as in `forward_step`."""
    pointers, strides, sizes, scale = call
    ACROSS: tl.constexpr = P.wide + P.area_wide - 1
    TILES: tl.constexpr = ACROSS * (P.high + P.area_high - 1)
    BACK: tl.constexpr = (P.area_high - 1) * ACROSS + P.area_wide - 1  # from a window's last tile to its first
    block = begin + tl.arange(0, P.blocks)
    scores, dw, shares = (), (), ()
    # In raster order a window is worked on as soon as its last item is there, so that few tiles are alive at a time.
    for i in tl.static_range(TILES):
        item, inside = locate_inside(block, i // ACROSS, i % ACROSS, sizes, EDGE, P)
        k = read_rows(pointers[0], strides[1][2], item, inside, P.key_size, P.key_padded)
        v = read_rows(pointers[1], strides[2][2], item, inside, P.value_size, P.value_padded)
        allowed = may_attend(row[:, None], item[None, :], inside[None, :], pointers[2], sizes, P)
        e, d = item_tiles(tiles[:2], (k, v), tiles[2], allowed, scale[1], EDGE, P)
        scores, dw, shares = scores + (e,), dw + (d,), shares + (tl.full(e.shape, 0.0, tl.float32),)
        if i // ACROSS >= P.area_high - 1 and i % ACROSS >= P.area_wide - 1:
            _, gradients = window_gradients(scores, dw, tiles[3], i - BACK, ACROSS, P)
            shares = add_window(shares, gradients, i - BACK, ACROSS, P)
    for i in tl.static_range(TILES):
        item, inside = locate_inside(block, i // ACROSS, i % ACROSS, sizes, EDGE, P)
        k = read_rows(pointers[0], strides[1][2], item, inside, P.key_size, P.key_padded)
        dq = tl.dot(shares[i].to(k.dtype), k, dq, input_precision=P.precision)
    return dq


@jit
def query_kernel(tensors, strides, coded, scale, P: tl.constexpr):
    """Compute dQ of one tile of queries.

    tensors: query, key, value, mask, grad (B, H, T, Dv), lse, delta (B, H, T), out: dQ (B, H, T, D).
    scale: of the products, and times log2(e), rounded as in the forward pass.
    """
    sizes = decode(coded)
    tiles = tl.cdiv(sizes[1], P.rows)
    group = tl.program_id(0) // tiles
    query, key, value, mask = enter(tensors, strides, sizes, group)
    first = (tl.program_id(0) % tiles) * P.rows
    row = first + tl.arange(0, P.rows)
    q, grad, lse, delta = read_queries(query, tensors, strides, sizes, row, group, P)
    tiles = q, grad, lse[:, None], delta[:, None]
    call = (key, value, mask), strides, sizes, scale
    dq = tl.full((P.rows, P.key_padded), 0.0, tl.float32)
    until = blocks_seen(first, sizes, P)
    start = 0
    if not P.masked and P.high * P.area_high == 1:
        start = full_blocks(first, sizes, P)
        for begin in range(0, start, P.blocks):
            dq = query_step(tiles, row, begin, dq, call, False, P)
    for begin in range(start, until, P.blocks):
        dq = query_step(tiles, row, begin, dq, call, True, P)
    write_rows(tensors[7], group.to(tl.int64) * sizes[1] + row, row < sizes[1], dq * scale[0], P.key_size, P.key_padded)


@jit
def first_row(begin, sizes, P: tl.constexpr):
    """Return the first tile of queries of which one may look at the blocks from `begin` on, as its first row."""
    row = 0
    if P.causal:
        across = tl.cdiv(sizes[4], P.wide)
        item = (begin // across) * P.high * sizes[4]
        if P.high == 1:
            item += (begin % across) * P.wide
        row = tl.maximum(item - (sizes[2] - sizes[1]), 0) // P.rows * P.rows
    return row


@jit
def read_memory(i: tl.constexpr, block, key, value, strides, sizes, P: tl.constexpr):
    """Return keys and values of a tile of blocks at place i of the blocks and what is around them."""
    ACROSS: tl.constexpr = P.wide + 2 * P.area_wide - 2
    item, inside = locate(block, i // ACROSS - P.area_high + 1, i % ACROSS - P.area_wide + 1, sizes, P)
    k = read_rows(key, strides[1][2], item, inside, P.key_size, P.key_padded)
    return k, read_rows(value, strides[2][2], item, inside, P.value_size, P.value_padded)


@jit
def first_full_row(begin, row, sizes, P: tl.constexpr):
    """Return the first tile of queries from `row` on that sees all that a tile of blocks needs, T or more if none does."""
    last = (begin + P.blocks) * P.wide + P.area_wide - 2
    full = row
    if P.causal:
        full = tl.maximum(row, tl.cdiv(tl.maximum(last - (sizes[2] - sizes[1]), 0), P.rows) * P.rows)
    whole = (begin * P.wide >= P.area_wide - 1) & (last < sizes[2]) & (sizes[3] == 1)
    return tl.where(whole, full, sizes[1])


@jit
def no_sums(SIZE: tl.constexpr, P: tl.constexpr):
    """Return zeros for `memory_step` to add to."""
    return tl.full((SIZE, P.blocks), 0.0, tl.float32) if P.keep else tl.full((P.blocks, SIZE), 0.0, tl.float32)


@jit
def memory_step(block, first, sums, memory, call, EDGE: tl.constexpr, P: tl.constexpr):
    """Add what a tile of queries gives to dK and dV of a tile of blocks.

    sums: dK for each place of a block, then dV, (D, blocks) or without `P.keep` (blocks, D); memory: tiles of keys and values, if they are
    kept; call: pointers to query, key, value and mask of a head, its number, and all tensors, strides, sizes and scale.
    """
    pointers, group, tensors, strides, sizes, scale = call
    HIGH: tl.constexpr = P.high
    WIDE: tl.constexpr = P.wide
    UP: tl.constexpr = P.area_high - 1
    BEFORE: tl.constexpr = P.area_wide - 1
    ACROSS: tl.constexpr = WIDE + 2 * BEFORE
    ROW: tl.constexpr = 1 if P.keep else 0  # the axis that is not of the queries
    row = first + tl.arange(0, P.rows)
    q, grad, lse, delta = read_queries(pointers[0], tensors, strides, sizes, row, group, P)
    row, lse, delta = tl.expand_dims(row, ROW), tl.expand_dims(lse, ROW), tl.expand_dims(delta, ROW)
    scores, dw, shares, weights, seen = (), (), (), (), ()
    for i in tl.static_range(ACROSS * (HIGH + 2 * UP)):
        item, inside = locate(block, i // ACROSS - UP, i % ACROSS - BEFORE, sizes, P)
        allowed = may_attend(row, tl.expand_dims(item, 1 - ROW), tl.expand_dims(inside, 1 - ROW), pointers[3], sizes, P)
        if P.keep:
            e, d = item_tiles((q, grad), (memory[0][i], memory[1][i]), lse, allowed, scale[1], EDGE, P)
        else:
            k, v = read_memory(i, block, pointers[1], pointers[2], strides, sizes, P)
            e, d = item_tiles((k, v), (q, grad), lse, allowed, scale[1], EDGE, P)
        nothing = tl.full(e.shape, 0.0, tl.float32)
        scores, dw, shares, weights, seen = scores + (e,), dw + (d,), shares + (nothing,), weights + (nothing,), seen + (allowed,)
        if i // ACROSS >= UP and i % ACROSS >= BEFORE:
            p, gradients = window_gradients(scores, dw, delta, i - UP * ACROSS - BEFORE, ACROSS, P)
            shares = add_window(shares, gradients, i - UP * ACROSS - BEFORE, ACROSS, P)
            weights = add_window(weights, p, i - UP * ACROSS - BEFORE, ACROSS, P)
    of_keys, of_values = (), ()
    for i in tl.static_range(HIGH * WIDE):
        share = shares[(i // WIDE + UP) * ACROSS + i % WIDE + BEFORE]
        weight = weights[(i // WIDE + UP) * ACROSS + i % WIDE + BEFORE]
        if EDGE and (P.masked or P.causal):  # exactly 0 also where the row's log-sum-exp is NaN
            allowed = seen[(i // WIDE + UP) * ACROSS + i % WIDE + BEFORE]
            share, weight = tl.where(allowed, share, 0.0), tl.where(allowed, weight, 0.0)
        share, weight = share.to(q.dtype), weight.to(q.dtype)
        if P.keep:  # transposed: a product of Hopper's tensor cores has at least 64 rows, and a tile 16 blocks
            of_keys = of_keys + (tl.dot(tl.trans(q), share, sums[i], input_precision=P.precision),)
            of_values = of_values + (tl.dot(tl.trans(grad), weight, sums[HIGH * WIDE + i], input_precision=P.precision),)
        else:
            of_keys = of_keys + (tl.dot(share, q, sums[i], input_precision=P.precision),)
            of_values = of_values + (tl.dot(weight, grad, sums[HIGH * WIDE + i], input_precision=P.precision),)
    return of_keys + of_values


@jit
def memory_kernel(tensors, strides, coded, scale, P: tl.constexpr):
    """Compute dK and dV of one tile of blocks.

    tensors: as for `query_kernel`, the last two being dK (B, H, S, D) and dV (B, H, S, Dv).
    """
    HIGH: tl.constexpr = P.high
    WIDE: tl.constexpr = P.wide
    sizes = decode(coded)
    blocks = tl.cdiv(sizes[4], WIDE) * tl.cdiv(sizes[3], HIGH)
    tiles = tl.cdiv(blocks, P.blocks)
    group = tl.program_id(0) // tiles
    query, key, value, mask = enter(tensors, strides, sizes, group)
    begin = (tl.program_id(0) % tiles) * P.blocks
    block = begin + tl.arange(0, P.blocks)
    # A window that holds an item of a block starts up to A - 1 items before it and ends up to A - 1 after it.
    UP: tl.constexpr = P.area_high - 1
    BEFORE: tl.constexpr = P.area_wide - 1
    ACROSS: tl.constexpr = WIDE + 2 * BEFORE
    sums, keys, values = (), (), ()
    for _ in tl.static_range(HIGH * WIDE):
        sums = sums + (no_sums(P.key_padded, P),)
    for _ in tl.static_range(HIGH * WIDE):
        sums = sums + (no_sums(P.value_padded, P),)
    if P.keep:
        for i in tl.static_range(ACROSS * (HIGH + 2 * UP)):
            k, v = read_memory(i, block, key, value, strides, sizes, P)
            keys, values = keys + (k,), values + (v,)
    call = (query, key, value, mask), group, tensors, strides, sizes, scale
    row = first_row(begin, sizes, P)
    full = sizes[1]
    if not P.masked and HIGH * P.area_high == 1:
        full = first_full_row(begin, row, sizes, P)
        for first in tl.range(full, sizes[1], P.rows, disable_licm=True):
            sums = memory_step(block, first, sums, (keys, values), call, False, P)
    for first in tl.range(row, tl.minimum(full, sizes[1]), P.rows, disable_licm=True):
        sums = memory_step(block, first, sums, (keys, values), call, True, P)
    for i in tl.static_range(HIGH * WIDE):
        item, inside = locate(block, i // WIDE, i % WIDE, sizes, P)
        rows = group.to(tl.int64) * sizes[2] + item
        dk, dv = sums[i], sums[HIGH * WIDE + i]
        if P.keep:
            dk, dv = tl.trans(dk), tl.trans(dv)
        write_rows(tensors[7], rows, inside, dk * scale[0], P.key_size, P.key_padded)
        write_rows(tensors[8], rows, inside, dv, P.value_size, P.value_padded)
