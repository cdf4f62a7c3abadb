"""Triton kernel of list_log_sum: one program per event, which goes over the event's entries three times."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load(
    e,
    valid,
    arena,
    outside,
    ids,
    listed,
    rows,
    first_outside,
    shift,
    col,
    d: tl.constexpr,
    DECAYING: tl.constexpr,
    HAS_IDS: tl.constexpr,
):
    """(items, states, ID embeddings, biases) of entries e."""
    mask = valid[:, None] & (col < d)
    item = tl.load(listed + e, mask=valid, other=0).to(tl.int64)
    row = tl.load(rows + e, mask=valid, other=0).to(tl.int64)
    pointer = tl.where(row >= first_outside, outside + (row - first_outside) * d, arena + row * d)
    state = tl.load(pointer[:, None] + col, mask=mask, other=0.0)
    if DECAYING:
        decays = (col >= d - DECAYING) & mask
        state = tl.where(decays, tl.exp2(state - shift), state)
    vector, bias = state, tl.zeros(item.shape, tl.float32)
    if HAS_IDS:
        vector = tl.load(ids + item[:, None] * (d + 1) + col, mask=mask, other=0.0)
        bias = tl.load(ids + item * (d + 1) + d, mask=valid, other=0.0)
    return item, state, vector, bias


@triton.jit(do_not_specialize=["first_outside"])
def sum_events(
    query,
    arena,
    outside,
    ids,
    decay,
    starts,
    listed,
    rows,
    true_item,
    value,
    out,
    share,
    query_grad,
    first_outside,
    d: tl.constexpr,
    DECAYING: tl.constexpr,
    BE: tl.constexpr,
    BK: tl.constexpr,
    HAS_IDS: tl.constexpr,
):
    """out [n]; share [L]: each entry's part of the event's sum; query_grad [n, D]: its gradient in the query."""
    k = tl.program_id(0).to(tl.int64)
    WIDTH: tl.constexpr = 2 * d if HAS_IDS else d
    col = tl.arange(0, BK)[None, :]
    in_row = col < d
    q = tl.load(query + k * WIDTH + col, mask=in_row, other=0.0).to(tl.float32)
    q_id = tl.load(query + k * WIDTH + WIDTH - d + col, mask=in_row, other=0.0).to(tl.float32)
    decays = (col >= d - DECAYING) & in_row
    shift = tl.load(decay + k * DECAYING + col - (d - DECAYING), mask=decays, other=0.0)
    true = tl.load(true_item + k).to(tl.int64)
    first, last = tl.load(starts + k), tl.load(starts + k + 1)
    highest = tl.full([BE], float("-inf"), tl.float32)
    for low in range(first, last, BE):
        e = low + tl.arange(0, BE)
        valid = e < last
        item, state, vector, bias = _load(
            e, valid, arena, outside, ids, listed, rows, first_outside, shift, col, d, DECAYING, HAS_IDS
        )
        scores = tl.sum(q * state, 1) + tl.load(value + e, mask=valid, other=0.0)
        if HAS_IDS:
            scores += tl.sum(q_id * vector, 1) + bias
        scores = tl.where(valid & (item != true), scores, float("-inf"))
        tl.store(share + e, scores, mask=valid)
        highest = tl.maximum(highest, scores)
    top = tl.max(highest, 0)
    finite = tl.where(top > float("-inf"), top, 0.0)
    total = tl.zeros([BE], tl.float32)
    tl.debug_barrier()
    for low in range(first, last, BE):
        e = low + tl.arange(0, BE)
        total += tl.exp(tl.load(share + e, mask=e < last, other=float("-inf")) - finite)
    sums = tl.sum(total, 0)
    tl.store(out + k, tl.where(sums > 0, finite + tl.log(tl.where(sums > 0, sums, 1.0)), float("-inf")))
    scale = tl.where(sums > 0, 1 / tl.where(sums > 0, sums, 1.0), 0.0)
    grad, grad_id = tl.zeros([1, BK], tl.float32), tl.zeros([1, BK], tl.float32)
    for low in range(first, last, BE):
        e = low + tl.arange(0, BE)
        valid = e < last
        item, state, vector, bias = _load(
            e, valid, arena, outside, ids, listed, rows, first_outside, shift, col, d, DECAYING, HAS_IDS
        )
        part = tl.exp(tl.load(share + e, mask=valid, other=float("-inf")) - finite) * scale
        tl.store(share + e, part, mask=valid)
        grad += tl.sum(part[:, None] * state, 0)[None, :]
        if HAS_IDS:
            grad_id += tl.sum(part[:, None] * vector, 0)[None, :]
    tl.store(query_grad + k * WIDTH + col, grad, mask=in_row)
    if HAS_IDS:
        tl.store(query_grad + k * WIDTH + d + col, grad_id, mask=in_row)
