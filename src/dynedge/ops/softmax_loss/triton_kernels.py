"""softmax_loss on a GPU: a chunk's scores live in registers only, and its gradients are worked out with its error.

A program takes BQ events of a chunk and goes over the chunk's columns twice: once for the sum of exponentials, once
for the gradients. Legend: as in the package's docstring.

What is the same for all events of a column is subtracted from a product, not added to it: Triton would begin the
product's sum with it, and then fence the operands too late for the tensor cores (docs/gpu-notes.md).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _dot(a, b, KIND: tl.constexpr, PRECISION: tl.constexpr):
    """a · b in KIND with float32 sums; "rounded": for the interpreter, which would take a bfloat16 for an integer."""
    if PRECISION == "rounded":
        return tl.dot(a.to(KIND).to(tl.float32), b.to(KIND).to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a.to(KIND), b.to(KIND), input_precision=PRECISION)


@triton.jit
def _candidates(arena, outside, ids, item, row, there, first_outside, col, d: tl.constexpr, IDS: tl.constexpr):
    """(states, id vectors, biases) of candidates: where they stand in the pool [arena | outside], and their items."""
    inside = there[:, None] & (col < d)
    base = tl.where(row >= first_outside, outside + (row - first_outside) * d, arena + row * d)
    state = tl.load(base[:, None] + col, mask=inside, other=0.0)
    if IDS:
        vector = tl.load(ids + item[:, None] * (d + 1) + col, mask=inside, other=0.0)
        bias = tl.load(ids + item * (d + 1) + d, mask=there, other=0.0)
    else:
        vector = state
        bias = tl.zeros(item.shape, tl.float32)
    return state, vector, bias


@triton.jit
def _scores(q, q_id, state, vector, bias, IDS: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr):
    found = _dot(q, tl.trans(state), KIND, PRECISION)
    if IDS:
        found += _dot(q_id, tl.trans(vector), KIND, PRECISION)
        found -= (0 - bias)[None, :]
    return found


@triton.jit
def _at_start(
    q,
    q_id,
    k,
    true,
    mine,
    arena,
    outside,
    ids,
    added,
    items,
    rows,
    moves,
    chunk,
    low,
    count,
    first_outside,
    col,
    d: tl.constexpr,
    BA: tl.constexpr,
    IDS: tl.constexpr,
    ADDED: tl.constexpr,
    KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Candidates `low` and on as they are at the chunk's start: (which there are, items, the first events that move
    them, states, id vectors, scores, −∞ for the events that do not read them)."""
    there = low + tl.arange(0, BA) < count
    at = chunk * count + low + tl.arange(0, BA)
    item = tl.load(items + at, mask=there, other=-2).to(tl.int64)
    place = tl.load(rows + at, mask=there, other=0).to(tl.int64)
    until = tl.load(moves + at, mask=there, other=2147483647)
    state, vector, bias = _candidates(arena, outside, ids, item, place, there, first_outside, col, d, IDS)
    found = _scores(q, q_id, state, vector, bias, IDS, KIND, PRECISION)
    if ADDED:
        known = mine[:, None] & there[None, :]
        found += tl.load(added + k[:, None] * count + item[None, :], mask=known, other=0.0)
    reads = (k[:, None] <= until[None, :]) & (item[None, :] != true[:, None]) & there[None, :] & mine[:, None]
    return there, item, until, state, vector, tl.where(reads, found, float("-inf"))


@triton.jit
def _once_moved(
    q,
    q_id,
    k,
    true,
    mine,
    arena,
    outside,
    ids,
    added,
    e,
    e_item,
    e_row,
    drawn,
    count,
    first_outside,
    col,
    d: tl.constexpr,
    IDS: tl.constexpr,
    ADDED: tl.constexpr,
    KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What the chunk's events make of candidates: (states, id vectors, scores, −∞ for the events that do not read
    them). A candidate drawn twice counts twice."""
    moved = drawn > 0
    state, vector, bias = _candidates(arena, outside, ids, e_item, e_row, moved, first_outside, col, d, IDS)
    found = _scores(q, q_id, state, vector, bias, IDS, KIND, PRECISION) - tl.log(1 / tl.maximum(drawn, 1.0))[None, :]
    if ADDED:
        there = mine[:, None] & moved[None, :]
        found += tl.load(added + k[:, None] * count + e_item[None, :], mask=there, other=0.0)
    again = (e_item[:, None] == e_item[None, :]) & (e[:, None] > e[None, :]) & (e_row >= 0)[:, None]
    last = tl.min(tl.where(again, e[:, None], 2147483647), 0)
    reads = (e[None, :] < k[:, None]) & (k[:, None] <= last[None, :]) & moved[None, :]
    reads = reads & (e_item[None, :] != true[:, None]) & mine[:, None]
    return state, vector, tl.where(reads, found, float("-inf"))


@triton.jit(do_not_specialize=["n", "count", "first_outside"])
def chunks(
    wanted,
    arena,
    outside,
    ids,
    added,
    items,
    rows,
    moves,
    true_item,
    true_row,
    after,
    errors,
    grad_wanted,
    grad_state,
    grad_id,
    grad_added,
    n,
    count,
    first_outside,
    d: tl.constexpr,
    CHUNK: tl.constexpr,
    BQ: tl.constexpr,
    BA: tl.constexpr,
    BK: tl.constexpr,
    IDS: tl.constexpr,
    ADDED: tl.constexpr,
    KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """errors[program]: the sum over its events; grad_wanted [n, D]; grad_state [n + P · C + P · CHUNK, d]: of the
    true items' states, then of each program's candidates at the chunk's start, then of what its chunk's events wrote;
    grad_id [.., d + 1] alike. P programs. With bonuses, added [n, C] and its gradient, candidate c is item c."""
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0).to(tl.int64)
    chunk = program * BQ // CHUNK
    k = program * BQ + tl.arange(0, BQ)
    mine = k < n
    col = tl.arange(0, BK)[None, :]
    whole = mine[:, None] & (col < d)
    WIDTH: tl.constexpr = 2 * d if IDS else d
    true = tl.load(true_item + k, mask=mine, other=-1).to(tl.int64)
    row = tl.load(true_row + k, mask=mine, other=0).to(tl.int64)
    at_q, at_right = wanted + k[:, None] * WIDTH + col, arena + row[:, None] * d + col
    q = tl.load(at_q, mask=whole, other=0.0)
    positive = tl.sum(q.to(tl.float32) * tl.load(at_right, mask=whole, other=0.0), 1)
    q_id, at_right_id = q, ids + true[:, None] * (d + 1) + col
    if IDS:
        q_id = tl.load(at_q + d, mask=whole, other=0.0)
        positive += tl.sum(q_id.to(tl.float32) * tl.load(at_right_id, mask=whole, other=0.0), 1)
        positive += tl.load(ids + true * (d + 1) + d, mask=mine, other=0.0)
    q, q_id = q.to(KIND), q_id.to(KIND)
    if ADDED:
        positive += tl.load(added + k * count + true, mask=mine, other=0.0)

    # The chunk's events as what they write: read from the next event on, by those before the item moves again.
    e = chunk * CHUNK + tl.arange(0, CHUNK)
    e_item = tl.load(true_item + e, mask=e < n, other=-1).to(tl.int64)
    e_row = tl.load(after + e, mask=e < n, other=-1).to(tl.int64)
    drawn = tl.zeros([CHUNK], tl.float32)  # how often an event's item was drawn
    end = (chunk + 1) * CHUNK

    top, total = positive, tl.full([BQ], 1.0, tl.float32)
    for low in range(0, count, BA):
        there, item, until, state, vector, found = _at_start(
            *(q, q_id, k, true, mine, arena, outside, ids, added, items, rows, moves, chunk, low, count),
            *(first_outside, col, d, BA, IDS, ADDED, KIND, PRECISION),
        )
        if tl.min(until, 0) < end:
            drawn += tl.sum(((e_item[:, None] == item[None, :]) & (e_row >= 0)[:, None]).to(tl.float32), 1)
        higher = tl.maximum(top, tl.max(found, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(found - higher[:, None]), 1)
        top = higher
    any_moved = tl.max(drawn, 0) > 0
    if any_moved:
        state, vector, found = _once_moved(
            *(q, q_id, k, true, mine, arena, outside, ids, added, e, e_item, e_row, drawn, count),
            *(first_outside, col, d, IDS, ADDED, KIND, PRECISION),
        )
        higher = tl.maximum(top, tl.max(found, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(found - higher[:, None]), 1)
        top = higher
    top += tl.log(total)
    tl.store(errors + program, tl.sum(tl.where(mine, top - positive, 0.0), 0))

    missing = tl.where(mine, tl.exp(positive - top) - 1, 0.0)[:, None]
    grad = missing * tl.load(at_right, mask=whole, other=0.0)
    grad_of_id = grad
    tl.store(grad_state + k[:, None] * d + col, missing * tl.load(at_q, mask=whole, other=0.0), mask=whole)
    if IDS:
        grad_of_id = missing * tl.load(at_right_id, mask=whole, other=0.0)
        asked = tl.load(at_q + d, mask=whole, other=0.0)
        tl.store(grad_id + k[:, None] * (d + 1) + col, missing * asked, mask=whole)
        tl.store(grad_id + k[:, None] * (d + 1) + d, missing, mask=mine[:, None])
    for low in range(0, count, BA):
        there, item, until, state, vector, found = _at_start(
            *(q, q_id, k, true, mine, arena, outside, ids, added, items, rows, moves, chunk, low, count),
            *(first_outside, col, d, BA, IDS, ADDED, KIND, PRECISION),
        )
        share = tl.exp(found - top[:, None])
        if ADDED:
            whose = mine[:, None] & there[None, :]
            tl.store(grad_added + k[:, None] * count + item[None, :], share, mask=whose)
        grad += _dot(share, state, KIND, PRECISION)
        to = n + program * count + low + tl.arange(0, BA)
        filled = there[:, None] & (col < d)
        tl.store(grad_state + to[:, None] * d + col, _dot(tl.trans(share), q, KIND, PRECISION), mask=filled)
        if IDS:
            grad_of_id += _dot(share, vector, KIND, PRECISION)
            for_id = _dot(tl.trans(share), q_id, KIND, PRECISION)
            tl.store(grad_id + to[:, None] * (d + 1) + col, for_id, mask=filled)
            tl.store(grad_id + to * (d + 1) + d, tl.sum(share, 0), mask=there)
    to = n + programs * count + program * CHUNK + tl.arange(0, CHUNK)
    filled = (col < d) & (to >= 0)[:, None]
    if any_moved:
        state, vector, found = _once_moved(
            *(q, q_id, k, true, mine, arena, outside, ids, added, e, e_item, e_row, drawn, count),
            *(first_outside, col, d, IDS, ADDED, KIND, PRECISION),
        )
        share = tl.exp(found - top[:, None])
        if ADDED:
            tl.debug_barrier()  # after what the loop above stored there: nought
            tl.store(grad_added + k[:, None] * count + e_item[None, :], share, mask=found > float("-inf"))
        grad += _dot(share, state, KIND, PRECISION)
        tl.store(grad_state + to[:, None] * d + col, _dot(tl.trans(share), q, KIND, PRECISION), mask=filled)
        if IDS:
            grad_of_id += _dot(share, vector, KIND, PRECISION)
            for_id = _dot(tl.trans(share), q_id, KIND, PRECISION)
            tl.store(grad_id + to[:, None] * (d + 1) + col, for_id, mask=filled)
            tl.store(grad_id + to * (d + 1) + d, tl.sum(share, 0))
    else:
        tl.store(grad_state + to[:, None] * d + col, tl.zeros([CHUNK, BK], tl.float32), mask=filled)
        if IDS:
            tl.store(grad_id + to[:, None] * (d + 1) + col, tl.zeros([CHUNK, BK], tl.float32), mask=filled)
            tl.store(grad_id + to * (d + 1) + d, tl.zeros([CHUNK], tl.float32))
    if ADDED:
        tl.debug_barrier()
        tl.store(grad_added + k * count + true, tl.exp(positive - top) - 1, mask=mine)
    tl.store(grad_wanted + k[:, None] * WIDTH + col, grad, mask=whole)
    if IDS:
        tl.store(grad_wanted + k[:, None] * WIDTH + d + col, grad_of_id, mask=whole)
