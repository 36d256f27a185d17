# ruff: noqa: RUF005 (the compiler of kernels knows no unpacking into a tuple)
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportMissingParameterType=false
# The kernels below are a language of their own, read by its compiler: a tuple changes its length as a loop is unrolled.
"""The device side of area attention on CUDA: what both passes share, and the forward pass.

A score tile is made of `wide * high` small tiles of (rows, blocks) scores each, tile (y, x) holding the items at row `by * BY + y`, column
`bx * BX + x` of every block (by, bx). The items of one window then stand at the same place of different tiles, so a window's sum is a plain
sum of tiles: nothing is ever shifted along the key axis. See `regard.ops.kernels.area_triton` for why.
A sequence is a grid of one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

try:
    import triton  # pyright: ignore[reportMissingImports]  (an extra)
    import triton.language as tl  # pyright: ignore[reportMissingImports]
except ImportError:  # nothing below is called then, see `area_triton.supports`
    triton: Any = None
    tl: Any = None


def jit(function: Callable[..., Any]) -> Any:
    """Compile a kernel on its first call; without Triton, leave it as it is. Typed here, because an absent Triton has no types."""
    return function if triton is None else triton.jit(function)


class Plan(NamedTuple):
    """Everything that a kernel is compiled for.

    Attributes:
        rows: queries in a tile, a power of 2, 16 or more.
        blocks: blocks of items in a tile, a power of 2, 16 or more.
        high: BY, item rows of a block.
        wide: BX, item columns of a block.
        area_high: the largest height of an area, 1 for a sequence.
        area_wide: the largest width of an area.
        key_size: D.
        key_padded: the power of 2 from 16 on that holds D.
        value_size: Dv.
        value_padded: likewise.
        masked: whether there is a mask.
        causal: whether items after the query are hidden.
        precision: how float32 products are made, "tf32x3" or "tf32".
        keep: whether the kernel for the gradients of keys and values keeps those of a tile in shared memory, and works on tiles
            (rows, blocks) as the others, not on (blocks, rows).
    """

    rows: int
    blocks: int
    high: int
    wide: int
    area_high: int
    area_wide: int
    key_size: int
    key_padded: int
    value_size: int
    value_padded: int
    masked: bool
    causal: bool
    precision: str
    keep: bool


def encode(number: int) -> int:
    """Return 16 * number + 8: kernels are compiled anew for 1 and for multiples of 16, which a new length must not mean.

    Example:
        >>> encode(3)
        56
    """
    return 16 * number + 8


@jit
def decode(coded):
    """Undo `encode` for the sizes: H, T, S, rows and columns of the memory, the mask's four strides."""
    sizes = ()
    for i in tl.static_range(9):
        sizes = sizes + (coded[i] >> 4,)
    return sizes


@jit
def enter(tensors, strides, sizes, group):
    """Move the pointers of query, key, value and mask to one head of one example; sizes, here and below: see `decode`."""
    b = (group // sizes[0]).to(tl.int64)
    h = (group % sizes[0]).to(tl.int64)
    query = tensors[0] + b * strides[0][0] + h * strides[0][1]
    key = tensors[1] + b * strides[1][0] + h * strides[1][1]
    value = tensors[2] + b * strides[2][0] + h * strides[2][1]
    mask = tensors[3] + b * sizes[5] + h * sizes[6]
    return query, key, value, mask


@jit
def locate(block, y, x, sizes, P: tl.constexpr):
    """Return the items (blocks,) at place (y, x) of the blocks, and whether they are inside the memory."""
    columns = sizes[4]
    across = tl.cdiv(columns, P.wide)
    row = (block // across) * P.high + y
    column = (block % across) * P.wide + x
    inside = (row >= 0) & (row < sizes[3]) & (column >= 0) & (column < columns)
    return row * columns + column, inside


@jit
def locate_inside(block, y, x, sizes, EDGE: tl.constexpr, P: tl.constexpr):
    """Do as `locate`; without EDGE for blocks of a sequence that are inside the memory as a whole."""
    if EDGE:
        item, inside = locate(block, y, x, sizes, P)
    else:
        item, inside = block * P.wide + x, tl.full(block.shape, True, tl.int1)
    return item, inside


@jit
def read_rows(pointer, stride, index, inside, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Read (rows, PADDED) with zeros outside."""
    column = tl.arange(0, PADDED)
    keep = inside[:, None]
    if SIZE != PADDED:
        keep = keep & (column[None, :] < SIZE)
    return tl.load(pointer + index.to(tl.int64)[:, None] * stride + column[None, :], mask=keep, other=0.0)


@jit
def write_rows(pointer, index, inside, x, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Write (rows, PADDED) to rows of SIZE numbers without gaps."""
    column = tl.arange(0, PADDED)
    keep = inside[:, None]
    if SIZE != PADDED:
        keep = keep & (column[None, :] < SIZE)
    tl.store(pointer + index.to(tl.int64)[:, None] * SIZE + column[None, :], x.to(pointer.dtype.element_ty), mask=keep)


@jit
def may_attend(row, item, inside, mask, sizes, P: tl.constexpr):
    """Return which scores count: item inside the memory and not hidden; one shape for what differs by (rows, 1) or (1, rows), and so on."""
    allowed = inside
    if P.causal:
        allowed = allowed & (item <= row + (sizes[2] - sizes[1]))
    if P.masked:
        place = mask + row.to(tl.int64) * sizes[7] + item.to(tl.int64) * sizes[8]
        allowed = allowed & (tl.load(place, mask=(row < sizes[1]) & inside, other=0) != 0)
    return allowed


@jit
def blocks_seen(first, sizes, P: tl.constexpr):
    """Return how many blocks, from the first on, the queries from `first` on may look at."""
    across = tl.cdiv(sizes[4], P.wide)
    seen = across * tl.cdiv(sizes[3], P.high)
    if P.causal:
        last = tl.minimum(first + P.rows, sizes[1]) - 1 + sizes[2] - sizes[1]
        row = last // sizes[4]
        until = (row // P.high) * across + across
        if P.high == 1:
            until = row * across + (last % sizes[4]) // P.wide + 1
        seen = tl.where(last < 0, 0, tl.minimum(seen, until))
    return seen


@jit
def full_blocks(first, sizes, P: tl.constexpr):
    """Return how many blocks, from the first on, with all that follows of their windows, the queries from `first` on see as a whole."""
    items = sizes[2]
    if P.causal:
        items = tl.minimum(items, first + 1 + sizes[2] - sizes[1])
    steps = tl.maximum(items - (P.area_wide - 1), 0) // (P.wide * P.blocks)
    return tl.where(sizes[3] == 1, steps * P.blocks, 0)


@jit
def window_sums(tiles, less, START: tl.constexpr, ACROSS: tl.constexpr, P: tl.constexpr):
    """Return the sums over the windows that start at the tile START minus `less`, ordered by height, then width."""
    AREA_HIGH: tl.constexpr = P.area_high
    AREA_WIDE: tl.constexpr = P.area_wide
    band = tiles[START : START + AREA_WIDE]
    sums = ()
    for h in tl.static_range(AREA_HIGH):
        if h > 0:
            longer = ()
            for c in tl.static_range(AREA_WIDE):
                longer = longer + (band[c] + tiles[START + h * ACROSS + c],)
            band = longer
        run = band[0] - less
        sums = sums + (run,)
        for c in tl.static_range(1, AREA_WIDE):
            run = run + band[c]
            sums = sums + (run,)
    return sums


@jit
def add_at(tiles, tile, AT: tl.constexpr):
    """Add a tile to the tile AT."""
    return tiles[:AT] + (tiles[AT] + tile,) + tiles[AT + 1 :]


@jit
def to_items(windows, P: tl.constexpr):
    """Turn what belongs to windows (by height, then width) into what each of their items gets: the sum over the windows that hold it."""
    AREA_HIGH: tl.constexpr = P.area_high
    AREA_WIDE: tl.constexpr = P.area_wide
    lines = ()
    for h in tl.static_range(AREA_HIGH):
        run = windows[(h + 1) * AREA_WIDE - 1]
        line = (run,)
        for c in tl.static_range(1, AREA_WIDE):
            run = run + windows[(h + 1) * AREA_WIDE - 1 - c]
            line = (run,) + line
        lines = lines + line
    for h in tl.static_range(AREA_HIGH - 2, -1, -1):
        for c in tl.static_range(AREA_WIDE):
            lines = add_at(lines, lines[(h + 1) * AREA_WIDE + c], h * AREA_WIDE + c)
    return lines


@jit
def add_window(tiles, items, START: tl.constexpr, ACROSS: tl.constexpr, P: tl.constexpr):
    """Add the items' shares of the windows that start at the tile START to the tiles."""
    AREA_HIGH: tl.constexpr = P.area_high
    AREA_WIDE: tl.constexpr = P.area_wide
    for h in tl.static_range(AREA_HIGH):
        for c in tl.static_range(AREA_WIDE):
            tiles = add_at(tiles, items[h * AREA_WIDE + c], START + h * ACROSS + c)
    return tiles


@jit
def window_weights(scores, P: tl.constexpr):
    """Return exp2 of the windows' mean scores, spread over their items, and its sum over all windows, from tiles of item scores."""
    AREA_HIGH: tl.constexpr = P.area_high
    AREA_WIDE: tl.constexpr = P.area_wide
    HIGH: tl.constexpr = P.high
    WIDE: tl.constexpr = P.wide
    ACROSS: tl.constexpr = WIDE + AREA_WIDE - 1
    total = tl.full(scores[0].shape, 0.0, tl.float32)
    weights = ()
    for _ in tl.static_range(ACROSS * (HIGH + AREA_HIGH - 1)):
        weights = weights + (tl.full(scores[0].shape, 0.0, tl.float32),)
    for start in tl.static_range(HIGH * WIDE):
        sums = window_sums(scores, 0.0, (start // WIDE) * ACROSS + start % WIDE, ACROSS, P)
        windows = ()
        for h in tl.static_range(AREA_HIGH):
            for c in tl.static_range(AREA_WIDE):
                windows = windows + (tl.exp2(sums[h * AREA_WIDE + c] * (1.0 / ((h + 1) * (c + 1)))),)
        items = to_items(windows, P)
        total += items[0]  # every window holds its first item
        weights = add_window(weights, items, (start // WIDE) * ACROSS + start % WIDE, ACROSS, P)
    return weights, total


@jit
def forward_step(q, row, begin, state, call, EDGE: tl.constexpr, P: tl.constexpr):
    """Attend to a tile of blocks.

    state: the queries' highest scores, sums of weights and contexts up to now, which are returned with those of the tile; call: pointers to
    keys, values, mask and taint of a head, and strides, sizes and scale; EDGE: whether something may be hidden or outside of the memory.
    """
    top, total, out = state
    pointers, strides, sizes, scale = call
    ACROSS: tl.constexpr = P.wide + P.area_wide - 1
    TILES: tl.constexpr = ACROSS * (P.high + P.area_high - 1)
    block = begin + tl.arange(0, P.blocks)
    scores = ()
    for i in tl.static_range(TILES):
        item, inside = locate_inside(block, i // ACROSS, i % ACROSS, sizes, EDGE, P)
        k = read_rows(pointers[0], strides[1][2], item, inside, P.key_size, P.key_padded)
        e = tl.dot(q, tl.trans(k), input_precision=P.precision) * scale
        if P.masked or P.causal:  # before the mask, so that only those who may attend the item see its taint
            e += tl.load(pointers[3] + item, mask=inside, other=0.0)[None, :]
            e += e * 0.0  # NaN for infinity
        if EDGE:
            allowed = may_attend(row[:, None], item[None, :], inside[None, :], pointers[2], sizes, P)
            e = tl.where(allowed, e, float("-inf"))
        scores = scores + (e,)
    largest = scores[0]
    for i in tl.static_range(1, TILES):
        largest = tl.maximum(largest, scores[i])
    # No mean is above its largest item. Subtracted from the items, not from the means: what matters is then small and exact.
    new = tl.maximum(top, tl.max(largest, 1))
    safe = tl.where(new == float("-inf"), 0.0, new)
    moved = ()
    for i in tl.static_range(TILES):
        moved = moved + (scores[i] - safe[:, None],)
    weights, tile_total = window_weights(moved, P)
    shrink = tl.exp2(top - safe)
    total = total * shrink + tl.sum(tile_total, 1)
    out = out * shrink[:, None]
    for i in tl.static_range(TILES):
        item, inside = locate_inside(block, i // ACROSS, i % ACROSS, sizes, EDGE, P)
        v = read_rows(pointers[1], strides[2][2], item, inside, P.value_size, P.value_padded)
        out = tl.dot(weights[i].to(v.dtype), v, out, input_precision=P.precision)
    return new, total, out


@jit
def forward_kernel(tensors, strides, coded, scale, P: tl.constexpr):
    """Compute context and log-sum-exp of one tile of queries.

    tensors: query, key, value, mask, taint (B, H, S), out (B, H, T, Dv), lse (B, H, T); the last three without gaps. A taint is 0, or NaN
    for an item whose value was not finite. scale: of the products, times log2(e).
    """
    sizes = decode(coded)
    tiles = tl.cdiv(sizes[1], P.rows)
    group = tl.program_id(0) // tiles
    query, key, value, mask = enter(tensors, strides, sizes, group)
    first = (tl.program_id(0) % tiles) * P.rows
    row = first + tl.arange(0, P.rows)
    real = row < sizes[1]
    q = read_rows(query, strides[0][2], row, real, P.key_size, P.key_padded)
    call = (key, value, mask, tensors[4] + group.to(tl.int64) * sizes[2]), strides, sizes, scale
    top = tl.full((P.rows,), float("-inf"), tl.float32)
    total = tl.full((P.rows,), 0.0, tl.float32)
    out = tl.full((P.rows, P.value_padded), 0.0, tl.float32)
    until = blocks_seen(first, sizes, P)
    start = 0
    if not P.masked and P.high * P.area_high == 1:  # where nothing is hidden, a fourth of the instructions is saved
        start = full_blocks(first, sizes, P)
        for begin in range(0, start, P.blocks):
            top, total, out = forward_step(q, row, begin, (top, total, out), call, False, P)
    for begin in range(start, until, P.blocks):
        top, total, out = forward_step(q, row, begin, (top, total, out), call, True, P)
    rows = group.to(tl.int64) * sizes[1] + row
    lse = (top + tl.log2(total)) * 0.6931471805599453
    out = out / total[:, None]
    if P.masked or P.causal:  # a query that sees nothing, whatever it holds, gets zeros
        taint = tl.sum(q.to(tl.float32) * 0.0, 1)
        empty = top == float("-inf")
        lse = tl.where(empty, float("-inf"), lse + taint)
        out = tl.where(empty[:, None], 0.0, out + taint[:, None])
    write_rows(tensors[5], rows, real, out, P.value_size, P.value_padded)
    tl.store(tensors[6] + rows, lse, mask=real)
