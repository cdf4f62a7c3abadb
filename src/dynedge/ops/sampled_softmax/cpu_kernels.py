"""Numba kernels of sampled_softmax: per chunk, one product for the scores of all columns, softmax, and its gradient.

Legend: as in the package; Ā columns, padded to a whole number of vectors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dynedge.ops.gather_matmul import ALLOW_FMA, VECTOR_BYTES, add_matmul, add_outer
from dynedge.ops.sampled_softmax.inputs import CHUNK
from dynedge.ops.vector_math import exp
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

TILE = 256  # columns multiplied together: their vectors, 128 KiB at D = 128, stay in the L2 cache


@compiled
def compute_chunks(
    part: int,
    parts: int,
    first: int,
    last: int,
    backward: bool,
    q: float,
    true_offset: Array,
    others: Array,
    query: Array,
    arena: Array,
    outside: Array,
    id_embeddings: Array,
    column_item: Array,
    column_row: Array,
    since: Array,
    until: Array,
    column_id: Array,
    true_item: Array,
    true_row: Array,
    true_id: Array,
    num_candidates: int,
    bonus_start: Array,
    bonus_item: Array,
    bonus: Array,
    shift: Array,
    loss: Array,
    true_grad: Array,
    others_grad: Array,
    query_grad: Array,
    column_grads: Array,
    bias_grads: Array,
    bonus_grads: Array,
) -> None:
    """Chunks first to last − 1: the losses [n] of their events, and the gradients if `backward`.

    true_grad [n] is ∂loss/∂score of the true item, query_grad [n, D] that of the query; column_grads [.., Ā, D] and
    bias_grads [.., Ā] are those of the columns, from chunk `first` on; bonus_grads [L] those of the bonuses.
    id_embeddings has no rows where there are none. true_offset [n] is added to the true items' scores, and others [n]
    is one more score, with the gradient others_grad [n]. shift [m, r] is subtracted from the decaying columns of a
    chunk's rows.
    """
    count, width = column_row.shape[1], query.shape[1]
    lanes = VECTOR_BYTES // query.itemsize
    padded = -(-count // lanes) * lanes
    vectors, transposed = np.zeros((padded, width), query.dtype), np.zeros((width, min(padded, TILE)), query.dtype)
    bias, block = np.zeros(padded, query.dtype), np.empty((CHUNK, padded), query.dtype)
    true_vectors = np.empty((CHUNK, width), query.dtype)
    events, partial = np.arange(CHUNK), np.empty(lanes, query.dtype)
    bonus_at = np.full(num_candidates if len(bonus) else 0, -1, np.int64)
    for c in range(first + part, last, parts):
        low, size = c * CHUNK, min(CHUNK, len(query) - c * CHUNK)
        for a in range(count):
            _gather_vector(vectors[a], arena, outside, id_embeddings, column_row[c, a], column_id[c, a], shift[c])
            bias[a] = id_embeddings[column_id[c, a], id_embeddings.shape[1] - 1] if len(id_embeddings) else 0
        for k in range(size):
            block[k] = bias
        for left in range(0, padded, TILE):
            tile = vectors[left : left + TILE]
            if len(tile) != transposed.shape[1]:  # the last tile, and the next chunk's first
                transposed = np.empty((width, len(tile)), query.dtype)
            _transpose_into(tile, transposed)
            add_matmul(block, left, events, query, 0, low + events, size, transposed)
        for i in range(size):
            k = low + i
            _gather_vector(true_vectors[i], arena, outside, id_embeddings, true_row[k], true_id[k], shift[c])
            score = _score(query[k], true_vectors[i], id_embeddings, true_id[k]) + true_offset[k]
            first_bonus, last_bonus = bonus_start[k], bonus_start[k + 1]
            where = bonus_item, first_bonus, last_bonus, bonus_at, column_item[c], num_candidates, true_item[k]
            if last_bonus > first_bonus:
                score += _add_bonus(block[i], bonus, *where)
            loss[k], true_grad[k], others_grad[k] = _softmax(
                *(block[i], partial, score, others[k], q, k, true_item[k], column_item[c], since[c], until[c]),
            )
            if backward and last_bonus > first_bonus:
                _bonus_gradients(block[i], true_grad[k], bonus_grads, *where)
            bonus_at[bonus_item[first_bonus:last_bonus]] = -1
        if backward:
            _score_gradients(
                *(block[:size], low, query, true_vectors, true_grad, vectors, query_grad, column_grads[c - first]),
            )
            for a in range(count):
                total = query.dtype.type(0)
                for i in range(size):
                    total += block[i, a]
                bias_grads[c - first, a] = total


@compiled
def _add_bonus(
    scores: Array,
    bonus: Array,
    bonus_item: Array,
    low: int,
    high: int,
    bonus_at: Array,
    column_item: Array,
    num_candidates: int,
    true_item: int,
) -> Any:
    """Adds bonuses low to high − 1 to the columns of their items, at the chunk's start and updated; returns the true
    item's bonus. Column i is item i; bonus_at holds the bonus of each item, or −1."""
    for j in range(low, high):
        scores[bonus_item[j]] += bonus[j]
        bonus_at[bonus_item[j]] = j
    for a in range(num_candidates, len(column_item)):
        if bonus_at[column_item[a]] >= 0:
            scores[a] += bonus[bonus_at[column_item[a]]]
    return bonus[bonus_at[true_item]] if bonus_at[true_item] >= 0 else bonus.dtype.type(0)


@compiled
def _bonus_gradients(
    scores: Array,
    true_grad: float,
    bonus_grads: Array,
    bonus_item: Array,
    low: int,
    high: int,
    bonus_at: Array,
    column_item: Array,
    num_candidates: int,
    true_item: int,
) -> None:
    """Backward pass of `_add_bonus`; scores hold ∂loss/∂score."""
    for j in range(low, high):
        bonus_grads[j] = scores[bonus_item[j]]
    for a in range(num_candidates, len(column_item)):
        if bonus_at[column_item[a]] >= 0:
            bonus_grads[bonus_at[column_item[a]]] += scores[a]
    if bonus_at[true_item] >= 0:
        bonus_grads[bonus_at[true_item]] += true_grad


@compiled
def _score_gradients(
    block: Array,
    low: int,
    query: Array,
    true_vectors: Array,
    true_grad: Array,
    vectors: Array,
    query_grad: Array,
    column_grads: Array,
) -> None:
    """Gradients of the query vectors and of the columns; block holds ∂loss/∂score of the columns."""
    events = np.arange(len(block))
    for i in range(len(block)):
        for j in range(query.shape[1]):
            query_grad[low + i, j] = true_grad[low + i] * true_vectors[i, j]
    for left in range(0, len(vectors), TILE):
        tile = vectors[left : left + TILE]
        add_matmul(query_grad, 0, low + events, block, left, events, len(block), tile)
    column_grads[:] = 0
    add_outer(column_grads, 0, len(column_grads), block, 0, events, query, low + events)


@compiled
def _transpose_into(rows: Array, transposed: Array) -> None:
    """transposed[:] = rows.T, 16 rows at a time: one at a time would miss the cache."""
    for low in range(0, len(rows), 16):
        for j in range(len(transposed)):
            for i in range(low, min(low + 16, len(rows))):
                transposed[j, i] = rows[i, j]


@compiled
def _gather_vector(
    vector: Array, arena: Array, outside: Array, id_embeddings: Array, row: int, id_row: int, shift: Array
) -> None:
    """vector[:] = a row of the pool, with its decaying columns as powers of two relative to the chunk's start,
    followed by a row of id_embeddings without its bias."""
    d = arena.shape[1]
    state = arena[row] if row < len(arena) else outside[row - len(arena)]
    for j in range(d):
        vector[j] = state[j]
    for j in range(len(shift)):
        vector[d - len(shift) + j] = np.exp2(np.float64(state[d - len(shift) + j] - shift[j]))
    for j in range(d, len(vector)):
        vector[j] = id_embeddings[id_row, j - d]


@compiled(fastmath=ALLOW_FMA)
def _score(query: Array, vector: Array, id_embeddings: Array, id_row: int) -> Any:
    """The score of one vector, summed in the same order as those of columns, so that equal vectors tie."""
    total = query.dtype.type(0)
    for j in range(len(query)):
        total += query[j] * vector[j]
    return total + id_embeddings[id_row, id_embeddings.shape[1] - 1] if len(id_embeddings) else total


@compiled(error_model="numpy")
def _softmax(
    scores: Array,
    partial: Array,
    true_score: float,
    other_score: float,
    q: float,
    k: int,
    true_item: int,
    column_item: Array,
    since: Array,
    until: Array,
) -> tuple[float, float, float]:
    """(the event's loss, ∂loss/∂true score, ∂loss/∂other score); scores become ∂loss/∂score.

    That is 0 for columns that the event does not read.

    One loop per operation, so that each is vectorised.
    """
    kind = scores.dtype.type
    for a in range(len(column_item)):
        read = (since[a] < k) & (k <= until[a]) & (column_item[a] != true_item)
        scores[a] = scores[a] if read else kind(-np.inf)
    scores[len(column_item) :] = kind(-np.inf)
    highest = _highest(scores, partial, kind(true_score if other_score <= true_score else other_score))
    for a in range(len(scores)):
        scores[a] = exp(scores[a] - highest)
    true_exp = exp(kind(true_score) - highest)
    other_exp = exp(kind(other_score) - highest)
    total = _sum(scores, partial) + true_exp + other_exp
    loss, weight = math.log(total) + (highest - true_score), 1.0
    if q > 0:
        loss, weight = -math.expm1(-q * loss) / q, math.exp(-q * loss)
    scale = kind(weight / total)
    for a in range(len(scores)):
        scores[a] *= scale
    return loss, weight * (true_exp / total - 1), weight * other_exp / total


@compiled
def _highest(scores: Array, partial: Array, true_score: Any) -> Any:
    """Maximum of the scores and the true score; a NaN wins."""
    partial[:] = true_score
    for low in range(0, len(scores), len(partial)):
        tile = scores[low : low + len(partial)]
        for i in range(len(partial)):
            partial[i] = partial[i] if tile[i] <= partial[i] else tile[i]
    highest = true_score
    for i in range(len(partial)):
        highest = highest if partial[i] <= highest else partial[i]
    return highest


@compiled
def _sum(values: Array, partial: Array) -> Any:
    """Sum in float64 of len(partial) interleaved sums."""
    partial[:] = 0
    for low in range(0, len(values), len(partial)):
        tile = values[low : low + len(partial)]
        for i in range(len(partial)):
            partial[i] += tile[i]
    total = np.float64(0)
    for i in range(len(partial)):
        total += partial[i]
    return total


@compiled
def scatter_gradients(
    part: int,
    parts: int,
    first: int,
    last: int,
    query: Array,
    column_row: Array,
    column_id: Array,
    true_row: Array,
    true_id: Array,
    true_grad: Array,
    column_grads: Array,
    bias_grads: Array,
    arena_grad: Array,
    outside_grad: Array,
    id_grads: Array,
) -> None:
    """Adds the gradients of chunks first to last − 1 to the rows they belong to, in order; this part's columns j."""
    d, rows = arena_grad.shape[1], len(arena_grad)
    low, high = d * part // parts, d * (part + 1) // parts
    for c in range(first, last):
        for a in range(column_row.shape[1]):
            r = column_row[c, a]
            target = arena_grad[r] if r < rows else outside_grad[r - rows]
            for j in range(low, high):
                target[j] += column_grads[c - first, a, j]
            if len(id_grads):
                for j in range(low, high):
                    id_grads[column_id[c, a], j] += column_grads[c - first, a, d + j]
                if part == 0:
                    id_grads[column_id[c, a], d] += bias_grads[c - first, a]
        for k in range(c * CHUNK, min((c + 1) * CHUNK, len(query))):
            for j in range(low, high):
                arena_grad[true_row[k], j] += true_grad[k] * query[k, j]
            if len(id_grads):
                for j in range(low, high):
                    id_grads[true_id[k], j] += true_grad[k] * query[k, d + j]
                if part == 0:
                    id_grads[true_id[k], d] += true_grad[k]
