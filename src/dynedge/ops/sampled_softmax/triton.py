"""sampled_softmax on a GPU: one kernel for loss and gradients, which are then summed by row in a fixed order.

The kernel finds by itself which candidates move inside a chunk, from the chunk's own events, so that nobody need list
them and nothing waits for the GPU to count. Legend: as in the package's docstring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.sampled_softmax import triton_kernels as kernels
from dynedge.ops.sampled_softmax.candidate_columns import CHUNK, ScoreBonus
from dynedge.ops.segment_sum.triton import segment_sum, tail_width

SHARED_BLOCK = 32  # candidates a program sums at once


@dataclass(frozen=True, eq=False)
class ChunkCandidates:
    """The candidates of a window's chunks, and where their states are: rows of the pool [arena | outside].

    `outside` has a row for every item or, where they are drawn, one for each of the C that `share` chunks share.
    """

    items: Tensor  # int[m, C]
    rows: Tensor  # int[m, C]: at the chunk's start
    moves: Tensor  # int32[m, C]: the first event from there on that moves it; beyond all events: none
    every: bool  # whether the candidates of each chunk are all items
    share: int = 1  # chunks in a row that have the same candidates


def sampled_softmax(
    wanted: Tensor,
    arena: Tensor,
    outside: Tensor,
    ids: Tensor | None,
    drawn: ChunkCandidates,
    item: Tensor,
    row: Tensor,
    after: Tensor,
    bonus: ScoreBonus | None = None,
    negative_weight: float = 1.0,
) -> Tensor:
    """As the package's, for candidates `drawn`; after int[n]: the row event k's item is read from then on, or −1.

    Bonuses are laid out as a table [n, I] for the kernel, where no item of an event has to be looked for.
    """
    added = None
    if bonus is not None:
        added = arena.new_zeros(len(wanted), drawn.items.shape[1]).index_put((bonus.event, bonus.item), bonus.value)
    behind = math.log(negative_weight)
    error: Tensor = _SampledSoftmax.apply(wanted, arena, outside, ids, added, drawn, item, row, after, behind)  # type: ignore[no-untyped-call]
    return error


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        wanted: Tensor,
        arena: Tensor,
        outside: Tensor,
        ids: Tensor | None,
        added: Tensor | None,
        drawn: ChunkCandidates,
        item: Tensor,
        row: Tensor,
        after: Tensor,
        behind: float,
    ) -> Tensor:
        n, (rows, d), (chunks, count) = len(wanted), arena.shape, drawn.rows.shape
        low = torch.is_autocast_enabled(arena.device.type)
        width = max(16, triton.next_power_of_2(d))
        held = width * (1 if ids is None else 2) * (1 if low else 2)
        block = CHUNK if held <= 128 else 32  # events a program takes
        programs = chunks * (CHUNK // block)
        columns = min(32, max(16, triton.next_power_of_2(count)))  # candidates it takes at once
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
                *(errors, sums, grad_wanted, grad_state, grad_id, grad_added, n, count, rows, behind),
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
        drawn, repeats = ctx.drawn, ctx.repeats
        on_rows = drawn.rows.repeat_interleave(repeats, 0) if repeats > 1 else drawn.rows
        written = _of_programs(after, len(drawn.rows), repeats)
        if drawn.every:
            pool = _summed(grad_state, _keys(row, on_rows, written), rows + outside).mul_(grad)
            for_arena, for_outside = pool[:rows], pool[rows:]
        else:
            inside = _keys(row, torch.where(on_rows < rows, on_rows, -1), written)
            for_arena = _summed(grad_state, inside, rows).mul_(grad)
            for_outside = grad_state.new_empty(outside, grad_state.shape[1])
            _sum_shared(grad_state, len(row), on_rows, rows, drawn.share * repeats, grad, for_outside)
        for_ids = None
        if ids is not None:
            moved = _of_programs(torch.where(after >= 0, item, -1), len(drawn.rows), repeats)
            if drawn.every:
                items = drawn.items.repeat_interleave(repeats, 0) if repeats > 1 else drawn.items
                for_ids = _summed(grad_id, _keys(item, items, moved), ids).mul_(grad)
            else:
                moved[grad_id[-len(moved) :, -1] == 0] = -1  # most are no candidates
                named = _keys(item, drawn.items[:: drawn.share], moved)
                values = grad_id.new_empty(len(named), grad_id.shape[1])
                first, last = slice(len(item)), slice(len(named) - len(moved), None)
                torch.mul(grad_id[first], grad, out=values[first])
                torch.mul(grad_id[-len(moved) :], grad, out=values[last])
                among = values[first.stop : last.start]
                _sum_shared(grad_id, len(item), on_rows, -1, drawn.share * repeats, grad, among)
                shape = ids, grad_id.shape[1]
                for_ids = torch.sparse_coo_tensor(named[None].long(), values, shape, check_invariants=False)
        for_added = grad_added.mul_(grad) if ctx.needs_input_grad[4] else None
        return grad_wanted * grad.to(grad_wanted.dtype), for_arena, for_outside, for_ids, for_added, *[None] * 5


def _processors(tensor: Tensor) -> int:
    """How many programs run at once where it is, about; a number like it for the interpreter."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 8


def _of_programs(of_events: Tensor, chunks: int, repeats: int) -> Tensor:
    """int32[P · CHUNK]: what is told of events, for each program of their chunk; −1 beyond the last."""
    padded = torch.nn.functional.pad(of_events.int(), (0, chunks * CHUNK - len(of_events)), value=-1)
    return padded.view(chunks, 1, CHUNK).expand(-1, repeats, -1).flatten()


def _keys(true: Tensor, drawn: Tensor, moved: Tensor) -> Tensor:
    """int32: whose gradient each row of the kernel's is; −1: nobody's."""
    return torch.cat([true.int(), drawn.flatten().int(), moved])


def _sum_shared(
    values: Tensor, start: int, rows: Tensor, least: int, members: int, scale: Tensor, out: Tensor
) -> None:
    """out [G · C, D]: of each candidate that `members` programs in a row share, `scale` times the sum of what they
    have in `values` [start + P · C + .., D], but for those whose `rows` [P, C] are below `least`."""
    programs, count = rows.shape
    width = min(64, max(16, triton.next_power_of_2(values.shape[1])))
    if out.numel():
        kernels.shared[(triton.cdiv(count, SHARED_BLOCK), len(out) // count)](
            *(values, rows, scale, out, start, count, programs, members, least),
            D=values.shape[1],
            BM=SHARED_BLOCK,
            BK=width,
            TAIL=tail_width(values.shape[1], width),
        )


def _summed(values: Tensor, keys: Tensor, size: int) -> Tensor:
    """float32[size, ..]: values summed by key, in fixed order; keys below 0 are nobody's."""
    ordered, source = torch.sort(keys, stable=True)
    out = values.new_zeros(size, values.shape[1])
    segment_sum(values, source, ordered, out)
    return out
