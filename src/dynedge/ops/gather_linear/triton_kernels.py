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
    """out[:, first_column + ..]: the rows of a table, by index, with zeros from column `columns` on and for negative
    numbers."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    col = tl.program_id(1) * BK + tl.arange(0, BK)[None, :]
    valid = i < rows
    row = tl.load(index + i, mask=valid, other=0).to(tl.int64) if HAS_INDEX else i.to(tl.int64)
    value = tl.load(
        table + row[:, None] * stride + col, mask=(valid & (row >= 0))[:, None] & (col < columns), other=0.0
    )
    target = out + i.to(tl.int64)[:, None] * out_stride + first_column + col
    tl.store(target, value.to(out.dtype.element_ty), mask=valid[:, None] & (col < out_columns))


@triton.jit(do_not_specialize=["rows", "count"], do_not_specialize_on_alignment=["codes", "source"])
def embed(
    table,
    codes,
    entities,
    out,
    source,
    rows,
    count,
    out_stride,
    first_column,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """out[:, first_column + ..] = table[source], source = codes[entities]; entity −1 is the last of `count`."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    valid = i < rows
    entity = tl.load(entities + i, mask=valid, other=0).to(tl.int64)
    row = tl.load(codes + tl.where(entity < 0, entity + count, entity), mask=valid, other=0)
    tl.store(source + i, row, mask=valid)
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        mask = valid[:, None] & (col < D)
        value = tl.load(table + row[:, None] * D + col, mask=mask, other=0.0)
        tl.store(out + i.to(tl.int64)[:, None] * out_stride + first_column + col, value, mask=mask)


@triton.jit(do_not_specialize=["rows", "first"])
def split_gradient(
    grad,
    of_first,
    values,
    rows,
    first,
    stride,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    HAS_ALL: tl.constexpr,
    HAS_FIRST: tl.constexpr,
):
    """values [p, n, D]: the columns of each table in grad [n, p · D] plus, in the first rows, of_first."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    table = tl.program_id(1)
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        place = i.to(tl.int64)[:, None] * stride + table * D + col
        total = tl.zeros([BM, BK], tl.float32)
        if HAS_ALL:
            total += tl.load(grad + place, mask=(i < rows)[:, None] & (col < D), other=0.0)
        if HAS_FIRST:
            total += tl.load(of_first + place, mask=(i < first)[:, None] & (col < D), other=0.0)
        target = values + (table.to(tl.int64) * rows + i)[:, None] * D + col
        tl.store(target, total, mask=(i < rows)[:, None] & (col < D))


@triton.jit(do_not_specialize=["rows", "columns"])
def convert(w, bias, weight, low, rows, columns, PADDED: tl.constexpr, BM: tl.constexpr, COUNT: tl.constexpr):
    """weight [rows, PADDED] = w [rows, columns], then zeros; low [COUNT] = bias."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    row, column = i // PADDED, i % PADDED
    value = tl.load(w + row * columns + column, mask=(row < rows) & (column < columns), other=0.0)
    tl.store(weight + i, value.to(weight.dtype.element_ty), mask=row < rows)
    k = i - rows * PADDED
    value = tl.load(bias + k, mask=(k >= 0) & (k < COUNT), other=0.0)
    tl.store(low + k, value.to(low.dtype.element_ty), mask=(k >= 0) & (k < COUNT))
