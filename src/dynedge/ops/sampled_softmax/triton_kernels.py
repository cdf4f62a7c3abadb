"""Triton kernels of sampled_softmax: a chunk's scores exist in registers only; gradients are computed with the loss.

A program computes BQ events of a chunk and goes over the chunk's columns twice: once for the sum of exponentials,
once for the gradients. Where all items are candidates and there are few events, the columns are split among S
programs, and the two passes are two launches. Legend: as in the package.

What is the same for all events of a column is subtracted from a product, not added to it: Triton would start the
product's sum with it, and then fence the operands too late for the tensor cores (docs/gpu-notes.md).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1e30)  # instead of −∞: differences of it are numbers


@triton.jit
def _dot(a, b, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    """a · b in DTYPE with float32 sums; "rounded" is for the interpreter, which treats bfloat16 as integers."""
    if PRECISION == "rounded":
        return tl.dot(a.to(DTYPE).to(tl.float32), b.to(DTYPE).to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a.to(DTYPE), b.to(DTYPE), input_precision=PRECISION)


@triton.jit
def _load_states(pointer, valid, shift, col, d: tl.constexpr, DECAYING: tl.constexpr):
    """Rows of the pool, with their last DECAYING columns as powers of two relative to `shift` [DECAYING]."""
    mask = valid[:, None] & (col < d)
    state = tl.load(pointer[:, None] + col, mask=mask, other=0.0)
    if DECAYING:
        decays = (col >= d - DECAYING) & (col < d)
        s = tl.load(shift + col - (d - DECAYING), mask=decays, other=0.0)
        state = tl.where(decays & mask, tl.exp2(state - s), state)
    return state


@triton.jit
def _load_candidates(
    arena,
    outside,
    id_embeddings,
    item,
    row,
    valid,
    first_outside,
    shift,
    col,
    d: tl.constexpr,
    DECAYING: tl.constexpr,
    HAS_IDS: tl.constexpr,
):
    """(states, ID embeddings, biases) of candidates, by their rows of the pool [arena | outside] and their items."""
    mask = valid[:, None] & (col < d)
    pointer = tl.where(row >= first_outside, outside + (row - first_outside) * d, arena + row * d)
    state = _load_states(pointer, valid, shift, col, d, DECAYING)
    if HAS_IDS:
        vector = tl.load(id_embeddings + item[:, None] * (d + 1) + col, mask=mask, other=0.0)
        bias = tl.load(id_embeddings + item * (d + 1) + d, mask=valid, other=0.0)
    else:
        vector = state
        bias = tl.zeros(item.shape, tl.float32)
    return state, vector, bias


@triton.jit
def _scores(q, q_id, state, vector, bias, HAS_IDS: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    scores = _dot(q, tl.trans(state), DTYPE, PRECISION)
    if HAS_IDS:
        scores += _dot(q_id, tl.trans(vector), DTYPE, PRECISION)
        scores -= (0 - bias)[None, :]
    return scores


@triton.jit
def _initial_scores(
    q,
    q_id,
    k,
    true,
    valid_event,
    arena,
    outside,
    id_embeddings,
    bonus,
    items,
    rows,
    first_update,
    chunk,
    low,
    count,
    first_outside,
    shift,
    col,
    d: tl.constexpr,
    DECAYING: tl.constexpr,
    BA: tl.constexpr,
    HAS_IDS: tl.constexpr,
    HAS_BONUS: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Candidates low to low + BA − 1 as they are at the chunk's start.

    Returns (valid, items, first events that update them, states, ID embeddings, scores), the scores being −∞ for
    events that do not read them.
    """
    valid = low + tl.arange(0, BA) < count
    index = chunk * count + low + tl.arange(0, BA)
    item = tl.load(items + index, mask=valid, other=-2).to(tl.int64)
    row = tl.load(rows + index, mask=valid, other=0).to(tl.int64)
    until = tl.load(first_update + index, mask=valid, other=2147483647)
    state, vector, bias = _load_candidates(
        arena, outside, id_embeddings, item, row, valid, first_outside, shift, col, d, DECAYING, HAS_IDS
    )
    scores = _scores(q, q_id, state, vector, bias, HAS_IDS, DTYPE, PRECISION)
    if HAS_BONUS:
        bonus_mask = valid_event[:, None] & valid[None, :]
        scores += tl.load(bonus + k[:, None] * count + item[None, :], mask=bonus_mask, other=0.0)
    reads = (k[:, None] <= until[None, :]) & (item[None, :] != true[:, None]) & valid[None, :] & valid_event[:, None]
    return valid, item, until, state, vector, tl.where(reads, scores, float("-inf"))


@triton.jit
def _updated_scores(
    q,
    q_id,
    k,
    true,
    valid_event,
    arena,
    outside,
    id_embeddings,
    bonus,
    e,
    e_item,
    e_row,
    multiplicity,
    count,
    first_outside,
    shift,
    col,
    d: tl.constexpr,
    DECAYING: tl.constexpr,
    HAS_IDS: tl.constexpr,
    HAS_BONUS: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Candidates as the chunk's events update them: (states, ID embeddings, scores), the scores being −∞ for events
    that do not read them. A candidate sampled twice counts twice."""
    is_candidate = multiplicity > 0
    state, vector, bias = _load_candidates(
        *(arena, outside, id_embeddings, e_item, e_row, is_candidate, first_outside),
        *(shift, col, d, DECAYING, HAS_IDS),
    )
    scores = (
        _scores(q, q_id, state, vector, bias, HAS_IDS, DTYPE, PRECISION)
        - tl.log(1 / tl.maximum(multiplicity, 1.0))[None, :]
    )
    if HAS_BONUS:
        bonus_mask = valid_event[:, None] & is_candidate[None, :]
        scores += tl.load(bonus + k[:, None] * count + e_item[None, :], mask=bonus_mask, other=0.0)
    is_later = (e_item[:, None] == e_item[None, :]) & (e[:, None] > e[None, :]) & (e_row >= 0)[:, None]
    until = tl.min(tl.where(is_later, e[:, None], 2147483647), 0)
    reads = (e[None, :] < k[:, None]) & (k[:, None] <= until[None, :]) & is_candidate[None, :]
    reads = reads & (e_item[None, :] != true[:, None]) & valid_event[:, None]
    return state, vector, tl.where(reads, scores, float("-inf"))


@triton.jit
def _add_exponentials(highest, total, scores):
    """Running maximum and sum of exponentials, relative to it, with more scores [BQ, columns] included."""
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    return new_highest, total * tl.exp(highest - new_highest) + tl.sum(tl.exp(scores - new_highest[:, None]), 1)


@triton.jit(do_not_specialize=["n", "count", "first_outside", "log_weight", "power"])
def compute_chunks(
    query,
    arena,
    outside,
    id_embeddings,
    bonus,
    items,
    rows,
    first_update,
    true_item,
    true_row,
    item_row_after,
    losses,
    sums,
    query_grad,
    state_grads,
    id_grads,
    bonus_grad,
    listed,
    listed_grad,
    updated_rows,
    shifts,
    n,
    count,
    first_outside,
    log_weight,
    power,
    d: tl.constexpr,
    DECAYING: tl.constexpr,
    PASSES: tl.constexpr,
    ALL_ITEMS: tl.constexpr,
    CHUNK: tl.constexpr,
    BQ: tl.constexpr,
    BA: tl.constexpr,
    BK: tl.constexpr,
    HAS_IDS: tl.constexpr,
    HAS_BONUS: tl.constexpr,
    HAS_LISTED: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Loss and gradients of BQ events per program, P · S programs.

    losses[program]: sum over its events. query_grad [S, n, D]: to be summed over S. state_grads [n + P · C + P ·
    CHUNK, d]: gradients of the true items' states, then of each program's candidates at the chunk's start, then of
    the states its chunk's events wrote, whose rows are updated_rows [P · CHUNK], or −1 where no candidate was updated
    and nothing is written. id_grads [.., d + 1]: the same of ID embeddings and biases. sums [S, 2,
    P · BQ]: maximum and sum of exponentials, from the first pass to the second. ALL_ITEMS: candidate c is item c, and
    there may be bonuses, bonus [n, C], with a gradient. log_weight is subtracted from the true items' scores.
    power is the q of the generalized cross-entropy, 0 for that of the package's −log softmax.
    listed [2, n] and its gradient: what is added to the true item's score, and one more score.
    shifts [m, DECAYING]: what is subtracted from the decaying columns of a chunk's rows.

    PASSES: "both", "first" or "second". The first split computes the true items, the last the updated states.
    """
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    is_first, is_last = split == 0, split == splits - 1
    split_width = tl.cdiv(tl.cdiv(count, BA), splits) * BA
    start, stop = split * split_width, tl.minimum((split + 1) * split_width, count)
    chunk = program * BQ // CHUNK
    k = program * BQ + tl.arange(0, BQ)
    valid_event = k < n
    col = tl.arange(0, BK)[None, :]
    mask = valid_event[:, None] & (col < d)
    WIDTH: tl.constexpr = 2 * d if HAS_IDS else d
    true = tl.load(true_item + k, mask=valid_event, other=-1).to(tl.int64)
    row = tl.load(true_row + k, mask=valid_event, other=0).to(tl.int64)
    q_address, shift = query + k[:, None] * WIDTH + col, shifts + chunk * DECAYING
    q = tl.load(q_address, mask=mask, other=0.0)
    true_score = tl.sum(q.to(tl.float32) * _load_states(arena + row * d, valid_event, shift, col, d, DECAYING), 1)
    q_id, true_id_address = q, id_embeddings + true[:, None] * (d + 1) + col
    if HAS_IDS:
        q_id = tl.load(q_address + d, mask=mask, other=0.0)
        true_score += tl.sum(q_id.to(tl.float32) * tl.load(true_id_address, mask=mask, other=0.0), 1)
        true_score += tl.load(id_embeddings + true * (d + 1) + d, mask=valid_event, other=0.0)
    q, q_id = q.to(DTYPE), q_id.to(DTYPE)
    if HAS_BONUS:
        true_score += tl.load(bonus + k * count + true, mask=valid_event, other=0.0)
    other_score = tl.full([BQ], LOWEST, tl.float32)
    if HAS_LISTED:
        true_score += tl.load(listed + k, mask=valid_event, other=0.0)
        other_score = tl.maximum(tl.load(listed + n + k, mask=valid_event, other=LOWEST) - log_weight, LOWEST)
    true_score -= log_weight

    # The states that the chunk's events write: read from the next event on, until the item is updated again.
    e = chunk * CHUNK + tl.arange(0, CHUNK)
    e_item = tl.load(true_item + e, mask=e < n, other=-1).to(tl.int64)
    e_row = tl.load(item_row_after + e, mask=e < n, other=-1).to(tl.int64)
    end = (chunk + 1) * CHUNK
    multiplicity = tl.zeros([CHUNK], tl.float32)  # how often an event's item is among the candidates
    if ALL_ITEMS:
        multiplicity += (e_row >= 0).to(tl.float32)

    highest, total = tl.where(is_first, true_score, LOWEST), tl.full([BQ], 0.0, tl.float32) + is_first
    if HAS_LISTED and is_first:
        highest, total = _add_exponentials(highest, total, other_score[:, None])
    if PASSES != "second":
        for low in range(start, stop, BA):
            valid, item, until, state, vector, scores = _initial_scores(
                *(q, q_id, k, true, valid_event, arena, outside, id_embeddings, bonus, items, rows),
                *(first_update, chunk, low, count, first_outside, shift, col, d, DECAYING, BA),
                *(HAS_IDS, HAS_BONUS, DTYPE, PRECISION),
            )
            if not ALL_ITEMS and tl.min(until, 0) < end:
                multiplicity += tl.sum(((e_item[:, None] == item[None, :]) & (e_row >= 0)[:, None]).to(tl.float32), 1)
            highest, total = _add_exponentials(highest, total, scores)
    any_updated = is_last & (tl.max(multiplicity, 0) > 0)
    if PASSES != "second" and any_updated:
        state, vector, scores = _updated_scores(
            *(q, q_id, k, true, valid_event, arena, outside, id_embeddings, bonus, e, e_item, e_row),
            *(multiplicity, count, first_outside, shift, col, d, DECAYING, HAS_IDS, HAS_BONUS, DTYPE, PRECISION),
        )
        highest, total = _add_exponentials(highest, total, scores)
    sums_address = sums + program * BQ + tl.arange(0, BQ)
    if PASSES == "first":
        tl.store(sums_address + 2 * split * programs * BQ, highest)
        tl.store(sums_address + (2 * split + 1) * programs * BQ, total)
        return
    if PASSES == "second":
        highest, total = tl.full([BQ], LOWEST, tl.float32), tl.zeros([BQ], tl.float32)
        for other in range(splits):
            split_highest = tl.load(sums_address + 2 * other * programs * BQ)
            split_total = tl.load(sums_address + (2 * other + 1) * programs * BQ)
            new_highest = tl.maximum(highest, split_highest)
            total = total * tl.exp(highest - new_highest) + split_total * tl.exp(split_highest - new_highest)
            highest = new_highest
    loss = highest + tl.log(total) - true_score
    log_scale = highest + tl.log(total) + power * loss  # exponentials relative to it have the weight p^q
    weight = tl.exp(-power * loss)
    of_true = tl.exp(true_score - log_scale) - weight
    true_grad = tl.where(valid_event & is_first, of_true, 0.0)[:, None]
    grad_q = true_grad * _load_states(arena + row * d, valid_event, shift, col, d, DECAYING)
    grad_q_id = grad_q
    if HAS_IDS:
        grad_q_id = true_grad * tl.load(true_id_address, mask=mask, other=0.0)
    if is_first:
        loss = tl.where(power > 0, (1 - weight) / tl.maximum(power, 1e-6), loss)
        tl.store(losses + program, tl.sum(tl.where(valid_event, loss, 0.0), 0))
        tl.store(state_grads + k[:, None] * d + col, true_grad * tl.load(q_address, mask=mask, other=0.0), mask=mask)
        if HAS_IDS:
            q_id_full = tl.load(q_address + d, mask=mask, other=0.0)
            tl.store(id_grads + k[:, None] * (d + 1) + col, true_grad * q_id_full, mask=mask)
            tl.store(id_grads + k[:, None] * (d + 1) + d, true_grad, mask=valid_event[:, None])
        if HAS_BONUS:
            tl.store(bonus_grad + k * count + true, of_true, mask=valid_event)
        if HAS_LISTED:
            tl.store(listed_grad + k, of_true, mask=valid_event)
            tl.store(listed_grad + n + k, tl.exp(other_score - log_scale), mask=valid_event)
    for low in range(start, stop, BA):
        valid, item, until, state, vector, scores = _initial_scores(
            *(q, q_id, k, true, valid_event, arena, outside, id_embeddings, bonus, items, rows),
            *(first_update, chunk, low, count, first_outside, shift, col, d, DECAYING, BA),
            *(HAS_IDS, HAS_BONUS, DTYPE, PRECISION),
        )
        probability = tl.exp(scores - log_scale[:, None])
        if HAS_BONUS:
            tl.store(bonus_grad + k[:, None] * count + item[None, :], probability, mask=scores > float("-inf"))
        grad_q += _dot(probability, state, DTYPE, PRECISION)
        out_row = n + program * count + low + tl.arange(0, BA)
        out_mask = valid[:, None] & (col < d)
        tl.store(
            state_grads + out_row[:, None] * d + col, _dot(tl.trans(probability), q, DTYPE, PRECISION), mask=out_mask
        )
        if HAS_IDS:
            grad_q_id += _dot(probability, vector, DTYPE, PRECISION)
            id_grad = _dot(tl.trans(probability), q_id, DTYPE, PRECISION)
            tl.store(id_grads + out_row[:, None] * (d + 1) + col, id_grad, mask=out_mask)
            tl.store(id_grads + out_row * (d + 1) + d, tl.sum(probability, 0), mask=valid)
    out_row = n + programs * count + program * CHUNK + tl.arange(0, CHUNK)
    is_updated = multiplicity > 0
    out_mask = (col < d) & is_updated[:, None]
    if is_last:
        tl.store(updated_rows + program * CHUNK + tl.arange(0, CHUNK), tl.where(is_updated, e_row, -1).to(tl.int32))
    if any_updated:
        state, vector, scores = _updated_scores(
            *(q, q_id, k, true, valid_event, arena, outside, id_embeddings, bonus, e, e_item, e_row),
            *(multiplicity, count, first_outside, shift, col, d, DECAYING, HAS_IDS, HAS_BONUS, DTYPE, PRECISION),
        )
        probability = tl.exp(scores - log_scale[:, None])
        if HAS_BONUS:
            tl.store(bonus_grad + k[:, None] * count + e_item[None, :], probability, mask=scores > float("-inf"))
        grad_q += _dot(probability, state, DTYPE, PRECISION)
        tl.store(
            state_grads + out_row[:, None] * d + col, _dot(tl.trans(probability), q, DTYPE, PRECISION), mask=out_mask
        )
        if HAS_IDS:
            grad_q_id += _dot(probability, vector, DTYPE, PRECISION)
            id_grad = _dot(tl.trans(probability), q_id, DTYPE, PRECISION)
            tl.store(id_grads + out_row[:, None] * (d + 1) + col, id_grad, mask=out_mask)
            tl.store(id_grads + out_row * (d + 1) + d, tl.sum(probability, 0), mask=is_updated)
    grad_address = query_grad + (split * n + k[:, None]) * WIDTH + col
    tl.store(grad_address, grad_q, mask=mask)
    if HAS_IDS:
        tl.store(grad_address + d, grad_q_id, mask=mask)


@triton.jit
def _sum_shared_columns(
    values,
    rows,
    out,
    factor,
    start,
    count,
    programs,
    group_size,
    min_row,
    k,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """Columns k to k + BK − 1."""
    group = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BM + tl.arange(0, BM)
    col = k + tl.arange(0, BK)[None, :]
    total = tl.zeros([BM, BK], tl.float32)
    for member in range(group_size):
        program = group * group_size + member + 0 * c
        index, valid = program * count + c, (c < count) & (program < programs)
        included = valid & (tl.load(rows + index, mask=valid, other=0) >= min_row)
        total += tl.load(values + (start + index)[:, None] * D + col, mask=included[:, None] & (col < D), other=0.0)
    offset = (group * count + c)[:, None] * D + col
    tl.store(out + offset, factor * total, mask=(c < count)[:, None] & (col < D))


@triton.jit(do_not_specialize=["start", "count", "programs", "group_size", "min_row"])
def sum_shared(
    values,
    rows,
    scale,
    out,
    start,
    count,
    programs,
    group_size,
    min_row,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TAIL: tl.constexpr,
):
    """out [G · C, D]: `scale` times the sum over a group of programs, of candidates whose row is min_row or above."""
    factor = tl.load(scale).to(tl.float32)
    for k in tl.static_range(0, D, BK):
        _sum_shared_columns(
            *(values, rows, out, factor, start, count, programs, group_size, min_row, k, D, BM),
            BK if k + BK <= D else TAIL,
        )


@triton.jit(do_not_specialize=["count", "repeats"], do_not_specialize_on_alignment=["values"])
def add_updated(
    values, rows, scale, out, count, repeats, D: tl.constexpr, CHUNK: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr
):
    """out[row] += `scale` times the sum of values [P · CHUNK, D] over the programs of a chunk, for every event's row.

    rows [P · CHUNK]: −1 for states that no candidate of the program's chunk took. No two events write the same row.
    """
    e = tl.program_id(0) * BM + tl.arange(0, BM)
    first = (e // CHUNK) * repeats * CHUNK + e % CHUNK
    factor = tl.load(scale).to(tl.float32)
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        total = tl.zeros([BM, BK], tl.float32)
        target = tl.full([BM], -1, tl.int32)
        for program in range(repeats):
            place = first + program * CHUNK
            row = tl.load(rows + place, mask=e < count, other=-1)
            address = values + place.to(tl.int64)[:, None] * D + col
            total += tl.load(address, mask=(row >= 0)[:, None] & (col < D), other=0.0)
            target = tl.maximum(target, row)
        mask, address = (target >= 0)[:, None] & (col < D), out + target.to(tl.int64)[:, None] * D + col
        tl.store(address, tl.load(address, mask=mask, other=0.0) + factor * total, mask=mask)
