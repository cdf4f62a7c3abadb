"""softmax_loss on a GPU: one kernel for errors and gradients, then the gradients are summed by row, in fixed order.

The kernel finds by itself which candidates move inside a chunk, from the chunk's own events, so that nobody need list
them and nothing waits for the GPU to count. Legend: as in the package's docstring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.row_sums.triton import row_sums
from dynedge.ops.softmax_loss import triton_kernels as kernels
from dynedge.ops.softmax_loss.columns import CHUNK, Bonus


@dataclass(frozen=True, eq=False)
class Drawn:
    """The candidates of a window's chunks, and where their states are: rows of the pool [arena | outside].

    `outside` has a row for every item or, where they are drawn, one for each of the m · C.
    """

    items: Tensor  # int[m, C]
    rows: Tensor  # int[m, C]: at the chunk's start
    moves: Tensor  # int32[m, C]: the first event from there on that moves it; beyond all events: none
    every: bool  # whether the candidates of each chunk are all items


def softmax_loss(
    wanted: Tensor,
    arena: Tensor,
    outside: Tensor,
    ids: Tensor | None,
    drawn: Drawn,
    item: Tensor,
    row: Tensor,
    after: Tensor,
    bonus: Bonus | None = None,
) -> Tensor:
    """As the package's, for candidates `drawn`; after int[n]: the row event k's item is read from then on, or −1.

    Bonuses are laid out as a table [n, I] for the kernel, where no item of an event has to be looked for.
    """
    added = None
    if bonus is not None:
        added = arena.new_zeros(len(wanted), drawn.items.shape[1]).index_put((bonus.event, bonus.item), bonus.value)
    error: Tensor = _SoftmaxLoss.apply(wanted, arena, outside, ids, added, drawn, item, row, after)  # type: ignore[no-untyped-call]
    return error


class _SoftmaxLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        wanted: Tensor,
        arena: Tensor,
        outside: Tensor,
        ids: Tensor | None,
        added: Tensor | None,
        drawn: Drawn,
        item: Tensor,
        row: Tensor,
        after: Tensor,
    ) -> Tensor:
        n, (rows, d), (chunks, count) = len(wanted), arena.shape, drawn.rows.shape
        low = torch.is_autocast_enabled(arena.device.type)
        width = max(16, triton.next_power_of_2(d))
        held = width * (1 if ids is None else 2) * (1 if low else 2)
        block = CHUNK if held <= 128 else 32  # events a program takes
        programs = chunks * (CHUNK // block)
        columns = min(64, max(16, triton.next_power_of_2(count)))  # candidates it takes at once
        splits = max(
            1, min(_processors(arena) // max(programs, 1), triton.cdiv(count, columns) if drawn.every else 1)
        )
        errors, sums = arena.new_empty(programs), arena.new_empty(splits, 2, programs * block)
        grad_wanted = arena.new_empty(splits, *wanted.shape, dtype=wanted.dtype if splits == 1 else None)
        entries = n + programs * (count + CHUNK)
        grad_state = arena.new_empty(entries, d)
        grad_id = arena.new_empty(entries if ids is not None else 0, d + 1)
        grad_added = arena.new_empty(0 if added is None else n, count)
        for passes in () if not programs else ("both",) if splits == 1 else ("first", "second"):
            kernels.chunks[(programs, splits)](
                *(wanted.contiguous(), arena.contiguous(), outside.contiguous(), arena if ids is None else ids),
                *(arena if added is None else added, drawn.items, drawn.rows, drawn.moves, item, row, after),
                *(errors, sums, grad_wanted, grad_state, grad_id, grad_added, n, count, rows),
                d=d,
                PASSES=passes,
                EVERY=drawn.every,
                CHUNK=CHUNK,
                BQ=block,
                BA=columns,
                BK=width,
                IDS=ids is not None,
                ADDED=added is not None,
                KIND=tl.bfloat16 if low else tl.float32,
                PRECISION="tf32x3" if not low else "ieee" if arena.is_cuda else "rounded",
                num_warps=8,
                num_stages=1,
            )
        grad_wanted = grad_wanted[0] if splits == 1 else grad_wanted.sum(0).to(wanted.dtype)
        ctx.save_for_backward(grad_wanted, grad_state, grad_id, grad_added, item, row, after)
        ctx.drawn, ctx.repeats = drawn, CHUNK // block
        ctx.sizes = rows, len(outside), None if ids is None else len(ids)
        return errors.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_wanted, grad_state, grad_id, grad_added, item, row, after = ctx.saved_tensors
        rows, outside, ids = ctx.sizes
        chunks = len(ctx.drawn.items)
        if ctx.drawn.every:
            pool = _summed(grad_state, _keys(row, ctx.drawn.rows, after, ctx.repeats), rows + outside).mul_(grad)
            for_arena, for_outside = pool[:rows], pool[rows:]
        else:  # each drawn candidate that the window does not meet has a row of `outside` of its own
            met = ctx.drawn.rows < rows
            inside = torch.where(met, ctx.drawn.rows, -1)
            for_arena = _summed(grad_state, _keys(row, inside, after, ctx.repeats), rows).mul_(grad)
            own = grad_state[len(row) :][: ctx.repeats * outside].view(chunks, ctx.repeats, *met.shape[1:], -1)
            factor = torch.where(met, torch.zeros_like(grad), grad)[..., None]
            for_outside = (own.sum(1) if ctx.repeats > 1 else own[:, 0]).mul(factor).flatten(0, 1)
        for_ids = None
        if ids is not None:
            named = _keys(item, ctx.drawn.items, torch.where(after >= 0, item, -1), ctx.repeats)
            if ctx.drawn.every:
                for_ids = _summed(grad_id, named, ids).mul_(grad)
            else:
                moved = named[-chunks * ctx.repeats * CHUNK :]  # most are no candidates
                moved[grad_id[-len(moved) :, -1] == 0] = -1
                shape = ids, grad_id.shape[1]
                for_ids = torch.sparse_coo_tensor(named[None].long(), grad_id * grad, shape, check_invariants=False)
        for_added = grad_added.mul_(grad) if ctx.needs_input_grad[4] else None
        return grad_wanted * grad.to(grad_wanted.dtype), for_arena, for_outside, for_ids, for_added, *[None] * 4


def _processors(tensor: Tensor) -> int:
    """How many programs run at once where it is, about; a number like it for the interpreter."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 8


def _keys(true: Tensor, drawn: Tensor, moved: Tensor, repeats: int) -> Tensor:
    """int32: whose gradient each row of the kernel's is; −1: nobody's."""
    chunks = len(drawn)
    padded = torch.nn.functional.pad(moved, (0, chunks * CHUNK - len(moved)), value=-1).view(chunks, CHUNK)
    parts = drawn.repeat_interleave(repeats, 0), padded.repeat_interleave(repeats, 0)
    return torch.cat([true.int(), *(part.flatten().int() for part in parts)])


def _summed(values: Tensor, keys: Tensor, size: int) -> Tensor:
    """float32[size, ..]: values summed by key, in fixed order; keys below 0 are nobody's."""
    ordered, source = torch.sort(keys, stable=True)
    out = values.new_zeros(size, values.shape[1])
    row_sums(values, source, ordered, out)
    return out
