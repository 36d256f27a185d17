# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportMissingParameterType=false
# The kernels below are a language of their own, read by its compiler.
"""The device side of area attention on CUDA: what is done to rows before the passes.

A zero weight does not stop a NaN in a product, so that rows which are not finite are replaced by zeros where something may be hidden; who
may see them is told by a number of its own. Each kernel reads its rows once, which costs a few percent of a pass.
"""

from __future__ import annotations

from regard.ops.kernels.area_triton_forward import jit, tl


@jit
def row_tile(pointer, stride, row, real, coded, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Read rows (rows, PADDED) of a tensor (B, H, N, D), counted over all heads, zeros outside; coded: H, N, ..."""
    heads, length = coded[0] >> 4, coded[1] >> 4
    group = row // length
    column = tl.arange(0, PADDED)
    start = (group // heads) * stride[0] + (group % heads) * stride[1] + (row % length) * stride[2]
    return tl.load(pointer + start[:, None] + column[None, :], mask=real[:, None] & (column < SIZE)[None, :], other=0.0)


@jit
def write_tile(pointer, row, real, x, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Write rows to a tensor without gaps."""
    column = tl.arange(0, PADDED)
    tl.store(pointer + row[:, None] * SIZE + column[None, :], x, mask=real[:, None] & (column < SIZE)[None, :])


@jit
def taint_of(x):
    """Return 0 for each row of x (rows, PADDED), NaN for one that is not finite, in float32 also one that a product rounds to infinity."""
    # A float32 product is made of three in TF32 (11 bits): numbers from 3.402e38 on become infinite there, also under a weight of zero.
    x = x.to(tl.float32)
    return tl.sum(tl.where(tl.abs(x) > 3.4e38, float("nan"), x * 0.0), 1)


@jit
def clean_kernel(tensors, stride, coded, SIZE: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """Copy rows, tainted ones as zeros.

    tensors: rows (B, H, N, D), clean rows and taint (B, H, N) without gaps, see `taint_of`.
    coded: H, N and the number of rows, see `encode`.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < (coded[2] >> 4)
    x = row_tile(tensors[0], stride, row, real, coded, SIZE, PADDED)
    taint = taint_of(x)
    write_tile(tensors[1], row, real, tl.where((taint == 0.0)[:, None], x, 0.0), SIZE, PADDED)
    tl.store(tensors[2] + row, taint, mask=real)


@jit
def delta_kernel(tensors, stride, coded, SIZE: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, HIDES: tl.constexpr):
    """Compute delta, the products of the contexts and their gradients.

    tensors: gradient of the context (B, H, T, Dv), context, log-sum-exp (B, H, T), then out: delta, and if something is hidden clean
    gradients and a log-sum-exp that is NaN where a gradient or a delta is not finite; all but the first without gaps.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < (coded[2] >> 4)
    column = tl.arange(0, PADDED)
    grad = row_tile(tensors[0], stride, row, real, coded, SIZE, PADDED)
    keep = real[:, None] & (column < SIZE)[None, :]
    out = tl.load(tensors[1] + row[:, None] * SIZE + column[None, :], mask=keep, other=0.0)
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    if HIDES:
        taint = taint_of(grad)
        write_tile(tensors[4], row, real, tl.where((taint == 0.0)[:, None], grad, 0.0), SIZE, PADDED)
        taint += delta * 0.0
        lse = tl.load(tensors[2] + row, mask=real, other=0.0)
        tl.store(tensors[5] + row, lse + taint, mask=real)
        delta = tl.where(taint == 0.0, delta, 0.0)
    tl.store(tensors[3] + row, delta, mask=real)
