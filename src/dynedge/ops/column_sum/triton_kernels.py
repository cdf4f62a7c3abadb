"""Triton kernel of column_sum: one pass over the rows."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def sum_rows(x, partial, rows, columns, stride, BM: tl.constexpr, BK: tl.constexpr):
    """partial [programs, columns]: each program's sum of the rows it reads."""
    col = tl.program_id(1) * BK + tl.arange(0, BK)
    total = tl.zeros([BM, BK], tl.float32)
    for low in range(tl.program_id(0) * BM, rows, tl.num_programs(0) * BM):
        row = low + tl.arange(0, BM)
        mask = (row < rows)[:, None] & (col < columns)[None, :]
        total += tl.load(x + row.to(tl.int64)[:, None] * stride + col[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(partial + tl.program_id(0) * columns + col, tl.sum(total, 0), mask=col < columns)
