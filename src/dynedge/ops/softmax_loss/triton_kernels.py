"""softmax_loss on a GPU: a chunk's scores live in registers only, and its gradients are worked out with its error.

A program takes BQ events of a chunk and goes over the chunk's columns twice: once for the sum of exponentials, once
for the gradients. Legend: as in the package's docstring.
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
def _columns(arena, outside, ids, rows, items, at, there, first_outside, col, d: tl.constexpr, IDS: tl.constexpr):
    """(states, id vectors, biases) of the columns `at`."""
    row = tl.load(rows + at, mask=there, other=0)
    inside = col < d
    out = (row >= first_outside)[:, None]
    state = tl.load(arena + row[:, None] * d + col, mask=there[:, None] & inside & ~out, other=0.0)
    state += tl.load(
        outside + (row - first_outside)[:, None] * d + col, mask=there[:, None] & inside & out, other=0.0
    )
    if IDS:
        item = tl.load(items + at, mask=there, other=0)
        vector = tl.load(ids + item[:, None] * (d + 1) + col, mask=there[:, None] & inside, other=0.0)
        bias = tl.load(ids + item * (d + 1) + d, mask=there, other=0.0)
    else:
        vector = state
        bias = tl.zeros(at.shape, tl.float32)
    return state, vector, bias


@triton.jit
def _scores(q, q_id, state, vector, bias, IDS: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr):
    found = _dot(q, tl.trans(state), KIND, PRECISION)
    if IDS:
        found += _dot(q_id, tl.trans(vector), KIND, PRECISION) + bias[None, :]
    return found


@triton.jit
def _readers(k, true, items, since, until, at, there, n):
    """bool[events, columns]: who reads which column as that of another item than its own."""
    item = tl.load(items + at, mask=there, other=-1)
    after = tl.load(since + at, mask=there, other=0)
    last = tl.load(until + at, mask=there, other=-1)
    event = k[:, None]
    reads = (after[None, :] < event) & (event <= last[None, :]) & (event < n)
    return reads & (item[None, :] != true[:, None]) & there[None, :]


@triton.jit
def chunks(
    wanted,
    arena,
    outside,
    ids,
    items,
    rows,
    since,
    until,
    true_item,
    true_row,
    errors,
    grad_wanted,
    grad_state,
    grad_id,
    n,
    columns,
    first_outside,
    d: tl.constexpr,
    CHUNK: tl.constexpr,
    BQ: tl.constexpr,
    BA: tl.constexpr,
    BK: tl.constexpr,
    IDS: tl.constexpr,
    KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """errors[program]: the sum over its events; grad_wanted [n, D]; grad_state [n + programs · A, d]: of the true
    items' states, then of each program's columns; grad_id [.., d + 1] alike."""
    program = tl.program_id(0).to(tl.int64)
    chunk = program * BQ // CHUNK
    k = program * BQ + tl.arange(0, BQ)
    mine = k < n
    col = tl.arange(0, BK)[None, :]
    whole = mine[:, None] & (col < d)
    WIDTH: tl.constexpr = 2 * d if IDS else d
    q = tl.load(wanted + k[:, None] * WIDTH + col, mask=whole, other=0.0).to(tl.float32)
    true = tl.load(true_item + k, mask=mine, other=-1)
    row = tl.load(true_row + k, mask=mine, other=0)
    right = tl.load(arena + row[:, None] * d + col, mask=whole, other=0.0)
    positive = tl.sum(q * right, 1)
    if IDS:
        q_id = tl.load(wanted + k[:, None] * WIDTH + d + col, mask=whole, other=0.0).to(tl.float32)
        right_id = tl.load(ids + true[:, None] * (d + 1) + col, mask=whole, other=0.0)
        positive += tl.sum(q_id * right_id, 1) + tl.load(ids + true * (d + 1) + d, mask=mine, other=0.0)
    else:
        q_id = q

    top, total = positive, tl.full([BQ], 1.0, tl.float32)
    for low in range(0, columns, BA):
        at = chunk * columns + low + tl.arange(0, BA)
        there = low + tl.arange(0, BA) < columns
        state, vector, bias = _columns(arena, outside, ids, rows, items, at, there, first_outside, col, d, IDS)
        found = _scores(q, q_id, state, vector, bias, IDS, KIND, PRECISION)
        reads = _readers(k, true, items, since, until, at, there, n)
        found = tl.where(reads, found, float("-inf"))
        higher = tl.maximum(top, tl.max(found, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(found - higher[:, None]), 1)
        top = higher
    top += tl.log(total)
    tl.store(errors + program, tl.sum(tl.where(mine, top - positive, 0.0), 0))

    missing = tl.where(mine, tl.exp(positive - top) - 1, 0.0)[:, None]
    grad = missing * right
    tl.store(grad_state + k[:, None] * d + col, missing * q, mask=whole)
    if IDS:
        grad_of_id = missing * right_id
        tl.store(grad_id + k[:, None] * (d + 1) + col, missing * q_id, mask=whole)
        tl.store(grad_id + k[:, None] * (d + 1) + d, missing, mask=mine[:, None])
    for low in range(0, columns, BA):
        at = chunk * columns + low + tl.arange(0, BA)
        there = low + tl.arange(0, BA) < columns
        state, vector, bias = _columns(arena, outside, ids, rows, items, at, there, first_outside, col, d, IDS)
        found = _scores(q, q_id, state, vector, bias, IDS, KIND, PRECISION)
        reads = _readers(k, true, items, since, until, at, there, n)
        share = tl.where(reads, tl.exp(found - top[:, None]), 0.0)
        grad += _dot(share, state, KIND, PRECISION)
        to = n + program * columns + low + tl.arange(0, BA)
        filled = there[:, None] & (col < d)
        tl.store(grad_state + to[:, None] * d + col, _dot(tl.trans(share), q, KIND, PRECISION), mask=filled)
        if IDS:
            grad_of_id += _dot(share, vector, KIND, PRECISION)
            for_id = _dot(tl.trans(share), q_id, KIND, PRECISION)
            tl.store(grad_id + to[:, None] * (d + 1) + col, for_id, mask=filled)
            tl.store(grad_id + to * (d + 1) + d, tl.sum(share, 0), mask=there)
    tl.store(grad_wanted + k[:, None] * WIDTH + col, grad, mask=whole)
    if IDS:
        tl.store(grad_wanted + k[:, None] * WIDTH + d + col, grad_of_id, mask=whole)
