"""read_states on a GPU by Triton kernels. Never waits for the GPU: the number of ψ rows is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.adam.triton import coalesce
from dynedge.ops.read_states import triton_kernels

if TYPE_CHECKING:
    from dynedge.ops.read_states import EntityTable, LastEvents, StoredStates

BLOCK = 32  # rows a program computes at once
PROGRAMS = 256  # at most, that sum the gradient of ξ
MAX_READS = 4  # of one ψ in a window: its roots, candidates, last items and listed items


def read_states(groups: Sequence[tuple[EntityTable, Tensor]], extra: Tensor | None) -> Tensor:
    learned = [tensor for table, _ in groups for tensor in table[:2]]
    indices = [(*table[2:], entities) for table, entities in groups]
    out: Tensor = _ReadStates.apply(indices, extra, *learned)  # type: ignore[no-untyped-call]
    return out


class _ReadStates(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, groups: list[tuple[Tensor, ...]], extra: Tensor | None, *learned: Tensor) -> Tensor:
        sizes, d = [len(entities) for *_, entities in groups], len(learned[0])
        out = learned[0].new_empty(sum(sizes) + (0 if extra is None else len(extra)), d)
        source = torch.empty(sum(sizes), dtype=torch.int64, device=out.device)
        start = 0
        for i, size in enumerate(sizes):
            _fill(out[start:], source[start:], *learned[2 * i : 2 * i + 2], *groups[i])
            start += size
        if extra is not None:
            out[start:] = extra
        # Not the groups themselves: by the backward pass the stored states have changed.
        ctx.sizes, ctx.shapes = sizes, [tensor.shape for tensor in learned]
        ctx.save_for_backward(source)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (source,), grad = ctx.saved_tensors, grad.contiguous()
        grads, start = list[Tensor | None](), 0
        for i, size in enumerate(ctx.sizes):
            needs_xi, needs_psi = ctx.needs_input_grad[2 + 2 * i : 4 + 2 * i]
            group_grad, group_source = grad[start : start + size], source[start : start + size]
            grads.append(_xi_gradient(group_grad, group_source) if needs_xi else None)
            shape = ctx.shapes[2 * i + 1]
            grads.append(_psi_gradient(group_grad, group_source, shape) if needs_psi and shape[0] and size else None)
            start += size
        return None, grad[start:] if ctx.needs_input_grad[1] else None, *grads


def replace_rows(rows: Tensor, table: EntityTable, entities: Tensor) -> Tensor:
    """As in the package, in place."""
    xi, psi, *index = table
    out: Tensor = _ReplaceRows.apply(rows, (*index, entities), xi, psi)  # type: ignore[no-untyped-call]
    return out


class _ReplaceRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: tuple[Tensor, ...], xi: Tensor, psi: Tensor) -> Tensor:
        ctx.mark_dirty(rows)
        source = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
        _fill(rows, source, xi, psi, *group)
        ctx.save_for_backward(source)
        ctx.shape = psi.shape
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (source,), values = ctx.saved_tensors, grad.contiguous()
        of_xi = _xi_gradient(values, source) if ctx.needs_input_grad[2] else None
        has_psi = ctx.needs_input_grad[3] and ctx.shape[0] and len(source)
        return grad, None, of_xi, _psi_gradient(values.float(), source, ctx.shape) if has_psi else None


def _fill(
    rows: Tensor,
    source: Tensor,
    xi: Tensor,
    psi: Tensor,
    psi_row: Tensor,
    stored: Tensor,
    has_stored: Tensor,
    entities: Tensor,
) -> None:
    if len(entities):
        d, grid = rows.shape[1], (triton.cdiv(len(entities), BLOCK),)
        tables = xi.contiguous(), psi, psi_row, stored, has_stored
        triton_kernels.fill[grid](rows, source, *tables, entities, len(entities), D=d, BM=BLOCK, BK=_width(d))


def store_states(table: StoredStates, entities: Tensor, rows: Tensor, arena: Tensor, last: LastEvents) -> None:
    """As in the package, in one launch."""
    count, d = max(len(entities), len(last.entity)), arena.shape[1]
    if count:
        item = table.time if table.last_item is None else table.last_item
        triton_kernels.store[(triton.cdiv(count, BLOCK),)](
            *(table.stored, table.has_stored.view(torch.int8), entities, rows, arena.contiguous(), table.time, item),
            *(last.entity, last.time, last.item, len(entities), len(last.entity)),
            D=d,
            BM=BLOCK,
            BK=_width(d),
            HAS_ITEM=table.last_item is not None,
        )


def _psi_gradient(rows: Tensor, source: Tensor, shape: torch.Size) -> Tensor:
    """Sparse gradient with all rows; those that are not of ψ have a negative index, which the optimiser skips.

    Of a small ψ the rows are summed here: where gradients of one table have more rows in total than it has numbers,
    torch adds them by counting how many are distinct, which waits for the GPU and cannot be captured as a CUDA graph.
    """
    grad = torch.sparse_coo_tensor(source[None], rows, shape, check_invariants=False)
    return coalesce(grad) if MAX_READS * len(rows) > shape.numel() else grad


def _xi_gradient(rows: Tensor, source: Tensor) -> Tensor:
    size, d = rows.shape
    if not size:
        return rows.new_zeros(d, dtype=torch.float32)
    partial = rows.new_empty((min(PROGRAMS, triton.cdiv(size, BLOCK)), d), dtype=torch.float32)
    triton_kernels.xi_sums[(len(partial),)](rows, source, partial, size, D=d, BM=BLOCK, BK=_width(d))
    return partial.sum(0)


def _width(d: int) -> int:
    return int(min(64, triton.next_power_of_2(d)))
