"""Scores of a block of events, [items, events], compiled by numba.

Legend: I items, b events of the block (padded to whole vectors), d width of a state; `embeddings` has no rows where
there are no ID embeddings. Every score is summed in the same order in both kernels: bias, state, embedding.
"""

from __future__ import annotations

import numpy as np

from dynedge.ops.gather_matmul import add_matmul
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled


@compiled
def score_items(
    part: int,
    parts: int,
    out: Array,
    start: int,
    states: Array,
    embeddings: Array,
    query_state: Array,
    query_id: Array,
) -> None:
    """Fills out[:, start : start + b] for this part's items."""
    rows = np.arange(len(states) * part // parts, len(states) * (part + 1) // parts)
    _fill(out, start, rows, states, embeddings, rows, query_state, query_id)


@compiled
def apply_updates(
    out: Array,
    start: int,
    states: Array,
    embeddings: Array,
    query_state: Array,
    query_id: Array,
    item: Array,
    row_after: Array,
    arena: Array,
    decaying: Array,
    shift: Array,
) -> None:
    """Applies the block's events: an updated item gets new scores from the next event on. Updates `states`, and
    `decaying`, the columns that `states` has as powers of two relative to `shift`."""
    new_scores, zero = np.empty((1, query_state.shape[1]), out.dtype), np.zeros(1, np.int64)
    for k in range(len(item)):
        if row_after[k] < 0:
            continue
        this = item[k : k + 1]
        states[this[0]] = arena[row_after[k]]
        decaying[this[0]] = arena[row_after[k], arena.shape[1] - len(shift) :]
        write_powers(states, decaying, shift, this)
        _fill(new_scores, 0, zero, states, embeddings, this, query_state, query_id)
        out[this[0], start + k + 1 : start + len(item)] = new_scores[0, k + 1 : len(item)]


@compiled
def write_powers(states: Array, decaying: Array, shift: Array, items: Array) -> None:
    """Fills the last columns of these rows of `states` with the powers of two of those of `decaying`."""
    first = states.shape[1] - len(shift)
    for i in items:
        for j in range(len(shift)):
            states[i, first + j] = np.exp2(np.float64(decaying[i, j] - shift[j]))


@compiled
def _fill(
    out: Array,
    start: int,
    out_rows: Array,
    states: Array,
    embeddings: Array,
    items: Array,
    query_state: Array,
    query_id: Array,
) -> None:
    """Fills out[out_rows[i], start : start + b] with the scores of items[i]."""
    width, d = query_state.shape[1], states.shape[1]
    for i in range(len(out_rows)):
        out[out_rows[i], start : start + width] = embeddings[items[i], d] if len(embeddings) else 0
    add_matmul(out, start, out_rows, states, 0, items, len(out_rows), query_state)
    if len(embeddings):
        add_matmul(out, start, out_rows, embeddings, 0, items, len(out_rows), query_id)
