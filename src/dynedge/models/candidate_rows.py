"""Which state of a candidate item each event of a window reads: the one just before the event.

Legend: n events of a window, m chunks, C candidates of a chunk, A columns (ops/sampled_softmax says what those are).

The events of a chunk share their candidates, so that their scores are one matrix product against the candidates'
states at the chunk's start. What a candidate becomes inside a chunk, each time it moves, is a column of its own.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynedge.models.window_index import Prepared
from dynedge.ops.sampled_softmax import CHUNK, CandidateColumns
from dynedge.plan.schedule import NO_ROW, Schedule
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

FOREVER = np.iinfo(np.int64).max
NEVER = np.iinfo(np.int32).max  # no event has that number


def find(
    schedule: Schedule, item: Array, items: Array, num_items: int, device: torch.device | str = "cpu"
) -> CandidateColumns:
    """The columns of the candidates `items` int32[m, C] of each chunk, for events with items `item` int32[n]."""
    starts = np.arange(len(items), dtype=np.int32) * CHUNK
    rows = schedule.rows_before(items, starts[:, None])
    made = _find(item, items, rows, schedule.rows, schedule.item_events, schedule.item_rows, num_items)
    of, row, since, until, candidate, outside = (torch.from_numpy(part).to(device) for part in made)
    return CandidateColumns(items.shape[1], of, row, since, until, candidate, outside)


def rows_before(prepared: Prepared, items: Tensor, events: Tensor) -> Tensor:
    """int64[m, C], on the model's device: where the candidates `items` [m, C] stand just before the events [m].

    As Schedule.rows_before, by searches alone, so that nothing waits for the device.
    """
    return rows_and_moves(prepared, items, events)[0]


def rows_and_moves(prepared: Prepared, items: Tensor, events: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and int32[m, C]: the first event from there on that moves the candidate, or NEVER."""
    starts = events[:, None]
    _, entry, psi_users, psi = prepared.roots
    first_item = len(prepared.roots[0])
    rows = torch.full_like(items, NO_ROW)
    moves = torch.full_like(items, NEVER, dtype=torch.int32)
    if len(entry):
        slot = torch.searchsorted(entry, items).clamp_(max=len(entry) - 1)
        lengths = prepared.item_starts.diff()
        numbers = torch.arange(len(entry), device=items.device)
        slots = torch.repeat_interleave(numbers, lengths, output_size=len(prepared.item_events))
        n, known = len(prepared.item), entry[slot] == items
        written = torch.searchsorted(
            slots * n + prepared.item_events, slot * n + starts
        )  # states before, of all slots
        last = prepared.after[prepared.item_events[(written - 1).clamp_min_(0)]]
        now = torch.where(written > prepared.item_starts[slot], last, first_item + slot)
        rows = torch.where(known, now, rows)
        following = prepared.item_events[written.clamp(max=len(prepared.item_events) - 1)].int()
        moves = torch.where(known & (written < prepared.item_starts[slot + 1]), following, moves)
    if len(psi):
        slot = torch.searchsorted(psi, items).clamp_(max=len(psi) - 1)
        rows = torch.where(psi[slot] == items, first_item + len(entry) + len(psi_users) + slot, rows)
    return rows, moves


@compiled
def _find(
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
    """int64: the items the window never meets, sorted; their entries of `rows` become rows from `first` on."""
    found = np.empty(items.size, np.int64)
    count = 0
    for c in range(items.shape[0]):
        for j in range(items.shape[1]):
            if rows[c, j] == NO_ROW and scratch[items[c, j]] < 0:
                scratch[items[c, j]] = 0
                found[count] = items[c, j]
                count += 1
    found = np.sort(found[:count])
    for i in range(count):
        scratch[found[i]] = i
    for c in range(items.shape[0]):
        for j in range(items.shape[1]):
            if rows[c, j] == NO_ROW:
                rows[c, j] = first + scratch[items[c, j]]
    scratch[found] = -1
    return found


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
