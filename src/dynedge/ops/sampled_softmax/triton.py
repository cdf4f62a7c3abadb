"""sampled_softmax on a GPU: one kernel for loss and gradients, which are then summed by row in a fixed order.

The kernel finds out by itself which candidates are updated inside a chunk, from the chunk's own events, so that they
need not be listed and nothing waits for the GPU to count them. Legend: as in the package.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.decaying_columns import relative_to_chunks
from dynedge.ops.sampled_softmax import triton_kernels
from dynedge.ops.sampled_softmax.inputs import CHUNK, ChunkCandidates, ListedScores, ScoreBonus
from dynedge.ops.segment_sum.triton import readers, segment_sum, sum_by_row, tail_width

SHARED_BLOCK = 32  # candidates a program sums at once
UPDATED_BLOCK = 32  # events' states that a program adds at once


def sampled_softmax(
    query: Tensor,
    arena: Tensor,
    outside: Tensor,
    id_embeddings: Tensor | None,
    candidates: ChunkCandidates,
    item: Tensor,
    row: Tensor,
    item_row_after: Tensor,
    bonus: ScoreBonus | None = None,
    negative_weight: float = 1.0,
    decay: Tensor | None = None,
    listed: ListedScores | None = None,
    q: float = 0.0,
) -> Tensor:
    """As in the package, for `candidates`; item_row_after int[n]: row of event k's item after the event, or −1.

    Bonuses are passed to the kernel as a table [n, I], where no event's items have to be searched.
    """
    bonus_table = None
    if bonus is not None:
        bonus_table = arena.new_zeros(len(query), candidates.items.shape[1])
        bonus_table = bonus_table.index_put((bonus.event, bonus.item), bonus.value)
    query, shift = relative_to_chunks(query, arena, decay, CHUNK)
    tensors = query, arena, outside, id_embeddings, bonus_table, *(listed or (None, None))
    loss: Tensor = _SampledSoftmax.apply(  # type: ignore[no-untyped-call]
        *tensors, candidates, item, row, item_row_after, math.log(negative_weight), q, shift
    )
    return loss


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        arena: Tensor,
        outside: Tensor,
        id_embeddings: Tensor | None,
        bonus_table: Tensor | None,
        listed_true: Tensor | None,
        listed_others: Tensor | None,
        candidates: ChunkCandidates,
        item: Tensor,
        row: Tensor,
        item_row_after: Tensor,
        log_weight: float,
        q: float,
        shift: Tensor,
    ) -> Tensor:
        n, (rows, d), (chunks, count) = len(query), arena.shape, candidates.rows.shape
        is_bfloat16 = torch.is_autocast_enabled(arena.device.type)
        width = max(16, triton.next_power_of_2(d))
        row_registers = width * (1 if id_embeddings is None else 2) * (1 if is_bfloat16 else 2)
        block = CHUNK if row_registers <= 128 else 32  # events per program
        programs = chunks * (CHUNK // block)
        columns = min(32, max(16, triton.next_power_of_2(count)))  # candidates a program scores at once
        most_splits = triton.cdiv(count, columns) if candidates.all_items else 1
        splits = max(1, min(_num_processors(arena) // max(programs, 1), most_splits))
        losses, sums = arena.new_empty(programs), arena.new_empty(splits, 2, programs * block)
        query_grad = arena.new_empty(splits, *query.shape, dtype=query.dtype if splits == 1 else None)
        entries = n + programs * (count + CHUNK)
        state_grads = arena.new_empty(entries, d)
        id_grads = arena.new_empty(entries if id_embeddings is not None else 0, d + 1)
        bonus_grad = arena.new_empty(0 if bonus_table is None else n, count)
        has_listed = listed_true is not None and listed_others is not None
        listed_grad = arena.new_empty(2, n if has_listed else 0)
        updated_rows = torch.empty(programs * CHUNK, dtype=torch.int32, device=arena.device)
        listed = torch.stack([listed_true, listed_others]).float() if has_listed else arena  # type: ignore[list-item]
        tables = query.contiguous(), arena.contiguous(), outside.contiguous()
        for passes in () if not programs else ("both",) if splits == 1 else ("first", "second"):
            triton_kernels.compute_chunks[(programs, splits)](
                *(*tables, arena if id_embeddings is None else id_embeddings),
                *(arena if bonus_table is None else bonus_table, candidates.items, candidates.rows),
                *(candidates.first_update, item, row, item_row_after),
                *(
                    losses,
                    sums,
                    query_grad,
                    state_grads,
                    id_grads,
                    bonus_grad,
                    listed,
                    listed_grad,
                    updated_rows,
                    shift,
                    n,
                    count,
                    rows,
                    log_weight,
                    q,
                ),
                d=d,
                DECAYING=shift.shape[1],
                PASSES=passes,
                ALL_ITEMS=candidates.all_items,
                CHUNK=CHUNK,
                BQ=block,
                BA=columns,
                BK=width,
                HAS_IDS=id_embeddings is not None,
                HAS_BONUS=bonus_table is not None,
                HAS_LISTED=has_listed,
                DTYPE=tl.bfloat16 if is_bfloat16 else tl.float32,
                PRECISION="tf32x3" if not is_bfloat16 else "ieee" if arena.is_cuda else "rounded",
                num_warps=8,
                num_stages=1,
            )
        query_grad = query_grad[0] if splits == 1 else query_grad.sum(0).to(query.dtype)
        ctx.save_for_backward(query_grad, state_grads, id_grads, bonus_grad, listed_grad, item, updated_rows)
        ctx.row = row  # not saved, which would lose its remembered readers
        ctx.candidates, ctx.programs_per_chunk = candidates, CHUNK // block
        ctx.sizes = rows, len(outside), None if id_embeddings is None else len(id_embeddings)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query_grad, state_grads, id_grads, bonus_grad, listed_grad, item, updated_rows = ctx.saved_tensors
        rows, outside, num_ids = ctx.sizes
        grads = _Gradients(ctx.candidates, ctx.programs_per_chunk, updated_rows, grad)
        pool_grads = grads.of_pool(state_grads, ctx.row, rows, outside)
        id_grad = None if num_ids is None else grads.of_ids(id_grads, item, num_ids)
        bonus_grad = bonus_grad.mul_(grad) if ctx.needs_input_grad[4] else None
        of_listed = (listed_grad * grad).unbind() if ctx.needs_input_grad[5] else (None, None)
        return query_grad * grad.to(query_grad.dtype), *pool_grads, id_grad, bonus_grad, *of_listed, *[None] * 7


class _Gradients:
    """Sums of the kernel's gradient rows by the table rows they belong to, times the gradient of the loss.

    The kernel writes one row per event for its true item, then each program's for its candidates at the chunk's
    start, then each program's for the states its chunk's events wrote; of the last it writes those of candidates,
    and which they are.
    """

    def __init__(self, candidates: ChunkCandidates, programs_per_chunk: int, updated_rows: Tensor, grad: Tensor):
        self.candidates, self.programs_per_chunk = candidates, programs_per_chunk
        self.updated_rows, self.grad = updated_rows, grad
        self.candidate_rows = self._repeat(candidates.rows)
        self.group_size = candidates.chunks_per_sample * programs_per_chunk

    def of_pool(self, values: Tensor, row: Tensor, rows: int, outside: int) -> tuple[Tensor, Tensor]:
        """Gradients of the arena [rows, d] and of `outside`."""
        if self.candidates.all_items:
            pool = self._sum_of_states(values, row, self.candidate_rows, rows + outside)
            return pool[:rows], pool[rows:]
        in_arena = torch.where(self.candidate_rows < rows, self.candidate_rows, -1)
        arena_grad = self._sum_of_states(values, row, in_arena, rows)
        outside_grad = values.new_empty(outside, values.shape[1])
        self._sum_shared(values, len(row), rows, outside_grad)
        return arena_grad, outside_grad

    def _sum_of_states(self, values: Tensor, row: Tensor, candidate_rows: Tensor, size: int) -> Tensor:
        """[size, d]: sums of values by row: of true items, of candidates, and of states written inside chunks."""
        n, count = len(row), candidate_rows.numel()
        out = sum_by_row(values[:n], readers(row, size, self.candidates.distinct_true), scale=self.grad)
        keys, order = torch.sort(candidate_rows.flatten().int(), stable=True)
        segment_sum(values[n : n + count], order, keys, out, self.grad, add=True)
        places = self.updated_rows.numel() // self.programs_per_chunk
        if places:
            width = min(64, max(16, triton.next_power_of_2(values.shape[1])))
            triton_kernels.add_updated[(triton.cdiv(places, UPDATED_BLOCK),)](
                *(values[n + count :], self.updated_rows, self.grad, out, places, self.programs_per_chunk),
                D=values.shape[1],
                CHUNK=CHUNK,
                BM=UPDATED_BLOCK,
                BK=width,
            )
        return out

    def of_ids(self, values: Tensor, item: Tensor, num_ids: int) -> Tensor:
        """Gradient of the ID embeddings; sparse if candidates were sampled."""
        updated = torch.where(self.updated_rows >= 0, self._per_program(item), -1)
        if self.candidates.all_items:
            keys = _keys(item, self._repeat(self.candidates.items), updated)
            return self._sum_by_key(values, keys, num_ids)
        keys = _keys(item, self.candidates.items[:: self.candidates.chunks_per_sample], updated)
        out = values.new_empty(len(keys), values.shape[1])
        first, last = slice(len(item)), slice(len(keys) - len(updated), None)
        torch.mul(values[first], self.grad, out=out[first])
        torch.mul(values[-len(updated) :], self.grad, out=out[last])
        self._sum_shared(values, len(item), -1, out[first.stop : last.start])
        shape = num_ids, values.shape[1]
        return torch.sparse_coo_tensor(keys[None].long(), out, shape, check_invariants=False)

    def _sum_by_key(self, values: Tensor, keys: Tensor, size: int) -> Tensor:
        """float32[size, ..]: values summed by key, in a fixed order; negative keys are skipped."""
        ordered, source = torch.sort(keys, stable=True)
        out = values.new_zeros(size, values.shape[1])
        segment_sum(values, source, ordered, out, self.grad)
        return out

    def _repeat(self, per_chunk: Tensor) -> Tensor:
        """[P, C] from [m, C]: a row for every program of a chunk."""
        return per_chunk.repeat_interleave(self.programs_per_chunk, 0) if self.programs_per_chunk > 1 else per_chunk

    def _per_program(self, per_event: Tensor) -> Tensor:
        """int32[P · CHUNK]: the values of a chunk's events for each of its programs; −1 beyond the last event."""
        chunks = len(self.candidates.rows)
        padded = torch.nn.functional.pad(per_event.int(), (0, chunks * CHUNK - len(per_event)), value=-1)
        return padded.view(chunks, 1, CHUNK).expand(-1, self.programs_per_chunk, -1).flatten()

    def _sum_shared(self, values: Tensor, start: int, min_row: int, out: Tensor) -> None:
        """out [G · C, D]: the sum over the programs that share a candidate, in values [start + P · C + .., D].

        Candidates whose row is below `min_row` are left out.
        """
        programs, count = self.candidate_rows.shape
        width = min(64, max(16, triton.next_power_of_2(values.shape[1])))
        if out.numel():
            triton_kernels.sum_shared[(triton.cdiv(count, SHARED_BLOCK), len(out) // count)](
                *(values, self.candidate_rows, self.grad, out, start, count, programs, self.group_size, min_row),
                D=values.shape[1],
                BM=SHARED_BLOCK,
                BK=width,
                TAIL=tail_width(values.shape[1], width),
            )


def _num_processors(tensor: Tensor) -> int:
    """How many programs run at the same time on the tensor's device, roughly; a fixed number for the interpreter."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 8


def _keys(true: Tensor, candidates: Tensor, updated: Tensor) -> Tensor:
    """int32: the table row that each of the kernel's gradient rows belongs to; −1 for none."""
    return torch.cat([true.int(), candidates.flatten().int(), updated])
