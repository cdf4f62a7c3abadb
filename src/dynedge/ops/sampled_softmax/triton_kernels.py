"""sampled_softmax on a GPU: a chunk's scores live in registers only, and its gradients are worked out with its error.

A program takes BQ events of a chunk and goes over the chunk's columns twice: once for the sum of exponentials, once
for the gradients. Where all items are candidates and there are few events, the columns are split among S programs,
and the two passes are two launches. Legend: as in the package's docstring.

What is the same for all events of a column is subtracted from a product, not added to it: Triton would begin the
product's sum with it, and then fence the operands too late for the tensor cores (docs/gpu-notes.md).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1e30)  # no score: yet a number, of which differences can be taken


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


@triton.jit(do_not_specialize=["n", "count", "first_outside", "behind"])
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
    sums,
    grad_wanted,
    grad_state,
    grad_id,
    grad_added,
    n,
    count,
    first_outside,
    behind,
    d: tl.constexpr,
    PASSES: tl.constexpr,
    EVERY: tl.constexpr,
    CHUNK: tl.constexpr,
    BQ: tl.constexpr,
    BA: tl.constexpr,
    BK: tl.constexpr,
    IDS: tl.constexpr,
    ADDED: tl.constexpr,
    KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """errors[program]: the sum over its events; grad_wanted [S, n, D], to be summed; grad_state [n + P · C + P ·
    CHUNK, d]: of the true items' states, then of each program's candidates at the chunk's start, then of what its
    chunk's events wrote; grad_id [.., d + 1] alike. P · S programs; sums [S, 2, P · BQ]: what the first pass leaves
    to the second. EVERY: candidate c is item c, and there may be bonuses, added [n, C], with a gradient. A true
    item's score counts as `behind` less than it is.

    PASSES: "both", "first" or "second". The true items belong to the first split, what events write to the last."""
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    is_first, is_last = split == 0, split == splits - 1
    share_of = tl.cdiv(tl.cdiv(count, BA), splits) * BA
    start, stop = split * share_of, tl.minimum((split + 1) * share_of, count)
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
    positive -= behind

    # The chunk's events as what they write: read from the next event on, by those before the item moves again.
    e = chunk * CHUNK + tl.arange(0, CHUNK)
    e_item = tl.load(true_item + e, mask=e < n, other=-1).to(tl.int64)
    e_row = tl.load(after + e, mask=e < n, other=-1).to(tl.int64)
    end = (chunk + 1) * CHUNK
    drawn = tl.zeros([CHUNK], tl.float32)  # how often an event's item was drawn
    if EVERY:
        drawn += (e_row >= 0).to(tl.float32)

    top, total = tl.where(is_first, positive, LOWEST), tl.full([BQ], 0.0, tl.float32) + is_first
    if PASSES != "second":
        for low in range(start, stop, BA):
            there, item, until, state, vector, found = _at_start(
                *(q, q_id, k, true, mine, arena, outside, ids, added, items, rows, moves, chunk, low, count),
                *(first_outside, col, d, BA, IDS, ADDED, KIND, PRECISION),
            )
            if not EVERY and tl.min(until, 0) < end:
                drawn += tl.sum(((e_item[:, None] == item[None, :]) & (e_row >= 0)[:, None]).to(tl.float32), 1)
            higher = tl.maximum(top, tl.max(found, 1))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(found - higher[:, None]), 1)
            top = higher
    any_moved = is_last & (tl.max(drawn, 0) > 0)
    if PASSES != "second" and any_moved:
        state, vector, found = _once_moved(
            *(q, q_id, k, true, mine, arena, outside, ids, added, e, e_item, e_row, drawn, count),
            *(first_outside, col, d, IDS, ADDED, KIND, PRECISION),
        )
        higher = tl.maximum(top, tl.max(found, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(found - higher[:, None]), 1)
        top = higher
    at_sums = sums + program * BQ + tl.arange(0, BQ)
    if PASSES == "first":
        tl.store(at_sums + 2 * split * programs * BQ, top)
        tl.store(at_sums + (2 * split + 1) * programs * BQ, total)
        return
    if PASSES == "second":
        top, total = tl.full([BQ], LOWEST, tl.float32), tl.zeros([BQ], tl.float32)
        for other in range(splits):
            its_top = tl.load(at_sums + 2 * other * programs * BQ)
            its_total = tl.load(at_sums + (2 * other + 1) * programs * BQ)
            higher = tl.maximum(top, its_top)
            total = total * tl.exp(top - higher) + its_total * tl.exp(its_top - higher)
            top = higher
    top += tl.log(total)

    missing = tl.where(mine & is_first, tl.exp(positive - top) - 1, 0.0)[:, None]
    grad = missing * tl.load(at_right, mask=whole, other=0.0)
    grad_of_id = grad
    if IDS:
        grad_of_id = missing * tl.load(at_right_id, mask=whole, other=0.0)
    if is_first:
        tl.store(errors + program, tl.sum(tl.where(mine, top - positive, 0.0), 0))
        tl.store(grad_state + k[:, None] * d + col, missing * tl.load(at_q, mask=whole, other=0.0), mask=whole)
        if IDS:
            asked = tl.load(at_q + d, mask=whole, other=0.0)
            tl.store(grad_id + k[:, None] * (d + 1) + col, missing * asked, mask=whole)
            tl.store(grad_id + k[:, None] * (d + 1) + d, missing, mask=mine[:, None])
        if ADDED:
            tl.store(grad_added + k * count + true, tl.exp(positive - top) - 1, mask=mine)
    for low in range(start, stop, BA):
        there, item, until, state, vector, found = _at_start(
            *(q, q_id, k, true, mine, arena, outside, ids, added, items, rows, moves, chunk, low, count),
            *(first_outside, col, d, BA, IDS, ADDED, KIND, PRECISION),
        )
        share = tl.exp(found - top[:, None])
        if ADDED:
            tl.store(grad_added + k[:, None] * count + item[None, :], share, mask=found > float("-inf"))
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
            tl.store(grad_added + k[:, None] * count + e_item[None, :], share, mask=found > float("-inf"))
        grad += _dot(share, state, KIND, PRECISION)
        tl.store(grad_state + to[:, None] * d + col, _dot(tl.trans(share), q, KIND, PRECISION), mask=filled)
        if IDS:
            grad_of_id += _dot(share, vector, KIND, PRECISION)
            for_id = _dot(tl.trans(share), q_id, KIND, PRECISION)
            tl.store(grad_id + to[:, None] * (d + 1) + col, for_id, mask=filled)
            tl.store(grad_id + to * (d + 1) + d, tl.sum(share, 0))
    elif is_last:
        tl.store(grad_state + to[:, None] * d + col, tl.zeros([CHUNK, BK], tl.float32), mask=filled)
        if IDS:
            tl.store(grad_id + to[:, None] * (d + 1) + col, tl.zeros([CHUNK, BK], tl.float32), mask=filled)
            tl.store(grad_id + to * (d + 1) + d, tl.zeros([CHUNK], tl.float32))
    at_grad = grad_wanted + (split * n + k[:, None]) * WIDTH + col
    tl.store(at_grad, grad, mask=whole)
    if IDS:
        tl.store(at_grad + d, grad_of_id, mask=whole)


@triton.jit
def _shared(
    values,
    rows,
    out,
    factor,
    start,
    count,
    programs,
    members,
    least,
    k,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """CandidateColumns k to k + BK − 1."""
    group = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BM + tl.arange(0, BM)
    col = k + tl.arange(0, BK)[None, :]
    total = tl.zeros([BM, BK], tl.float32)
    for member in range(members):
        program = group * members + member + 0 * c
        at, there = program * count + c, (c < count) & (program < programs)
        counts = there & (tl.load(rows + at, mask=there, other=0) >= least)
        total += tl.load(values + (start + at)[:, None] * D + col, mask=counts[:, None] & (col < D), other=0.0)
    place = (group * count + c)[:, None] * D + col
    tl.store(out + place, factor * total, mask=(c < count)[:, None] & (col < D))


@triton.jit(do_not_specialize=["start", "count", "programs", "members", "least"])
def shared(
    values,
    rows,
    scale,
    out,
    start,
    count,
    programs,
    members,
    least,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TAIL: tl.constexpr,
):
    """out [G · C, D]: `scale` times the sum over the programs of a group, those left out whose rows are below."""
    factor = tl.load(scale).to(tl.float32)
    for k in tl.static_range(0, D, BK):
        _shared(
            *(values, rows, out, factor, start, count, programs, members, least, k, D, BM),
            BK if k + BK <= D else TAIL,
        )
