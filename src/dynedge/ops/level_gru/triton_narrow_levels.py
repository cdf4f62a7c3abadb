"""Narrow levels on a GPU: one program does both sides of each level, so that it waits for nobody but itself.

The kernels of triton_kernels.py meet after each level, which takes them longer than a narrow level's arithmetic. Here
the first BM rows of every tile are users', the next BM items'. What does not depend on the level before is read ahead
of it: what was computed from features, or was kept, one level ahead, and the links it takes to find states two.
Tables and legend are those of triton_kernels.py; a state has no more than BK columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dynedge.ops.level_gru.triton_kernels import _dot, _pair, _six


@triton.jit
def _by_side(x, of_users, of_items, users, PRECISION: tl.constexpr):
    """x · w, w being the users' for their rows, the items' for the others."""
    return _dot(tl.where(users, x, 0.0), of_users, PRECISION) + _dot(tl.where(users, 0.0, x), of_items, PRECISION)


@triton.jit
def _block(blocks, level, first, last, BM: tl.constexpr):
    """(where a level's blocks start, and end, for each row of a tile); empty before `first` and from `last` on."""
    near = tl.minimum(tl.maximum(level, first), last - 1)
    at = blocks + 2 * near + tl.arange(0, 2 * BM) // BM
    start = tl.load(at)
    return start, tl.where(near + tl.zeros([2 * BM], tl.int32) == level, tl.load(at + 1), start)


@triton.jit
def _states(arena, own, other, col, D: tl.constexpr):
    """Of the own and the other parents."""
    mask = (own >= 0)[:, None] & (col < D)
    by_own, by_other = own.to(tl.int64)[:, None] * D, other.to(tl.int64)[:, None] * D
    return (
        tl.load(arena + by_own + col, mask=mask, other=0.0, cache_modifier=".cg"),
        tl.load(arena + by_other + col, mask=mask, other=0.0, cache_modifier=".cg"),
    )


@triton.jit
def _sent(sent, own, other, first_written, col, D: tl.constexpr):
    """What the children send back: those that have the row as own, and as other parent."""
    by_own = (own - first_written).to(tl.int64)[:, None] * 2 * D
    by_other = (other - first_written).to(tl.int64)[:, None] * 2 * D + D
    return (
        tl.load(sent + by_own + col, mask=(own >= 0)[:, None] & (col < D), other=0.0, cache_modifier=".cg"),
        tl.load(sent + by_other + col, mask=(other >= 0)[:, None] & (col < D), other=0.0, cache_modifier=".cg"),
    )


@triton.jit
def _added(pre, of, col, D: tl.constexpr):
    """What features add to r, z and n."""
    at = pre + of.to(tl.int64)[:, None] * 3 * D + col
    mask = (of >= 0)[:, None] & (col < D)
    return (
        tl.load(at, mask=mask, other=0.0),
        tl.load(at + D, mask=mask, other=0.0),
        tl.load(at + 2 * D, mask=mask, other=0.0),
    )


@triton.jit(do_not_specialize=["first", "last", "first_written"])
def forward(
    arena,
    pre,
    kept,
    operands,
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
    """As triton_kernels.forward, for levels of at most BM rows a side."""
    side, place = tl.arange(0, 2 * BM) // BM, tl.arange(0, 2 * BM) % BM
    users = (side == 0)[:, None]
    col = tl.arange(0, BK)[None, :]
    inner = tl.arange(0, BK)[:, None]
    bias = b_own + side[:, None] * 3 * D + col
    bias_r = tl.load(bias, mask=col < D, other=0.0).to(tl.float32)
    bias_z = tl.load(bias + D, mask=col < D, other=0.0).to(tl.float32)
    bias_n = tl.load(bias + 2 * D, mask=col < D, other=0.0).to(tl.float32)
    own_r, own_z, own_n, other_r, other_z, other_n = _six(w_own, w_other, 0, col, inner, D)
    own_r_item, own_z_item, own_n_item, other_r_item, other_z_item, other_n_item = _six(
        w_own, w_other, 1, col, inner, D
    )
    start, stop = _block(blocks, first, first, last, BM)
    row = start + place
    own, other = _pair(parents, row - first_written, row < stop)
    of = tl.load(source + row - first_written, mask=row < stop, other=-1)
    add_r, add_z, add_n = _added(pre, of, col, D)
    was, partner = _states(arena, own, other, col, D)
    mask = (own >= 0)[:, None] & (col < D)
    next_start, stop = _block(blocks, first + 1, first, last, BM)
    row = next_start + place
    own, other = _pair(parents, row - first_written, row < stop)
    of = tl.load(source + row - first_written, mask=row < stop, other=-1)
    for level in range(first, last):
        r = add_r.to(tl.float32) + bias_r + _by_side(was, own_r, own_r_item, users, PRECISION)
        r += _by_side(partner, other_r, other_r_item, users, PRECISION)
        z = add_z.to(tl.float32) + bias_z + _by_side(was, own_z, own_z_item, users, PRECISION)
        z += _by_side(partner, other_z, other_z_item, users, PRECISION)
        h = bias_n + _by_side(was, own_n, own_n_item, users, PRECISION)
        n = add_n.to(tl.float32) + _by_side(partner, other_n, other_n_item, users, PRECISION)
        r, z = tl.sigmoid(r), tl.sigmoid(z)
        n = 2 * tl.sigmoid(2 * (n + r * h)) - 1  # tanh
        tl.store(arena + (start + place).to(tl.int64)[:, None] * D + col, n + z * (was - n), mask=mask)
        tl.debug_barrier()
        # The next level can be read now; what this one leaves for the way back is stored while that is on its way.
        before, with_whom, behind = was, partner, mask
        was, partner = _states(arena, own, other, col, D)
        mask = (own >= 0)[:, None] & (col < D)
        add_r, add_z, add_n = _added(pre, of, col, D)
        to = (place + tl.load(offsets + 2 * level + side)).to(tl.int64)[:, None]
        start = next_start
        next_start, stop = _block(blocks, level + 2, first, last, BM)
        row = next_start + place
        own, other = _pair(parents, row - first_written, row < stop)
        of = tl.load(source + row - first_written, mask=row < stop, other=-1)
        tl.store(operands + to * 2 * D + col, before, mask=behind)
        tl.store(operands + to * 2 * D + D + col, with_whom, mask=behind)
        tl.store(kept + to * 4 * D + col, h, mask=behind)
        tl.store(kept + to * 4 * D + D + col, r, mask=behind)
        tl.store(kept + to * 4 * D + 2 * D + col, z, mask=behind)
        tl.store(kept + to * 4 * D + 3 * D + col, n, mask=behind)


@triton.jit
def _left(grad, kept, operands, w, to, mask, col, D: tl.constexpr):
    """What a row finds of its own on the way back: its gradient, h_n, r, z, n and the own parent's state."""
    return (
        tl.load(grad + w * D + col, mask=mask, other=0.0),
        tl.load(kept + to * 4 * D + col, mask=mask, other=0.0),
        tl.load(kept + to * 4 * D + D + col, mask=mask, other=0.0),
        tl.load(kept + to * 4 * D + 2 * D + col, mask=mask, other=0.0),
        tl.load(kept + to * 4 * D + 3 * D + col, mask=mask, other=0.0),
        tl.load(operands + to * 2 * D + col, mask=mask, other=0.0),
    )


@triton.jit(do_not_specialize=["first", "last", "first_written"])
def backward(
    grad,
    sent,
    kept,
    operands,
    turned,
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
    """As triton_kernels.backward, for levels of at most BM rows a side."""
    side, place = tl.arange(0, 2 * BM) // BM, tl.arange(0, 2 * BM) % BM
    users = (side == 0)[:, None]
    col = tl.arange(0, BK)[None, :]
    inner = tl.arange(0, BK)[:, None]
    own_r, own_z, own_n, other_r, other_z, other_n = _six(w_own, w_other, 0, inner, col, D)
    own_r_item, own_z_item, own_n_item, other_r_item, other_z_item, other_n_item = _six(
        w_own, w_other, 1, inner, col, D
    )
    start, stop = _block(blocks, last - 1, first, last, BM)
    row = start + place
    own, other = _pair(children, row, row < stop)
    w = (row - first_written).to(tl.int64)[:, None]
    to = (place + tl.load(offsets + 2 * last - 2 + side)).to(tl.int64)[:, None]
    mask = (row < stop)[:, None] & (col < D)
    g, h, r, z, n, was = _left(grad, kept, operands, w, to, mask, col, D)
    from_own, from_other = _sent(sent, own, other, first_written, col, D)
    start, stop = _block(blocks, last - 2, first, last, BM)
    row = start + place
    own, other = _pair(children, row, row < stop)
    for back in range(last - first):
        g = g.to(tl.float32) + from_own + from_other
        h, r, z, n = h.to(tl.float32), r.to(tl.float32), z.to(tl.float32), n.to(tl.float32)
        to_n = g * (1 - z) * (1 - n * n)
        to_z = g * (was.to(tl.float32) - n) * z * (1 - z)
        to_r, to_h = to_n * h * r * (1 - r), to_n * r
        to_own = g * z + _by_side(to_h, own_n, own_n_item, users, PRECISION)
        to_own += _by_side(to_r, own_r, own_r_item, users, PRECISION)
        to_own += _by_side(to_z, own_z, own_z_item, users, PRECISION)
        to_other = _by_side(to_n, other_n, other_n_item, users, PRECISION)
        to_other += _by_side(to_r, other_r, other_r_item, users, PRECISION)
        to_other += _by_side(to_z, other_z, other_z_item, users, PRECISION)
        tl.store(sent + w * 2 * D + col, to_own, mask=mask)
        tl.store(sent + w * 2 * D + D + col, to_other, mask=mask)
        tl.debug_barrier()
        from_own, from_other = _sent(sent, own, other, first_written, col, D)
        level = last - 2 - back
        w = (row - first_written).to(tl.int64)[:, None]
        ahead = (place + tl.load(offsets + 2 * tl.maximum(level, first) + side)).to(tl.int64)[:, None]
        behind, mask = mask, (row < stop)[:, None] & (col < D)
        g, h, r, z, n, was = _left(grad, kept, operands, w, ahead, mask, col, D)
        start, stop = _block(blocks, level - 1, first, last, BM)
        row = start + place
        own, other = _pair(children, row, row < stop)
        tl.store(turned + to * 4 * D + col, to_h, mask=behind)
        tl.store(turned + to * 4 * D + D + col, to_r, mask=behind)
        tl.store(turned + to * 4 * D + 2 * D + col, to_z, mask=behind)
        tl.store(turned + to * 4 * D + 3 * D + col, to_n, mask=behind)
        to = ahead
