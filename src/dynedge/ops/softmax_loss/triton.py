"""softmax_loss on a GPU: one kernel for errors and gradients, then the gradients are summed by row, in fixed order.

Legend: as in the package's docstring.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.row_sums.triton import row_sums
from dynedge.ops.softmax_loss import triton_kernels as kernels
from dynedge.ops.softmax_loss.columns import CHUNK, Columns


def softmax_loss(
    wanted: Tensor, arena: Tensor, outside: Tensor, ids: Tensor | None, columns: Columns, item: Tensor, row: Tensor
) -> Tensor:
    error: Tensor = _SoftmaxLoss.apply(wanted, arena, outside, ids, columns, item, row)  # type: ignore[no-untyped-call]
    return error


class _SoftmaxLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        wanted: Tensor,
        arena: Tensor,
        outside: Tensor,
        ids: Tensor | None,
        columns: Columns,
        item: Tensor,
        row: Tensor,
    ) -> Tensor:
        n, (rows, d), width = len(wanted), arena.shape, columns.row.shape[1]
        low = torch.is_autocast_enabled(arena.device.type)
        block = CHUNK if d <= 64 or (low and d <= 128) else 32  # events a program takes
        programs = len(columns.row) * (CHUNK // block)
        errors = arena.new_empty(programs)
        grad_wanted = torch.empty_like(wanted, memory_format=torch.contiguous_format)
        grad_state = arena.new_empty(n + programs * width, d)
        grad_id = arena.new_empty(n + programs * width if ids is not None else 0, d + 1)
        if programs:
            kernels.chunks[(programs,)](
                *(wanted.contiguous(), arena.contiguous(), outside.contiguous(), arena if ids is None else ids),
                *(columns.item, columns.row, columns.since, columns.until, item, row),
                *(errors, grad_wanted, grad_state, grad_id, n, width, rows),
                d=d,
                CHUNK=CHUNK,
                BQ=block,
                BA=min(64, max(16, triton.next_power_of_2(width))),
                BK=max(16, triton.next_power_of_2(d)),
                IDS=ids is not None,
                KIND=tl.bfloat16 if low else tl.float32,
                PRECISION="tf32x3" if not low else "ieee" if arena.is_cuda else "rounded",
                num_warps=8,
            )
        ctx.save_for_backward(grad_wanted, grad_state, grad_id, item, row)
        ctx.columns, ctx.repeats = columns, CHUNK // block
        ctx.sizes = rows, len(outside), None if ids is None else len(ids)
        return errors.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_wanted, grad_state, grad_id, item, row = ctx.saved_tensors
        rows, outside, ids = ctx.sizes
        pool = _summed(grad_state, torch.cat([row, _each(ctx.columns.row, ctx)]), rows + outside).mul_(grad)
        for_ids = None
        if ids is not None:
            columns = ctx.columns
            real = torch.where(columns.since < columns.until, columns.item, columns.item[:, :1])
            named = torch.cat([item, _each(real, ctx)])
            if columns.count == ids:
                for_ids = _summed(grad_id, named, ids).mul_(grad)
            else:
                for_ids = torch.sparse_coo_tensor(
                    named[None], grad_id * grad, (ids, grad_id.shape[1]), check_invariants=False
                )
        return grad_wanted * grad.to(grad_wanted.dtype), pool[:rows], pool[rows:], for_ids, None, None, None


def _each(table: Tensor, ctx: Any) -> Tensor:
    """A chunk's columns once for each program that did some of its events."""
    return table.repeat_interleave(ctx.repeats, 0).flatten()


def _summed(values: Tensor, keys: Tensor, size: int) -> Tensor:
    """float32[size, ..]: values summed by key, in fixed order."""
    ordered, source = torch.sort(keys, stable=True)
    out = values.new_zeros(size, values.shape[1])
    row_sums(values, source, ordered, out)
    return out
