"""Chunk after chunk, compiled: scores of all columns as one product, softmax, and the gradient in their place.

Legend: as in the package's docstring; Ā columns, filled up to a whole number of vectors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from dynedge.ops.gather_matmul import ALLOW_FMA, VECTOR_BYTES, add_matmul, add_outer
from dynedge.ops.sampled_softmax.candidate_columns import CHUNK
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

TILE = 256  # columns multiplied together: their vectors, 128 KiB at D = 128, stay in the second-level cache


@compiled
def chunks(
    part: int,
    parts: int,
    first: int,
    last: int,
    backward: bool,
    behind: float,
    wanted: Array,
    arena: Array,
    outside: Array,
    ids: Array,
    item_of: Array,
    row_of: Array,
    since: Array,
    until: Array,
    id_of: Array,
    item: Array,
    row: Array,
    own_id: Array,
    candidates: int,
    added_start: Array,
    added_item: Array,
    added: Array,
    error: Array,
    pull: Array,
    to_wanted: Array,
    to_columns: Array,
    to_bias: Array,
    to_added: Array,
) -> None:
    """Chunks first to last − 1: the errors [n] of their events, and gradients if asked.

    pull [n] is ∂error/∂score of the true item, to_wanted [n, D]; to_columns [.., Ā, D] and to_bias [.., Ā] are
    those of the columns, from chunk `first` on; to_added [L] of the bonuses. ids has no rows where there are none.
    A true item's score counts as `behind` less than it is.
    """
    count, width = row_of.shape[1], wanted.shape[1]
    lanes = VECTOR_BYTES // wanted.itemsize
    full = -(-count // lanes) * lanes
    vectors, turned = np.zeros((full, width), wanted.dtype), np.zeros((width, min(full, TILE)), wanted.dtype)
    bias, block = np.zeros(full, wanted.dtype), np.empty((CHUNK, full), wanted.dtype)
    every, lane = np.arange(CHUNK), np.empty(lanes, wanted.dtype)
    place = np.full(candidates if len(added) else 0, -1, np.int64)
    for c in range(first + part, last, parts):
        low, size = c * CHUNK, min(CHUNK, len(wanted) - c * CHUNK)
        for a in range(count):
            _vector(vectors[a], arena, outside, ids, row_of[c, a], id_of[c, a])
            bias[a] = ids[id_of[c, a], ids.shape[1] - 1] if len(ids) else 0
        for k in range(size):
            block[k] = bias
        for left in range(0, full, TILE):
            some = vectors[left : left + TILE]
            if len(some) != turned.shape[1]:  # the last tile, and the next chunk's first
                turned = np.empty((width, len(some)), wanted.dtype)
            _turn(some, turned)
            add_matmul(block, left, every, wanted, 0, low + every, size, turned)
        for i in range(size):
            k = low + i
            score = _score(wanted[k], arena[row[k]], ids, own_id[k]) - wanted.dtype.type(behind)
            low_l, high_l = added_start[k], added_start[k + 1]
            if high_l > low_l:
                score += _add(block[i], added, added_item, low_l, high_l, place, item_of[c], candidates, item[k])
            error[k], pull[k] = _softmax(block[i], lane, score, k, item[k], item_of[c], since[c], until[c])
            if backward and high_l > low_l:
                _back(to_added, block[i], added_item, low_l, high_l, place, item_of[c], candidates, item[k], pull[k])
            place[added_item[low_l:high_l]] = -1
        if backward:
            _backward(
                block[:size], low, wanted, arena, ids, row, own_id, pull, vectors, to_wanted, to_columns[c - first]
            )
            for a in range(count):
                total = wanted.dtype.type(0)
                for i in range(size):
                    total += block[i, a]
                to_bias[c - first, a] = total


@compiled
def _add(
    scores: Array,
    added: Array,
    items: Array,
    low: int,
    high: int,
    place: Array,
    item_of: Array,
    count: int,
    true: int,
) -> Any:
    """Bonuses low to high − 1 go to their items' columns, which are the first in order of items, and those of what
    moves; `place` says where each item's is. Returns the true item's."""
    for j in range(low, high):
        scores[items[j]] += added[j]
        place[items[j]] = j
    for a in range(count, len(item_of)):
        if place[item_of[a]] >= 0:
            scores[a] += added[place[item_of[a]]]
    return added[place[true]] if place[true] >= 0 else added.dtype.type(0)


@compiled
def _back(
    to_added: Array,
    scores: Array,
    items: Array,
    low: int,
    high: int,
    place: Array,
    item_of: Array,
    count: int,
    true: int,
    pull: float,
) -> None:
    """The way back of `_add`: scores are ∂error/∂score by now."""
    for j in range(low, high):
        to_added[j] = scores[items[j]]
    for a in range(count, len(item_of)):
        if place[item_of[a]] >= 0:
            to_added[place[item_of[a]]] += scores[a]
    if place[true] >= 0:
        to_added[place[true]] += pull


@compiled
def _backward(
    block: Array,
    low: int,
    wanted: Array,
    arena: Array,
    ids: Array,
    row: Array,
    own_id: Array,
    pull: Array,
    vectors: Array,
    to_wanted: Array,
    to_columns: Array,
) -> None:
    d, every = arena.shape[1], np.arange(len(block))
    for i in range(len(block)):
        k = low + i
        for j in range(d):
            to_wanted[k, j] = pull[k] * arena[row[k], j]
        for j in range(d, wanted.shape[1]):
            to_wanted[k, j] = pull[k] * ids[own_id[k], j - d]
    for left in range(0, len(vectors), TILE):
        some = vectors[left : left + TILE]
        add_matmul(to_wanted, 0, low + every, block, left, every, len(block), some)
    to_columns[:] = 0
    add_outer(to_columns, 0, len(to_columns), block, 0, every, wanted, low + every)


@compiled
def _turn(rows: Array, turned: Array) -> None:
    """turned = rows.T, 16 rows at a time: one at a time would miss the cache."""
    for low in range(0, len(rows), 16):
        for j in range(len(turned)):
            for i in range(low, min(low + 16, len(rows))):
                turned[j, i] = rows[i, j]


@compiled
def _vector(vector: Array, arena: Array, outside: Array, ids: Array, row: int, own: int) -> None:
    d = arena.shape[1]
    state = arena[row] if row < len(arena) else outside[row - len(arena)]
    for j in range(d):
        vector[j] = state[j]
    for j in range(d, len(vector)):
        vector[j] = ids[own, j - d]


@compiled(fastmath=ALLOW_FMA)
def _score(wanted: Array, state: Array, ids: Array, own: int) -> Any:
    """A score by itself, its sum in the order of the columns' scores, so that equal vectors get equal scores."""
    d, total = len(state), wanted.dtype.type(0)
    for j in range(d):
        total += wanted[j] * state[j]
    for j in range(d, len(wanted)):
        total += wanted[j] * ids[own, j - d]
    return total + ids[own, ids.shape[1] - 1] if len(ids) else total


@compiled(error_model="numpy")
def _softmax(
    scores: Array, lane: Array, own: float, k: int, item: int, items: Array, since: Array, until: Array
) -> tuple[float, float]:
    """(the event's error, ∂error/∂own score); scores become ∂error/∂score, 0 for columns it does not read.

    One loop for each thing, so that all run as vector instructions.
    """
    kind = scores.dtype.type
    for a in range(len(items)):
        read = (since[a] < k) & (k <= until[a]) & (items[a] != item)
        scores[a] = scores[a] if read else kind(-np.inf)
    scores[len(items) :] = kind(-np.inf)
    top = _top(scores, lane, kind(own))
    for a in range(len(scores)):
        scores[a] = _exp(scores[a] - top)
    mine = _exp(kind(own) - top)
    total = _sum(scores, lane) + mine
    share = kind(1 / total)
    for a in range(len(scores)):
        scores[a] *= share
    return math.log(total) + (top - own), mine / total - 1


@compiled
def _top(scores: Array, lane: Array, own: Any) -> Any:
    """The greatest of all, own among them; a NaN stays the greatest, once met."""
    lane[:] = own
    for low in range(0, len(scores), len(lane)):
        some = scores[low : low + len(lane)]
        for i in range(len(lane)):
            lane[i] = lane[i] if some[i] <= lane[i] else some[i]
    top = own
    for i in range(len(lane)):
        top = top if lane[i] <= top else lane[i]
    return top


@compiled
def _sum(values: Array, lane: Array) -> Any:
    lane[:] = 0
    for low in range(0, len(values), len(lane)):
        some = values[low : low + len(lane)]
        for i in range(len(lane)):
            lane[i] += some[i]
    total = np.float64(0)
    for i in range(len(lane)):
        total += lane[i]
    return total


@compiled
def scatter(
    part: int,
    parts: int,
    first: int,
    last: int,
    wanted: Array,
    row_of: Array,
    id_of: Array,
    row: Array,
    own_id: Array,
    pull: Array,
    to_columns: Array,
    to_bias: Array,
    to_arena: Array,
    to_outside: Array,
    to_ids: Array,
) -> None:
    """Gradients of chunks first to last − 1 go to the rows they belong to, in order; some of the columns j."""
    d, rows = to_arena.shape[1], len(to_arena)
    low, high = d * part // parts, d * (part + 1) // parts
    for c in range(first, last):
        for a in range(row_of.shape[1]):
            r = row_of[c, a]
            to = to_arena[r] if r < rows else to_outside[r - rows]
            for j in range(low, high):
                to[j] += to_columns[c - first, a, j]
            if len(to_ids):
                for j in range(low, high):
                    to_ids[id_of[c, a], j] += to_columns[c - first, a, d + j]
                if part == 0:
                    to_ids[id_of[c, a], d] += to_bias[c - first, a]
        for k in range(c * CHUNK, min((c + 1) * CHUNK, len(wanted))):
            for j in range(low, high):
                to_arena[row[k], j] += pull[k] * wanted[k, j]
            if len(to_ids):
                for j in range(low, high):
                    to_ids[own_id[k], j] += pull[k] * wanted[k, d + j]
                if part == 0:
                    to_ids[own_id[k], d] += pull[k]


# exp as arithmetic alone, so that it runs as vector instructions: 2^n · e^r with |r| ≤ ½ ln 2.


def _exp(x: float) -> float:
    """e^x for x ≤ 0. Exact in float64; in float32 within 2e-7, relative, and 0 below -87."""
    return math.exp(x)


LOW, LOG2E, LN2_HIGH, LN2_LOW = (np.float32(v) for v in (-87.0, 1.44269504, 0.693359375, -2.12194440e-4))
E2, E3, E4, E5, E6 = (np.float32(1 / math.factorial(i)) for i in range(2, 7))
NOUGHT, ONE, LEAST = np.float32(0), np.float32(1), np.float32(-126)
ROUND = np.float32(12582912.0)  # 1.5 · 2^23: adding it rounds to a whole number


@intrinsic
def _power_of_two(_: Any, n: Any) -> Any:
    """2^n as a float32, for a whole n from -126 to 127: n + 127 in the place of the exponent."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        raised = b.add(b.fptosi(args[0], word), ir.Constant(word, 127))
        return b.bitcast(b.shl(raised, ir.Constant(word, 23)), ir.FloatType())

    return types.float32(types.float32), generate


def _exp_32(x: Any) -> Any:
    y = LOW if x < LOW else x  # a NaN stays one
    n = (y * LOG2E + ROUND) - ROUND
    r = (y - n * LN2_HIGH) - n * LN2_LOW
    power = ((((E6 * r + E5) * r + E4) * r + E3) * r + E2) * r * r + r + ONE
    found = power * _power_of_two(n if n > LEAST else LEAST)
    return NOUGHT if x < LOW else found


def _exp_64(x: Any) -> Any:
    return math.exp(x)


@overload(_exp, jit_options={"fastmath": ALLOW_FMA, "error_model": "numpy"})
def _exp_of(x: Any) -> Any:
    return _exp_32 if x == types.float32 else _exp_64
