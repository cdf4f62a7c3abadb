"""Narrow levels on a GPU: one program does both sides of each level, so that it waits for nobody but itself.

The kernels of triton_kernels.py meet after each level, which takes them longer than a narrow level's arithmetic. Here
the side is the first axis of every tile. What does not depend on the level before is read ahead of it: what was
computed from features, or was kept, one level ahead, and the links it takes to find states two. Tables and legend are
those of triton_kernels.py; a state has no more than BK columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dynedge.ops.level_gru.triton_kernels import _dot, _pair, _weights


@triton.jit
def _rows(blocks, level, first, last, BM: tl.constexpr):
    """The rows [2, BM] of a level, and which there are; none before `first` or from `last` on."""
    near = tl.minimum(tl.maximum(level, first), last - 1) + tl.zeros([2, 1], tl.int32)
    at = blocks + 2 * near + tl.arange(0, 2)[:, None]
    row = tl.load(at) + tl.arange(0, BM)[None, :]
    return row, (row < tl.load(at + 1)) & (near == level)


@triton.jit
def _kept_rows(row, blocks, offsets, level, first, last):
    """Where those rows are when all users' come before all items', [2, BM, 1]."""
    at = 2 * tl.minimum(tl.maximum(level, first), last - 1) + tl.arange(0, 2)[:, None]
    return (row - tl.load(blocks + at) + tl.load(offsets + at)).to(tl.int64)[:, :, None]


@triton.jit
def _added(pre, of, col, D: tl.constexpr):
    """What features add to r, z and n."""
    at = pre + of.to(tl.int64)[:, :, None] * 3 * D + col
    mask = (of >= 0)[:, :, None] & (col < D)
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
    side = tl.arange(0, 2)[:, None, None]
    col = tl.arange(0, BK)[None, None, :]
    inner = tl.arange(0, BK)[None, :, None]
    bias_r = tl.load(b_own + (side * 3 + 0) * D + col, mask=col < D, other=0.0).to(tl.float32)
    bias_z = tl.load(b_own + (side * 3 + 1) * D + col, mask=col < D, other=0.0).to(tl.float32)
    bias_n = tl.load(b_own + (side * 3 + 2) * D + col, mask=col < D, other=0.0).to(tl.float32)
    own_r = _weights(w_own, side, 0, col, inner, D)
    own_z = _weights(w_own, side, 1, col, inner, D)
    own_n = _weights(w_own, side, 2, col, inner, D)
    other_r = _weights(w_other, side, 0, col, inner, D)
    other_z = _weights(w_other, side, 1, col, inner, D)
    other_n = _weights(w_other, side, 2, col, inner, D)
    row, there = _rows(blocks, first, first, last, BM)
    own, other = _pair(parents, row - first_written, there)
    of = tl.load(source + row - first_written, mask=there, other=-1)
    add_r, add_z, add_n = _added(pre, of, col, D)
    row, there = _rows(blocks, first + 1, first, last, BM)
    next_own, next_other = _pair(parents, row - first_written, there)
    of = tl.load(source + row - first_written, mask=there, other=-1)
    for level in range(first, last):
        mask = (own >= 0)[:, :, None] & (col < D)
        by_own, by_other = own.to(tl.int64)[:, :, None] * D, other.to(tl.int64)[:, :, None] * D
        was = tl.load(arena + by_own + col, mask=mask, other=0.0, cache_modifier=".cg")
        partner = tl.load(arena + by_other + col, mask=mask, other=0.0, cache_modifier=".cg")
        r = add_r.to(tl.float32) + bias_r + _dot(was, own_r, PRECISION) + _dot(partner, other_r, PRECISION)
        z = add_z.to(tl.float32) + bias_z + _dot(was, own_z, PRECISION) + _dot(partner, other_z, PRECISION)
        h = bias_n + _dot(was, own_n, PRECISION)
        n = add_n.to(tl.float32) + _dot(partner, other_n, PRECISION)
        r, z = tl.sigmoid(r), tl.sigmoid(z)
        n = 2 * tl.sigmoid(2 * (n + r * h)) - 1  # tanh
        row, _ = _rows(blocks, level, first, last, BM)
        tl.store(arena + row.to(tl.int64)[:, :, None] * D + col, n + z * (was - n), mask=mask)
        add_r, add_z, add_n = _added(pre, of, col, D)
        own, other = next_own, next_other
        ahead, there = _rows(blocks, level + 2, first, last, BM)
        next_own, next_other = _pair(parents, ahead - first_written, there)
        of = tl.load(source + ahead - first_written, mask=there, other=-1)
        to = _kept_rows(row, blocks, offsets, level, first, last)
        tl.store(kept + to * 4 * D + col, h, mask=mask)
        tl.store(kept + to * 4 * D + D + col, r, mask=mask)
        tl.store(kept + to * 4 * D + 2 * D + col, z, mask=mask)
        tl.store(kept + to * 4 * D + 3 * D + col, n, mask=mask)
        tl.store(operands + to * 2 * D + col, was, mask=mask)
        tl.store(operands + to * 2 * D + D + col, partner, mask=mask)
        tl.debug_barrier()


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
    side = tl.arange(0, 2)[:, None, None]
    col = tl.arange(0, BK)[None, None, :]
    inner = tl.arange(0, BK)[None, :, None]
    own_r = _weights(w_own, side, 0, inner, col, D)
    own_z = _weights(w_own, side, 1, inner, col, D)
    own_n = _weights(w_own, side, 2, inner, col, D)
    other_r = _weights(w_other, side, 0, inner, col, D)
    other_z = _weights(w_other, side, 1, inner, col, D)
    other_n = _weights(w_other, side, 2, inner, col, D)
    row, there = _rows(blocks, last - 1, first, last, BM)
    own, other = _pair(children, row, there)
    w = (row - first_written).to(tl.int64)[:, :, None]
    to = _kept_rows(row, blocks, offsets, last - 1, first, last)
    mask = there[:, :, None] & (col < D)
    g, h, r, z, n, was = _left(grad, kept, operands, w, to, mask, col, D)
    for back in range(last - first):
        by_own = (own - first_written).to(tl.int64)[:, :, None] * 2 * D
        by_other = (other - first_written).to(tl.int64)[:, :, None] * 2 * D + D
        has_own, has_other = (own >= 0)[:, :, None] & mask, (other >= 0)[:, :, None] & mask
        from_own = tl.load(sent + by_own + col, mask=has_own, other=0.0, cache_modifier=".cg")
        from_other = tl.load(sent + by_other + col, mask=has_other, other=0.0, cache_modifier=".cg")
        g = g.to(tl.float32) + from_own + from_other
        h, r, z, n = h.to(tl.float32), r.to(tl.float32), z.to(tl.float32), n.to(tl.float32)
        to_n = g * (1 - z) * (1 - n * n)
        to_z = g * (was.to(tl.float32) - n) * z * (1 - z)
        to_r, to_h = to_n * h * r * (1 - r), to_n * r
        to_own = g * z + _dot(to_h, own_n, PRECISION) + _dot(to_r, own_r, PRECISION) + _dot(to_z, own_z, PRECISION)
        to_other = _dot(to_n, other_n, PRECISION) + _dot(to_r, other_r, PRECISION) + _dot(to_z, other_z, PRECISION)
        tl.store(sent + w * 2 * D + col, to_own, mask=mask)
        tl.store(sent + w * 2 * D + D + col, to_other, mask=mask)
        level = last - 2 - back
        row, there = _rows(blocks, level, first, last, BM)
        own, other = _pair(children, row, there)
        w = (row - first_written).to(tl.int64)[:, :, None]
        ahead = _kept_rows(row, blocks, offsets, level, first, last)
        behind, mask = mask, there[:, :, None] & (col < D)
        g, h, r, z, n, was = _left(grad, kept, operands, w, ahead, mask, col, D)
        tl.store(turned + to * 4 * D + col, to_h, mask=behind)
        tl.store(turned + to * 4 * D + D + col, to_r, mask=behind)
        tl.store(turned + to * 4 * D + 2 * D + col, to_z, mask=behind)
        tl.store(turned + to * 4 * D + 3 * D + col, to_n, mask=behind)
        to = ahead
        tl.debug_barrier()
