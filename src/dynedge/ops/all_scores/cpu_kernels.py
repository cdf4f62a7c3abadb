"""Scores of a block of events, [events, items], compiled by numba.

Legend: I items, b events of the block, d width of a state; `embeddings` has no rows where there are no ID embeddings.
Every score is summed in the same order in both kernels: bias, state, embedding.
"""

from __future__ import annotations

import numpy as np

from dynedge.ops.gather_matmul import VECTOR_BYTES, add_matmul
from dynedge.ops.vector_math import exp2
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

TILE = 256  # items; a transposed tile takes 64 KiB at d = 64


@compiled
def score_items(part: int, parts: int, out: Array, states: Array, embeddings: Array, query: Array) -> None:
    """Fills out[b, I] for this part's items."""
    items, lanes = len(states), VECTOR_BYTES // out.itemsize
    tiles = (items + TILE - 1) // TILE
    for tile in range(tiles * part // parts, tiles * (part + 1) // parts):
        start, stop = tile * TILE, min((tile + 1) * TILE, items)
        whole = (stop - start + lanes - 1) // lanes * lanes
        if whole == stop - start:
            _fill(out, start, start, stop, states, embeddings, query)
        else:  # whole vectors of columns, so that all sums run alike
            padded = np.empty((len(query), whole), out.dtype)
            _fill(padded, 0, start, stop, states, embeddings, query)
            out[:, start:stop] = padded[:, : stop - start]


@compiled
def _fill(out: Array, column: int, start: int, stop: int, states: Array, embeddings: Array, query: Array) -> None:
    """Fills columns of `out`, from `column` on and to a whole vector, with the scores of the items from `start`
    to `stop`."""
    lanes, d, rows = VECTOR_BYTES // out.itemsize, states.shape[1], np.arange(len(query))
    width = (stop - start + lanes - 1) // lanes * lanes
    transposed, bias = np.zeros((query.shape[1], width), out.dtype), np.zeros(width, out.dtype)
    for i in range(start, stop):
        for j in range(d):
            transposed[j, i - start] = states[i, j]
        if len(embeddings):
            bias[i - start] = embeddings[i, d]
            for j in range(d):
                transposed[d + j, i - start] = embeddings[i, j]
    for k in range(len(query)):
        out[k, column : column + width] = bias
    add_matmul(out, column, rows, query, 0, rows, len(query), transposed[:d])
    if len(embeddings):
        add_matmul(out, column, rows, query, d, rows, len(query), transposed[d:])


@compiled
def apply_updates(
    out: Array,
    states: Array,
    embeddings: Array,
    query: Array,
    item: Array,
    row_after: Array,
    arena: Array,
    decaying: Array,
    shift: Array,
) -> None:
    """Applies the block's events: an updated item gets new scores from the next event on. Updates `states`, and
    `decaying`, the columns that `states` has as powers of two relative to `shift`."""
    d, n = states.shape[1], len(item)
    rows, width = np.zeros(1, np.int64), (n + VECTOR_BYTES - 1) // VECTOR_BYTES * VECTOR_BYTES  # whole vectors
    transposed, scores = np.zeros((query.shape[1], width), out.dtype), np.empty((1, width), out.dtype)
    for k in range(n):
        transposed[:, k] = query[k]
    for k in range(n):
        if row_after[k] < 0:
            continue
        this = item[k : k + 1]
        states[this[0]] = arena[row_after[k]]
        decaying[this[0]] = arena[row_after[k], arena.shape[1] - len(shift) :]
        write_powers(states, decaying, shift, this)
        scores[0] = embeddings[this[0], d] if len(embeddings) else 0
        add_matmul(scores, 0, rows, states, 0, this, 1, transposed[:d])
        if len(embeddings):
            add_matmul(scores, 0, rows, embeddings, 0, this, 1, transposed[d:])
        for later in range(k + 1, n):
            out[later, this[0]] = scores[0, later]


@compiled
def write_powers(states: Array, decaying: Array, shift: Array, items: Array) -> None:
    """Fills the last columns of these rows of `states` with the powers of two of those of `decaying`."""
    first = states.shape[1] - len(shift)
    for i in items:
        for j in range(len(shift)):
            states[i, first + j] = exp2(decaying[i, j] - shift[j])
