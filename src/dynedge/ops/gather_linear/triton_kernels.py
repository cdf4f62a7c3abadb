"""Triton kernel of gather_linear: rows of a table, side by side with others."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def copy_rows(
    table,
    index,
    out,
    rows,
    columns,
    out_columns,
    stride,
    out_stride,
    first_column,
    HAS_INDEX: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """out[:, first_column + ..]: the rows of a table, by index, with zeros from column `columns` on."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    col = tl.program_id(1) * BK + tl.arange(0, BK)[None, :]
    valid = i < rows
    row = tl.load(index + i, mask=valid, other=0).to(tl.int64) if HAS_INDEX else i.to(tl.int64)
    value = tl.load(table + row[:, None] * stride + col, mask=valid[:, None] & (col < columns), other=0.0)
    target = out + i.to(tl.int64)[:, None] * out_stride + first_column + col
    tl.store(target, value.to(out.dtype.element_ty), mask=valid[:, None] & (col < out_columns))
