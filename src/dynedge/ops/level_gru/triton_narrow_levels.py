"""Triton kernels of level_gru for narrow levels: one program computes both sides of each level, without barrier.

The kernels of triton_kernels.py synchronise after each level, which takes longer than a narrow level's arithmetic.
Here the first BM rows of every tile are users', the next BM items'. What does not depend on the previous level is
prefetched: projected features and saved gates one level ahead, and the links to the parents' states two levels ahead.
Tables and legend are those of triton_kernels.py; a state has at most BK columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dynedge.ops.level_gru.triton_kernels import (
    _beside,
    _dot,
    _gate_gradients,
    _halves,
    _load_links,
    _load_parent_grads,
    _load_saved,
    _load_weights,
)


@triton.jit
def _dot_by_side(x, user_weights, item_weights, users, PRECISION: tl.constexpr):
    """x · w, with the users' weights for users' rows, the items' for items'."""
    zero = tl.zeros_like(x)
    from_users = _dot(tl.where(users, x, zero), user_weights, PRECISION)
    return from_users + _dot(tl.where(users, zero, x), item_weights, PRECISION)


@triton.jit
def _level_block(blocks, level, first, last, BM: tl.constexpr):
    """(start, end) of a level's block for each row of a tile; empty before `first` and from `last` on."""
    clamped = tl.minimum(tl.maximum(level, first), last - 1)
    address = blocks + 2 * clamped + tl.arange(0, 2 * BM) // BM
    start = tl.load(address)
    return start, tl.where(clamped + tl.zeros([2 * BM], tl.int32) == level, tl.load(address + 1), start)


@triton.jit
def _load_states(arena, own, other, col, D: tl.constexpr):
    """States of the own and the other parents."""
    mask = (own >= 0)[:, None] & (col < D)
    own_offset, other_offset = own.to(tl.int64)[:, None] * D, other.to(tl.int64)[:, None] * D
    return (
        tl.load(arena + own_offset + col, mask=mask, other=0.0, cache_modifier=".cg"),
        tl.load(arena + other_offset + col, mask=mask, other=0.0, cache_modifier=".cg"),
    )


@triton.jit
def _load_pre(pre, pre_row, gate, column, D: tl.constexpr):
    """Projected features in the order of the gates."""
    address = pre + pre_row.to(tl.int64)[:, None] * 3 * D + (gate - 1) * D + column
    return tl.load(address, mask=(pre_row >= 0)[:, None] & (gate > 0) & (column < D), other=0.0)


@triton.jit(do_not_specialize=["first", "last", "first_written"])
def forward(
    arena,
    pre,
    gates,
    parent_states,
    w_own,
    w_other,
    b_own,
    parents,
    source,
    blocks,
    offsets,
    first,
    last,
    first_written,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """As triton_kernels.forward, for levels of at most BM rows per side."""
    DTYPE: tl.constexpr = gates.dtype.element_ty
    side, slot = tl.arange(0, 2 * BM) // BM, tl.arange(0, 2 * BM) % BM
    users = (side == 0)[:, None]
    col = tl.arange(0, BK)[None, :]
    gate, column = (tl.arange(0, 4 * BK) // BK)[None, :], (tl.arange(0, 4 * BK) % BK)[None, :]
    is_own, inner = (tl.arange(0, 2 * BK) < BK)[:, None], (tl.arange(0, 2 * BK) % BK)[:, None]
    own_gate = (gate < 3) & (column < D)
    bias_place = b_own + (gate + 2) % 3 * D + column
    user_bias = tl.load(bias_place, mask=own_gate, other=0.0).to(tl.float32)
    item_bias = tl.load(bias_place + 3 * D, mask=own_gate, other=0.0).to(tl.float32)
    user_weights = _load_weights(w_own, w_other, 0, gate, column, is_own, inner, D)
    item_weights = _load_weights(w_own, w_other, 1, gate, column, is_own, inner, D)
    start, stop = _level_block(blocks, first, first, last, BM)
    row = start + slot
    own, other = _load_links(parents, row - first_written, row < stop)
    pre_row = tl.load(source + row - first_written, mask=row < stop, other=-1)
    added = _load_pre(pre, pre_row, gate, column, D)
    own_state, other_state = _load_states(arena, own, other, col, D)
    valid = (own >= 0)[:, None]
    next_start, stop = _level_block(blocks, first + 1, first, last, BM)
    row = next_start + slot
    own, other = _load_links(parents, row - first_written, row < stop)
    pre_row = tl.load(source + row - first_written, mask=row < stop, other=-1)
    for level in range(first, last):
        states = _beside(own_state.to(DTYPE), other_state.to(DTYPE))
        out = _dot_by_side(states, user_weights, item_weights, users, PRECISION)
        out += tl.where(users, user_bias, item_bias)
        out += added.to(tl.float32)
        h_and_r, z_and_n = _halves(out)
        h, r = _halves(h_and_r)
        z, n = _halves(z_and_n)
        r, z = tl.sigmoid(r), tl.sigmoid(z)
        n = 2 * tl.sigmoid(2 * (n + r * h)) - 1  # tanh
        place = (start + slot).to(tl.int64)[:, None] * D + col
        tl.store(arena + place, n + z * (own_state - n), mask=valid & (col < D))
        tl.debug_barrier()
        # The next level can be read now; what the backward pass needs is stored while the loads are in flight.
        stored_own, stored_other, stored = own_state.to(DTYPE), other_state.to(DTYPE), valid
        own_state, other_state = _load_states(arena, own, other, col, D)
        valid = (own >= 0)[:, None]
        added = _load_pre(pre, pre_row, gate, column, D)
        gate_row = (slot + tl.load(offsets + 2 * level + side)).to(tl.int64)[:, None]
        start = next_start
        next_start, stop = _level_block(blocks, level + 2, first, last, BM)
        row = next_start + slot
        own, other = _load_links(parents, row - first_written, row < stop)
        pre_row = tl.load(source + row - first_written, mask=row < stop, other=-1)
        tl.store(parent_states + gate_row * 2 * D + col, stored_own, mask=stored & (col < D))
        tl.store(parent_states + gate_row * 2 * D + D + col, stored_other, mask=stored & (col < D))
        whole = _beside(_beside(h.to(DTYPE), r.to(DTYPE)), _beside(z.to(DTYPE), n.to(DTYPE)))
        tl.store(gates + gate_row * 4 * D + gate * D + column, whole, mask=stored & (column < D))


@triton.jit(do_not_specialize=["first", "last", "first_written"])
def backward(
    grad,
    parent_grads,
    gates,
    parent_states,
    gate_grads,
    w_own,
    w_other,
    children,
    blocks,
    offsets,
    first,
    last,
    first_written,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """As triton_kernels.backward, for levels of at most BM rows per side."""
    DTYPE: tl.constexpr = gates.dtype.element_ty
    side, slot = tl.arange(0, 2 * BM) // BM, tl.arange(0, 2 * BM) % BM
    users = (side == 0)[:, None]
    col = tl.arange(0, BK)[None, :]
    gate, column = (tl.arange(0, 4 * BK) // BK)[None, :], (tl.arange(0, 4 * BK) % BK)[None, :]
    from_gate, inner = (tl.arange(0, 4 * BK) // BK)[:, None], (tl.arange(0, 4 * BK) % BK)[:, None]
    parent, into = (tl.arange(0, 2 * BK) // BK)[None, :], (tl.arange(0, 2 * BK) % BK)[None, :]
    user_weights = _load_weights(w_own, w_other, 0, from_gate, inner, parent == 0, into, D)
    item_weights = _load_weights(w_own, w_other, 1, from_gate, inner, parent == 0, into, D)
    start, stop = _level_block(blocks, last - 1, first, last, BM)
    row = start + slot
    own, other = _load_links(children, row, row < stop)
    w = (row - first_written).to(tl.int64)[:, None]
    gate_row = (slot + tl.load(offsets + 2 * last - 2 + side)).to(tl.int64)[:, None]
    valid = (row < stop)[:, None]
    g, h, r, z, n, own_state = _load_saved(grad, gates, parent_states, w, gate_row, valid & (col < D), col, D)
    from_own, from_other = _load_parent_grads(parent_grads, own, other, first_written, col, D)
    start, stop = _level_block(blocks, last - 2, first, last, BM)
    row = start + slot
    own, other = _load_links(children, row, row < stop)
    for step in range(last - first):
        g = g.to(tl.float32) + from_own + from_other
        to_own, to_h, to_r, to_z, to_n = _gate_gradients(g, h, r, z, n, own_state)
        whole = _beside(_beside(to_h.to(DTYPE), to_r.to(DTYPE)), _beside(to_z.to(DTYPE), to_n.to(DTYPE)))
        to_parents = _beside(to_own, tl.zeros([2 * BM, BK], tl.float32))
        to_parents += _dot_by_side(whole, user_weights, item_weights, users, PRECISION)
        tl.store(parent_grads + w * 2 * D + parent * D + into, to_parents, mask=valid & (into < D))
        tl.debug_barrier()
        from_own, from_other = _load_parent_grads(parent_grads, own, other, first_written, col, D)
        level = last - 2 - step
        w = (row - first_written).to(tl.int64)[:, None]
        next_gate_row = (slot + tl.load(offsets + 2 * tl.maximum(level, first) + side)).to(tl.int64)[:, None]
        stored, valid = valid, (row < stop)[:, None]
        g, h, r, z, n, own_state = _load_saved(
            grad, gates, parent_states, w, next_gate_row, valid & (col < D), col, D
        )
        start, stop = _level_block(blocks, level - 1, first, last, BM)
        row = start + slot
        own, other = _load_links(children, row, row < stop)
        tl.store(gate_grads + gate_row * 4 * D + gate * D + column, whole, mask=stored & (column < D))
        gate_row = next_gate_row
