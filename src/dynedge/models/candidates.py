"""Scores of candidate items, each read as it was just before the event that is predicted.

Legend: n events of a window, c events of a chunk, m chunks, C candidates of a chunk, d width of a state.

The events of a chunk share their candidates, so that their scores are one matrix product against the candidates'
states at the chunk's start. Inside a chunk few items move: their scores for the events after the move are then
replaced one by one. The result is what reading each candidate for each event by itself would give.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dynedge.plan.schedule import NO_ROW, Schedule

Array = npt.NDArray[Any]

CHUNK = 128  # events; replacing scores grows with its square, the products want it large


@dataclass(frozen=True, eq=False)
class Candidates:
    """Where the states of a window's candidates are: rows of the pool [arena | outside]."""

    items: Array  # int32[m, C]: the candidates of each chunk
    outside: Array  # int32: items the window never meets; their states stay what they were at its start
    rows: Array  # int32[m, C]: rows of the pool at the chunk's start
    moved: Array  # int64[T, 3]: (event, candidate, row of the pool) where an item had moved by then


def find(schedule: Schedule, item: Array, items: Array, num_items: int) -> Candidates:
    """The candidates `items` int32[m, C] of each chunk of a window whose events have items `item` int32[n]."""
    starts = np.arange(len(items), dtype=np.int32) * CHUNK
    rows = schedule.rows_before(items, starts[:, None])
    outside = np.unique(items[rows == NO_ROW])
    place = np.empty(num_items, np.int32)
    place[outside] = schedule.rows + np.arange(len(outside), dtype=np.int32)
    rows = np.where(rows == NO_ROW, place[items], rows)
    written = np.full(len(item), NO_ROW, np.int32)
    written[schedule.item_events] = schedule.item_rows
    column = np.full(num_items, -1, np.int32)
    count = _moves(item, items, written, column, np.empty((0, 3), np.int64))
    moved = np.empty((count, 3), np.int64)
    _moves(item, items, written, column, moved)
    return Candidates(items, outside, rows, moved)


@numba.njit(nogil=True, cache=True)
def _moves(item: Array, items: Array, written: Array, column: Array, moved: Array) -> int:
    """List, for each event, the candidates that moved earlier in its chunk. Counts only, if `moved` is empty."""
    total = 0
    where, row = np.empty(CHUNK, np.int32), np.empty(CHUNK, np.int32)
    slot = np.full(items.shape[1], -1, np.int32)  # candidate -> its place among those that moved
    for c in range(len(items)):
        for j in range(items.shape[1]):
            column[items[c, j]] = j
        size = 0
        for k in range(c * CHUNK, min((c + 1) * CHUNK, len(item))):
            for s in range(size):
                if len(moved):
                    moved[total, 0], moved[total, 1], moved[total, 2] = k, where[s], row[s]
                total += 1
            j = column[item[k]]
            if j >= 0 and written[k] != NO_ROW:
                if slot[j] < 0:
                    slot[j], where[size] = size, j
                    size += 1
                row[slot[j]] = written[k]
        for s in range(size):
            slot[where[s]] = -1
        for j in range(items.shape[1]):
            column[items[c, j]] = -1
    return total


def scores(wanted: Tensor, pool: Tensor, candidates: Candidates) -> Tensor:
    """float[n, C]: the inner product of `wanted` [n, d] with each candidate's state before the event."""
    n, d = wanted.shape
    chunks, count = candidates.rows.shape
    asked = torch.nn.functional.pad(wanted, (0, 0, 0, chunks * CHUNK - n)).view(chunks, CHUNK, d)
    states = pool.index_select(0, torch.from_numpy(candidates.rows.ravel())).view(chunks, count, d)
    found = torch.bmm(asked, states.transpose(1, 2)).view(chunks * CHUNK, count)[:n]
    if not len(candidates.moved):
        return found
    event, column, row = torch.from_numpy(candidates.moved).T.contiguous()
    fresh = (wanted.index_select(0, event) * pool.index_select(0, row)).sum(1)
    return found.index_put((event, column), fresh)
