"""Rows of candidate items: which state of a candidate each event of a window reads, the one just before the event.

Legend: n events of a window, m chunks, C candidates of a chunk, A columns (see ops/sampled_softmax), I items.

The events of a chunk share their candidates, so that their scores are one matrix product against the candidates'
states at the chunk's start. Each state that a candidate takes inside a chunk is a column of its own.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynedge.models.window_index import WindowIndex
from dynedge.ops import rows_before as rows_op
from dynedge.ops.rows_before import ItemRows
from dynedge.ops.sampled_softmax import CHUNK, CandidateColumns, ChunkCandidates
from dynedge.plan.schedule import NO_ROW, Schedule
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

FOREVER = np.iinfo(np.int64).max


def num_chunks(events: int) -> int:
    return -(-events // CHUNK)


def candidates_of_chunks(
    index: WindowIndex, negatives: Tensor | None, num_items: int, share: int = 1
) -> CandidateColumns | ChunkCandidates:
    """The candidates of a window's chunks, as the loss takes them on the path the window is indexed for.

    `negatives` int64[⌈m / share⌉, C], each row for `share` chunks in a row; None: all items.
    """
    chunks, device = num_chunks(len(index.window)), index.item.device

    def per_chunk(rows: Tensor) -> Tensor:
        return rows if share == 1 else rows[torch.arange(chunks, device=rows.device) // share]

    if not index.uses_triton:
        every = np.broadcast_to(np.arange(num_items, dtype=np.int32), (chunks, num_items))
        some = every if negatives is None else per_chunk(negatives.int()).cpu().numpy()
        return candidate_columns(index.schedule, index.window.item, some, num_items, device)
    if negatives is None:
        outside = torch.arange(num_items, device=device)
        items = outside.expand(chunks, -1).contiguous()
        row_outside = index.rows + items
    else:
        items, outside = per_chunk(negatives), negatives.flatten()
        row_outside = per_chunk(torch.arange(index.rows, index.rows + len(outside), device=device).view_as(negatives))
    starts = torch.arange(0, chunks * CHUNK, CHUNK, device=device)
    rows, moves = rows_op.rows_before(item_rows(index), items, starts)
    placed = torch.where(rows >= 0, rows, row_outside)
    distinct = not len(index.roots[3])  # only ψ is read by several events
    return ChunkCandidates(items, placed, moves, outside, negatives is None, share, distinct)


def candidate_columns(
    schedule: Schedule, item: Array, items: Array, num_items: int, device: torch.device | str = "cpu"
) -> CandidateColumns:
    """The columns of the candidates `items` int32[m, C] of each chunk, for events with items `item` int32[n]."""
    starts = np.arange(len(items), dtype=np.int32) * CHUNK
    rows = schedule.rows_before(items, starts[:, None])
    fields = _find_columns(item, items, rows, schedule.rows, schedule.item_events, schedule.item_rows, num_items)
    column_item, row, since, until, candidate, outside = (torch.from_numpy(field).to(device) for field in fields)
    return CandidateColumns(items.shape[1], column_item, row, since, until, candidate, outside)


def rows_before(index: WindowIndex, items: Tensor, events: Tensor) -> Tensor:
    """int64[m, C]: the rows of the candidates `items` [m, C] just before the events [m], or NO_ROW.

    As Schedule.rows_before, on the device of the index.
    """
    return rows_op.rows_before(item_rows(index), items, events)[0]


def item_rows(index: WindowIndex) -> ItemRows:
    users, entry, psi_users, psi = index.roots
    first_psi = len(users) + len(entry) + len(psi_users)
    return ItemRows(entry, index.item_starts, index.item_events, index.after, len(users), psi, first_psi)


@compiled
def _find_columns(
    item: Array, items: Array, rows: Array, first_outside: int, item_events: Array, item_rows: Array, num_items: int
) -> tuple[Array, ...]:
    """The fields of CandidateColumns, in their order."""
    scratch = np.full(num_items, -1, np.int32)
    outside = _outside(items, rows, first_outside, scratch)
    written = np.full(len(item), NO_ROW, np.int32)
    written[item_events] = item_rows
    of, row, since, until, candidate = _columns(item, items, rows, written, scratch)
    return of, row, since, until, candidate, outside


@compiled
def _outside(items: Array, rows: Array, first: int, scratch: Array) -> Array:
    """int64: the items without an event in the window, sorted; their entries of `rows` become those from `first`."""
    outside = np.empty(items.size, np.int64)
    count = 0
    for c in range(items.shape[0]):
        for j in range(items.shape[1]):
            if rows[c, j] == NO_ROW and scratch[items[c, j]] < 0:
                scratch[items[c, j]] = 0
                outside[count] = items[c, j]
                count += 1
    outside = np.sort(outside[:count])
    for i in range(count):
        scratch[outside[i]] = i
    for c in range(items.shape[0]):
        for j in range(items.shape[1]):
            if rows[c, j] == NO_ROW:
                rows[c, j] = first + scratch[items[c, j]]
    scratch[outside] = -1
    return outside


@compiled
def _columns(item: Array, items: Array, rows: Array, written: Array, scratch: Array) -> tuple[Array, ...]:
    """item, row, since, until and candidate of all columns; `scratch` int32[I] is -1 before and after."""
    chunks, count = items.shape
    most = 0
    twin = np.empty(count, np.int32)  # the candidate before it that is the same item, for those drawn twice
    for c in range(chunks):
        _chain(items[c], twin, scratch)
        more = 0
        for k in range(c * CHUNK, min((c + 1) * CHUNK, len(item))):
            j = scratch[item[k]] if written[k] != NO_ROW else -1
            while j >= 0:
                more += 1
                j = twin[j]
        most = max(most, more)
        scratch[items[c]] = -1
    shape = chunks, count + most
    of, row = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    since, until, candidate = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    now = np.empty(count, np.int64)
    for c in range(chunks):
        _chain(items[c], twin, scratch)
        for j in range(count):
            of[c, j], row[c, j], since[c, j], until[c, j] = items[c, j], rows[c, j], -1, FOREVER
            candidate[c, j], now[j] = j, j
        a = count
        for k in range(c * CHUNK, min((c + 1) * CHUNK, len(item))):
            j = scratch[item[k]] if written[k] != NO_ROW else -1
            while j >= 0:
                until[c, now[j]] = k
                of[c, a], row[c, a], since[c, a], until[c, a], candidate[c, a] = item[k], written[k], k, FOREVER, j
                now[j] = a
                a += 1
                j = twin[j]
        scratch[items[c]] = -1
    return of, row, since, until, candidate


@compiled
def _chain(items: Array, twin: Array, scratch: Array) -> None:
    """scratch[item]: its last candidate; twin: the one before that, or -1."""
    for j in range(len(items)):
        twin[j] = scratch[items[j]]
        scratch[items[j]] = j
