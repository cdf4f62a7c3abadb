"""gather_linear on a GPU: rows gathered into one matrix, in the precision of the product; gradients summed by row.

Legend: as in the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dynedge.ops.column_sum.triton import column_sum, relu_backward
from dynedge.ops.gather_linear import triton_kernels
from dynedge.ops.matmul import matmul
from dynedge.ops.segment_sum.triton import readers, segment_sum, sorted_index, sum_by_row

ALIGNMENT = 8  # numbers: matrix products are slow where rows are not a multiple of it
ROWS = 32  # that a program gathers at once
NUMBERS = 1024  # that a program converts at once


def gather_linear(parts: Sequence[tuple[Tensor, Tensor | None]], w: Tensor, bias: Tensor, relu: bool) -> Tensor:
    tables, indices = zip(*parts, strict=True)
    out: Tensor = _GatherLinear.apply(indices, relu, w, bias, *tables)  # type: ignore[no-untyped-call]
    return out


class _GatherLinear(torch.autograd.Function):
    """In bfloat16 under autocast, else in float32; gradients of w and bias are summed in float32."""

    @staticmethod
    def forward(
        ctx: Any, indices: tuple[Tensor | None, ...], relu: bool, w: Tensor, bias: Tensor, *tables: Tensor
    ) -> Tensor:
        dtype = torch.bfloat16 if torch.is_autocast_enabled(w.device.type) else w.dtype
        padding = -w.shape[1] % ALIGNMENT
        x, (weight, low_bias) = _concatenate(tables, indices, padding, dtype), converted(w, bias, dtype, padding)
        product = torch._addmm_activation if relu else torch.addmm
        out = product(low_bias, x, weight.T)
        ctx.indices, ctx.relu, ctx.width = indices, relu, w.shape[1]
        ctx.tables = [(table.shape, table.dtype) for table in tables]
        ctx.save_for_backward(x, weight, out if relu else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight, out = ctx.saved_tensors
        grad = grad.contiguous().to(x.dtype)
        of_bias = None
        if ctx.relu:
            grad, of_bias = relu_backward(grad, out)
        elif ctx.needs_input_grad[3]:
            of_bias = column_sum(grad)
        of_w = matmul(grad.T, x)[:, : ctx.width] if ctx.needs_input_grad[2] else None
        needed = ctx.needs_input_grad[4:]
        of_x, column, of_tables = torch.mm(grad, weight) if any(needed) else None, 0, list[Tensor | None]()
        for need, index, (shape, dtype) in zip(needed, ctx.indices, ctx.tables, strict=True):
            columns, column = slice(column, column + shape[1]), column + shape[1]
            of_tables.append(_gradient(of_x[:, columns], index, shape, dtype) if need and of_x is not None else None)
        return None, None, of_w, of_bias, *of_tables


def _concatenate(
    tables: Sequence[Tensor], indices: Sequence[Tensor | None], padding: int, dtype: torch.dtype
) -> Tensor:
    """[n, Σ c + padding]: the gathered rows, one part beside the other; the padding is zeros."""
    first, index = tables[0], indices[0]
    if len(tables) == 1 and index is None and not padding:
        return first.contiguous().to(dtype)
    n = len(first) if index is None else len(index)
    out, column = first.new_empty((n, sum(table.shape[1] for table in tables) + padding), dtype=dtype), 0
    rows = [table if table.stride(1) == 1 else table.contiguous() for table in tables]
    for k, (table, index) in enumerate(zip(rows, indices, strict=True)):
        columns, extra = table.shape[1], padding if k + 1 == len(tables) else 0
        if n and columns + extra:
            width = min(64, triton.next_power_of_2(columns + extra))
            triton_kernels.copy_rows[(triton.cdiv(n, ROWS), triton.cdiv(columns + extra, width))](
                *(table, table if index is None else index, out, n, columns, columns + extra),
                *(table.stride(0), out.shape[1], column),
                HAS_INDEX=index is not None,
                BM=ROWS,
                BK=width,
            )
        column += columns
    return out


def converted(w: Tensor, bias: Tensor, dtype: torch.dtype, padding: int = 0) -> tuple[Tensor, Tensor]:
    """A matrix, with so many columns of zeros more, and a vector in another precision, in one launch."""
    truncated = dtype != w.dtype and not w.is_cuda  # by Triton's interpreter, which does not round
    if truncated or not w.numel() or (dtype == w.dtype and not padding):
        return F.pad(w, (0, padding)).to(dtype).contiguous(), bias.to(dtype).contiguous()
    rows, columns = w.shape
    weight, low = w.new_empty(rows, columns + padding, dtype=dtype), torch.empty_like(bias, dtype=dtype)
    triton_kernels.convert[(triton.cdiv(weight.numel() + low.numel(), NUMBERS),)](
        *(w.detach().contiguous(), bias.detach().contiguous(), weight, low, rows, columns),
        PADDED=columns + padding,
        BM=NUMBERS,
        COUNT=bias.numel(),
    )
    return weight, low


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    out: Tensor = _GatherRows.apply(x, index)  # type: ignore[no-untyped-call]
    return out


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.index, ctx.table = index, (x.shape, x.dtype)  # not saved, which would lose its remembered order
        return x.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gradient(grad.contiguous(), ctx.index, *ctx.table), None


def table_and_rows(
    x: Tensor, read: Tensor, distinct: bool, last: Tensor | None, *copied: Tensor
) -> tuple[Tensor, ...]:
    """(x, x[read] and x[last] in the precision of a product, x[index] of each of `copied`), as in the package."""
    out: tuple[Tensor, ...] = _TableAndRows.apply(x, read, distinct, last, *copied)  # type: ignore[no-untyped-call]
    return out


def rows_or_zeros(x: Tensor, index: Tensor) -> Tensor:
    """x[index] in the precision of a product, and zeros for negative numbers; without gradient."""
    dtype = torch.bfloat16 if torch.is_autocast_enabled(x.device.type) else x.dtype
    return _concatenate((x,), (index,), 0, dtype)


class _TableAndRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, read: Tensor, distinct: bool, last: Tensor | None, *copied: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        of_last = () if last is None else (last,)
        ctx.shape, ctx.indices, ctx.distinct = x.shape, (read, *of_last, *copied), distinct
        rows = (rows_or_zeros(x, index) for index in (read, *of_last))
        return x.view_as(x), *rows, *(x.index_select(0, index.clamp_min(0)) for index in copied)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *row_grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (read, *copied), (of_read, *of_copied) = ctx.indices, row_grads
        base = None if grad is None else grad.contiguous()
        if of_read is not None:
            of_read = of_read if of_read.stride(1) == 1 else of_read.contiguous()
            out = sum_by_row(of_read, readers(read, ctx.shape[0], ctx.distinct), base)
        else:
            out = torch.zeros(ctx.shape, device=read.device) if base is None else base.clone()
        for index, values in zip(copied, of_copied, strict=True):
            if values is not None:
                keys, order = sorted_index(index)
                segment_sum(values.contiguous(), order, keys, out, add=True)
        return out, *[None] * (len(ctx.needs_input_grad) - 1)


def embed(
    tables: Sequence[Tensor], codes: Tensor, entities: Tensor, first: int
) -> tuple[Tensor, tuple[Tensor, Tensor | None]]:
    rows, of_first = _Embed.apply(codes, entities, first, *tables)  # type: ignore[no-untyped-call]
    return rows, (of_first, None)


class _Embed(torch.autograd.Function):
    """A launch per table each way, with the gradients of the first rows added to those of all."""

    @staticmethod
    def forward(ctx: Any, codes: Tensor, entities: Tensor, first: int, *tables: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        n, d = len(entities), tables[0].shape[1]
        out = tables[0].new_empty(n, len(tables) * d)
        source = torch.empty((len(tables), n), dtype=torch.int64, device=out.device)
        for k, table in enumerate(tables):
            if n:
                triton_kernels.embed[(triton.cdiv(n, ROWS),)](
                    *(table.detach(), codes[k], entities, out, source[k], n, codes.shape[1], out.shape[1], k * d),
                    D=d,
                    BM=ROWS,
                    BK=min(64, triton.next_power_of_2(d)),
                )
        ctx.save_for_backward(source)
        ctx.first, ctx.shapes = first, [table.shape for table in tables]
        return out, out[:first]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, of_first: Tensor | None) -> tuple[Tensor | None, ...]:
        (source,), (tables, n), d = ctx.saved_tensors, ctx.saved_tensors[0].shape, ctx.shapes[0][1]
        parts = [part if part is None else part.contiguous() for part in (grad, of_first)]
        given = next((part for part in parts if part is not None), None)
        if given is None:
            return None, None, None, *[None] * tables
        values = given.new_empty(tables, n, d)
        if n:
            triton_kernels.split_gradient[(triton.cdiv(n, ROWS), tables)](
                *(values if part is None else part for part in parts),
                *(values, n, ctx.first, tables * d),
                D=d,
                BM=ROWS,
                BK=min(64, triton.next_power_of_2(d)),
                HAS_ALL=parts[0] is not None,
                HAS_FIRST=parts[1] is not None,
            )
        grads = [
            torch.sparse_coo_tensor(rows[None], part, shape, check_invariants=False)
            for rows, part, shape in zip(source, values, ctx.shapes, strict=True)
        ]
        return None, None, None, *grads


def _gradient(grad: Tensor, index: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Of a table, from the gradient of its gathered rows."""
    if index is None:
        return grad.to(dtype)
    keys, order = sorted_index(index)
    out = grad.new_zeros(shape, dtype=torch.float32)
    segment_sum(grad, order, keys, out)
    return out.to(dtype)
