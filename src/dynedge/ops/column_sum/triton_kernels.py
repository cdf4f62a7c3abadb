"""Triton kernel of column_sum: one pass over the rows."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def sum_rows(
    x,
    activated,
    masked,
    partial,
    rows,
    columns,
    stride,
    BM: tl.constexpr,
    BK: tl.constexpr,
    HAS_RELU: tl.constexpr,
):
    """partial [programs, columns]: each program's sum of the rows it reads.

    HAS_RELU: rows of x are gradients of `activated`, the output of a ReLU; what passes it is written to `masked`.
    """
    col = tl.program_id(1) * BK + tl.arange(0, BK)
    total = tl.zeros([BM, BK], tl.float32)
    for low in range(tl.program_id(0) * BM, rows, tl.num_programs(0) * BM):
        row = low + tl.arange(0, BM)
        mask = (row < rows)[:, None] & (col < columns)[None, :]
        value = tl.load(x + row.to(tl.int64)[:, None] * stride + col[None, :], mask=mask, other=0.0)
        if HAS_RELU:
            place = row.to(tl.int64)[:, None] * columns + col[None, :]
            value = tl.where(tl.load(activated + place, mask=mask, other=0.0) <= 0, 0.0, value)
            tl.store(masked + place, value, mask=mask)
        total += value.to(tl.float32)
    tl.store(partial + tl.program_id(0) * columns + col, tl.sum(total, 0), mask=col < columns)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["x", "value_rows"])
def sum_weighted_rows(
    x,
    values,
    value_rows,
    partial,
    rows,
    columns,
    stride,
    BM: tl.constexpr,
    BK: tl.constexpr,
    G: tl.constexpr,
    BG: tl.constexpr,
):
    """partial [programs, 1 + G, columns]: sums of the rows a program reads, times one, then times each of G values.

    They are one product, [1 | values]ᵀ · x, in three parts of tf32.
    """
    col = tl.program_id(1) * BK + tl.arange(0, BK)[None, :]
    number = tl.arange(0, BG)
    total = tl.zeros([BG, BK], tl.float32)
    for low in range(tl.program_id(0) * BM, rows, tl.num_programs(0) * BM):
        row = low + tl.arange(0, BM)
        valid = (row < rows)[:, None]
        value = tl.load(x + row.to(tl.int64)[:, None] * stride + col, mask=valid & (col < columns), other=0.0)
        place = tl.load(value_rows + row, mask=row < rows, other=0).to(tl.int64)[None, :] * G + number[:, None] - 1
        factor = tl.load(values + place, mask=(number > 0)[:, None] & (number <= G)[:, None], other=0.0)
        factor = tl.where((number == 0)[:, None], 1.0, factor)
        total += tl.dot(factor, value.to(tl.float32), input_precision="tf32x3")
    target = partial + (tl.program_id(0) * (1 + G) + number)[:, None] * columns + col
    tl.store(target, total, mask=(number <= G)[:, None] & (col < columns))
