"""Triton kernels of level_gru for narrow levels: one program computes both sides of each level, without barrier.

The kernels of triton_kernels.py synchronise after each level, which takes longer than a narrow level's arithmetic.
Here the first BM rows of every tile are users', the next BM items'. What does not depend on the previous level is
prefetched: projected features and saved gates one level ahead, and the links to the parents' states two levels ahead.
Tables and legend are those of triton_kernels.py; a state has at most BK columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dynedge.ops.level_gru.triton_kernels import _dot, _gate_gradients, _load_links, _load_parent_grads, _load_saved


@triton.jit
def _load_weight(w, side, gate: tl.constexpr, out, into, D: tl.constexpr):
    """Tile of one gate (0, 1, 2 for r, z, n) of a side's matrix [3d, d]: rows `out`, columns `into`."""
    return tl.load(w + ((side * 3 + gate) * D + out) * D + into, mask=(out < D) & (into < D), other=0.0)


@triton.jit
def _load_gate_weights(w_own, w_other, side, out, into, D: tl.constexpr):
    """Tiles of a side's gates r, z, n: for the own parent, then for the other one."""
    return (
        _load_weight(w_own, side, 0, out, into, D),
        _load_weight(w_own, side, 1, out, into, D),
        _load_weight(w_own, side, 2, out, into, D),
        _load_weight(w_other, side, 0, out, into, D),
        _load_weight(w_other, side, 1, out, into, D),
        _load_weight(w_other, side, 2, out, into, D),
    )


@triton.jit
def _store_gates(table, row, h, r, z, n, mask, col, D: tl.constexpr):
    """Rows of a table [W, 4d] of gates or of their gradients."""
    address = table + row * 4 * D + col
    tl.store(address, h, mask=mask)
    tl.store(address + D, r, mask=mask)
    tl.store(address + 2 * D, z, mask=mask)
    tl.store(address + 3 * D, n, mask=mask)


@triton.jit
def _dot_by_side(x, user_weights, item_weights, users, PRECISION: tl.constexpr):
    """x · w, with the users' weights for users' rows, the items' for items'."""
    return _dot(tl.where(users, x, 0.0), user_weights, PRECISION) + _dot(
        tl.where(users, 0.0, x), item_weights, PRECISION
    )


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
def _load_pre(pre, pre_row, values, value_row, value_weights, side, col, D: tl.constexpr, G: tl.constexpr):
    """Projected features for r, z and n."""
    address = pre + pre_row.to(tl.int64)[:, None] * 3 * D + col
    mask = (pre_row >= 0)[:, None] & (col < D)
    r = tl.load(address, mask=mask, other=0.0)
    z = tl.load(address + D, mask=mask, other=0.0)
    n = tl.load(address + 2 * D, mask=mask, other=0.0)
    if G:
        r, z, n = r.to(tl.float32), z.to(tl.float32), n.to(tl.float32)
        for g in tl.static_range(G):
            value = tl.load(values + value_row.to(tl.int64) * G + g, mask=pre_row >= 0, other=0.0)[:, None]
            weight = value_weights + (side[:, None] * G + g) * 3 * D + col
            r += value * tl.load(weight, mask=mask, other=0.0)
            z += value * tl.load(weight + D, mask=mask, other=0.0)
            n += value * tl.load(weight + 2 * D, mask=mask, other=0.0)
    return r, z, n


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
    values,
    value_rows,
    value_weights,
    first,
    last,
    first_written,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
    G: tl.constexpr,
):
    """As triton_kernels.forward, for levels of at most BM rows per side."""
    side, slot = tl.arange(0, 2 * BM) // BM, tl.arange(0, 2 * BM) % BM
    users = (side == 0)[:, None]
    col = tl.arange(0, BK)[None, :]
    inner = tl.arange(0, BK)[:, None]
    bias = b_own + side[:, None] * 3 * D + col
    bias_r = tl.load(bias, mask=col < D, other=0.0).to(tl.float32)
    bias_z = tl.load(bias + D, mask=col < D, other=0.0).to(tl.float32)
    bias_n = tl.load(bias + 2 * D, mask=col < D, other=0.0).to(tl.float32)
    own_r, own_z, own_n, other_r, other_z, other_n = _load_gate_weights(w_own, w_other, 0, col, inner, D)
    own_r_item, own_z_item, own_n_item, other_r_item, other_z_item, other_n_item = _load_gate_weights(
        w_own, w_other, 1, col, inner, D
    )
    start, stop = _level_block(blocks, first, first, last, BM)
    row = start + slot
    own, other = _load_links(parents, row - first_written, row < stop)
    pre_row = tl.load(source + row - first_written, mask=row < stop, other=-1)
    value_row = pre_row
    if G:
        value_row = tl.load(value_rows + row - first_written, mask=row < stop, other=0)
    add_r, add_z, add_n = _load_pre(pre, pre_row, values, value_row, value_weights, side, col, D, G)
    own_state, other_state = _load_states(arena, own, other, col, D)
    mask = (own >= 0)[:, None] & (col < D)
    next_start, stop = _level_block(blocks, first + 1, first, last, BM)
    row = next_start + slot
    own, other = _load_links(parents, row - first_written, row < stop)
    pre_row = tl.load(source + row - first_written, mask=row < stop, other=-1)
    if G:
        value_row = tl.load(value_rows + row - first_written, mask=row < stop, other=0)
    for level in range(first, last):
        r = add_r.to(tl.float32) + bias_r + _dot_by_side(own_state, own_r, own_r_item, users, PRECISION)
        r += _dot_by_side(other_state, other_r, other_r_item, users, PRECISION)
        z = add_z.to(tl.float32) + bias_z + _dot_by_side(own_state, own_z, own_z_item, users, PRECISION)
        z += _dot_by_side(other_state, other_z, other_z_item, users, PRECISION)
        h = bias_n + _dot_by_side(own_state, own_n, own_n_item, users, PRECISION)
        n = add_n.to(tl.float32) + _dot_by_side(other_state, other_n, other_n_item, users, PRECISION)
        r, z = tl.sigmoid(r), tl.sigmoid(z)
        n = 2 * tl.sigmoid(2 * (n + r * h)) - 1  # tanh
        tl.store(arena + (start + slot).to(tl.int64)[:, None] * D + col, n + z * (own_state - n), mask=mask)
        tl.debug_barrier()
        # The next level can be read now; what the backward pass needs is stored while the loads are in flight.
        stored_own, stored_other, stored_mask = own_state, other_state, mask
        own_state, other_state = _load_states(arena, own, other, col, D)
        mask = (own >= 0)[:, None] & (col < D)
        add_r, add_z, add_n = _load_pre(pre, pre_row, values, value_row, value_weights, side, col, D, G)
        gate_row = (slot + tl.load(offsets + 2 * level + side)).to(tl.int64)[:, None]
        start = next_start
        next_start, stop = _level_block(blocks, level + 2, first, last, BM)
        row = next_start + slot
        own, other = _load_links(parents, row - first_written, row < stop)
        pre_row = tl.load(source + row - first_written, mask=row < stop, other=-1)
        if G:
            value_row = tl.load(value_rows + row - first_written, mask=row < stop, other=0)
        tl.store(parent_states + gate_row * 2 * D + col, stored_own, mask=stored_mask)
        tl.store(parent_states + gate_row * 2 * D + D + col, stored_other, mask=stored_mask)
        _store_gates(gates, gate_row, h, r, z, n, stored_mask, col, D)


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
    side, slot = tl.arange(0, 2 * BM) // BM, tl.arange(0, 2 * BM) % BM
    users = (side == 0)[:, None]
    col = tl.arange(0, BK)[None, :]
    inner = tl.arange(0, BK)[:, None]
    own_r, own_z, own_n, other_r, other_z, other_n = _load_gate_weights(w_own, w_other, 0, inner, col, D)
    own_r_item, own_z_item, own_n_item, other_r_item, other_z_item, other_n_item = _load_gate_weights(
        w_own, w_other, 1, inner, col, D
    )
    start, stop = _level_block(blocks, last - 1, first, last, BM)
    row = start + slot
    own, other = _load_links(children, row, row < stop)
    w = (row - first_written).to(tl.int64)[:, None]
    gate_row = (slot + tl.load(offsets + 2 * last - 2 + side)).to(tl.int64)[:, None]
    mask = (row < stop)[:, None] & (col < D)
    g, h, r, z, n, own_state = _load_saved(grad, gates, parent_states, w, gate_row, mask, col, D)
    from_own, from_other = _load_parent_grads(parent_grads, own, other, first_written, col, D)
    start, stop = _level_block(blocks, last - 2, first, last, BM)
    row = start + slot
    own, other = _load_links(children, row, row < stop)
    for step in range(last - first):
        g = g.to(tl.float32) + from_own + from_other
        to_own, to_h, to_r, to_z, to_n = _gate_gradients(g, h, r, z, n, own_state)
        to_own += _dot_by_side(to_h, own_n, own_n_item, users, PRECISION)
        to_own += _dot_by_side(to_r, own_r, own_r_item, users, PRECISION)
        to_own += _dot_by_side(to_z, own_z, own_z_item, users, PRECISION)
        to_other = _dot_by_side(to_n, other_n, other_n_item, users, PRECISION)
        to_other += _dot_by_side(to_r, other_r, other_r_item, users, PRECISION)
        to_other += _dot_by_side(to_z, other_z, other_z_item, users, PRECISION)
        tl.store(parent_grads + w * 2 * D + col, to_own, mask=mask)
        tl.store(parent_grads + w * 2 * D + D + col, to_other, mask=mask)
        tl.debug_barrier()
        from_own, from_other = _load_parent_grads(parent_grads, own, other, first_written, col, D)
        level = last - 2 - step
        w = (row - first_written).to(tl.int64)[:, None]
        next_gate_row = (slot + tl.load(offsets + 2 * tl.maximum(level, first) + side)).to(tl.int64)[:, None]
        stored_mask, mask = mask, (row < stop)[:, None] & (col < D)
        g, h, r, z, n, own_state = _load_saved(grad, gates, parent_states, w, next_gate_row, mask, col, D)
        start, stop = _level_block(blocks, level - 1, first, last, BM)
        row = start + slot
        own, other = _load_links(children, row, row < stop)
        _store_gates(gate_grads, gate_row, to_h, to_r, to_z, to_n, stored_mask, col, D)
        gate_row = next_gate_row
