"""The levels on a GPU: gather, products, gates, write, in one kernel; and backward, by gathers alone.

Legend: d width of a state, W states written, R rows of the arena.

A program does rows of one side, BM at a time, so that it reads that side's weights once and keeps them. One launch
does a run of levels; between two levels all its programs wait for each other. A run of one level waits for nobody
and may have as many programs as it likes.

What a row leaves for the way back is laid out by side, all users' rows before all items' (`offsets` says where each
block goes), so that weight gradients are plain products of whole tables:

    kept [W, 4d]      h_n | r | z | n
    operands [W, 2d]  own | other, as they entered the products
    turned [W, 4d]    ∂h_n | ∂r | ∂z | ∂n, gradients before the activations
    sent [W, 2d]      what goes back to the own parent | to the other one, in the order of the arena: a row gathers it
                      from its children

Wider than BK columns, a state is done by several programs: each a tile of its columns, over all that it reads.
Indices of the next rows are read before waiting; loads of states pass by the L1 cache, which another program's writes
do not reach. Where a block starts is read again in each level: Triton 3.6 loses a bound carried round the outer loop.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    """a · b in b's type with float32 sums; "rounded": the same by float32 products, for the interpreter, which would
    take the bits of a bfloat16 for an integer."""
    if PRECISION == "rounded":
        return tl.dot(a.to(b.dtype).to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a.to(b.dtype), b, input_precision=PRECISION)


@triton.jit
def _weights(w, side, gate: tl.constexpr, out, into, D: tl.constexpr):
    """Tile of gate `gate` (r, z, n) of a side's matrix [3d, d]: rows `out`, columns `into`."""
    return tl.load(w + ((side * 3 + gate) * D + out) * D + into, mask=(out < D) & (into < D), other=0.0)


@triton.jit
def _six(w_own, w_other, side, out, into, D: tl.constexpr):
    """The tiles of a side's gates r, z, n: for the own state, then for the other's."""
    return (
        _weights(w_own, side, 0, out, into, D),
        _weights(w_own, side, 1, out, into, D),
        _weights(w_own, side, 2, out, into, D),
        _weights(w_other, side, 0, out, into, D),
        _weights(w_other, side, 1, out, into, D),
        _weights(w_other, side, 2, out, into, D),
    )


@triton.jit
def _meet(arrived, goal):
    """Wait until programs have come here `goal` times in all; what they wrote before can be read after."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu")
    while tl.atomic_add(arrived, 0, sem="acquire", scope="gpu") < goal:
        pass
    tl.debug_barrier()


@triton.jit
def _pair(links, row, there):
    """The two rows linked to each of these; −1 where there is none."""
    at = links + 2 * row.to(tl.int64)
    return tl.load(at, mask=there, other=-1), tl.load(at + 1, mask=there, other=-1)


@triton.jit(do_not_specialize=["first", "last", "first_written"], do_not_specialize_on_alignment=["arrived"])
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
    arrived,
    first,
    last,
    first_written,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
    MEET: tl.constexpr,
):
    """Levels first to last − 1: fills their rows of arena [R, d], kept and operands. Row w adds pre[source[w]]."""
    TILES: tl.constexpr = (D + BK - 1) // BK
    programs = tl.num_programs(0)
    side = tl.program_id(0) % 2
    mine, step = (tl.program_id(0) // 2) // TILES, (programs // 2) // TILES * BM
    tile = (tl.program_id(0) // 2) % TILES
    col = tile * BK + tl.arange(0, BK)[None, :]
    inside = col < D
    inner = tl.arange(0, BK)[:, None]
    bias_r = tl.load(b_own + (side * 3 + 0) * D + col, mask=inside, other=0.0).to(tl.float32)
    bias_z = tl.load(b_own + (side * 3 + 1) * D + col, mask=inside, other=0.0).to(tl.float32)
    bias_n = tl.load(b_own + (side * 3 + 2) * D + col, mask=inside, other=0.0).to(tl.float32)
    if TILES == 1:
        own_r, own_z, own_n, other_r, other_z, other_n = _six(w_own, w_other, side, col, inner, D)
    row = tl.load(blocks + 2 * first + side) + mine * BM + tl.arange(0, BM)
    more = row < tl.load(blocks + 2 * first + side + 1)
    own, other = _pair(parents, row - first_written, more)
    of = tl.load(source + row - first_written, mask=more, other=-1)
    for level in range(first, last):
        block = tl.load(blocks + 2 * level + side)
        stop = tl.load(blocks + 2 * level + side + 1)
        offset = tl.load(offsets + 2 * level + side)
        for at in range(block + mine * BM, stop, step):
            there = (own >= 0)[:, None]
            mask = there & inside
            from_own = own.to(tl.int64)[:, None] * D
            from_other = other.to(tl.int64)[:, None] * D
            add = of.to(tl.int64)[:, None] * 3 * D
            was = tl.load(arena + from_own + col, mask=mask, other=0.0, cache_modifier=".cg")
            partner = tl.load(arena + from_other + col, mask=mask, other=0.0, cache_modifier=".cg")
            r = tl.load(pre + add + col, mask=mask, other=0.0).to(tl.float32) + bias_r
            z = tl.load(pre + add + D + col, mask=mask, other=0.0).to(tl.float32) + bias_z
            n = tl.load(pre + add + 2 * D + col, mask=mask, other=0.0).to(tl.float32)
            h = tl.zeros([BM, BK], tl.float32) + bias_n
            if TILES == 1:
                r += _dot(was, own_r, PRECISION) + _dot(partner, other_r, PRECISION)
                z += _dot(was, own_z, PRECISION) + _dot(partner, other_z, PRECISION)
                h += _dot(was, own_n, PRECISION)
                n += _dot(partner, other_n, PRECISION)
            else:
                for k in tl.static_range(0, D, BK):
                    across = k + tl.arange(0, BK)[None, :]
                    some = there & (across < D)
                    a = tl.load(arena + from_own + across, mask=some, other=0.0, cache_modifier=".cg")
                    b = tl.load(arena + from_other + across, mask=some, other=0.0, cache_modifier=".cg")
                    r += _dot(a, _weights(w_own, side, 0, col, k + inner, D), PRECISION)
                    z += _dot(a, _weights(w_own, side, 1, col, k + inner, D), PRECISION)
                    h += _dot(a, _weights(w_own, side, 2, col, k + inner, D), PRECISION)
                    r += _dot(b, _weights(w_other, side, 0, col, k + inner, D), PRECISION)
                    z += _dot(b, _weights(w_other, side, 1, col, k + inner, D), PRECISION)
                    n += _dot(b, _weights(w_other, side, 2, col, k + inner, D), PRECISION)
            r, z = tl.sigmoid(r), tl.sigmoid(z)
            n = 2 * tl.sigmoid(2 * (n + r * h)) - 1  # tanh
            new = (at + tl.arange(0, BM)).to(tl.int64)[:, None]
            to = (offset + at - block + tl.arange(0, BM)).to(tl.int64)[:, None]
            tl.store(arena + new * D + col, n + z * (was - n), mask=mask)
            tl.store(kept + to * 4 * D + col, h, mask=mask)
            tl.store(kept + to * 4 * D + D + col, r, mask=mask)
            tl.store(kept + to * 4 * D + 2 * D + col, z, mask=mask)
            tl.store(kept + to * 4 * D + 3 * D + col, n, mask=mask)
            tl.store(operands + to * 2 * D + col, was, mask=mask)
            tl.store(operands + to * 2 * D + D + col, partner, mask=mask)
            row = at + step + tl.arange(0, BM)
            own, other = _pair(parents, row - first_written, row < stop)
            of = tl.load(source + row - first_written, mask=row < stop, other=-1)
        if level + 1 < last:
            row = tl.load(blocks + 2 * level + 2 + side) + mine * BM + tl.arange(0, BM)
            more = row < tl.load(blocks + 2 * level + 3 + side)
            own, other = _pair(parents, row - first_written, more)
            of = tl.load(source + row - first_written, mask=more, other=-1)
            if MEET:
                _meet(arrived, programs * (level + 1 - first))


@triton.jit
def _turn(grad, sent, kept, operands, w, own, other, to, mask, col, D: tl.constexpr):
    """(gradient that goes straight on to the own parent, ∂h_n, ∂r, ∂z, ∂n) of rows w, for columns col."""
    has_own, has_other = mask & (own >= 0), mask & (other >= 0)
    g = tl.load(grad + w * D + col, mask=mask, other=0.0).to(tl.float32)
    g += tl.load(sent + own * 2 * D + col, mask=has_own, other=0.0, cache_modifier=".cg")
    g += tl.load(sent + other * 2 * D + D + col, mask=has_other, other=0.0, cache_modifier=".cg")
    h = tl.load(kept + to * 4 * D + col, mask=mask, other=0.0).to(tl.float32)
    r = tl.load(kept + to * 4 * D + D + col, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(kept + to * 4 * D + 2 * D + col, mask=mask, other=0.0).to(tl.float32)
    n = tl.load(kept + to * 4 * D + 3 * D + col, mask=mask, other=0.0).to(tl.float32)
    was = tl.load(operands + to * 2 * D + col, mask=mask, other=0.0).to(tl.float32)
    to_n = g * (1 - z) * (1 - n * n)
    to_z = g * (was - n) * z * (1 - z)
    return g * z, to_n * r, to_n * h * r * (1 - r), to_z, to_n


@triton.jit(do_not_specialize=["first", "last", "first_written"], do_not_specialize_on_alignment=["arrived"])
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
    arrived,
    first,
    last,
    first_written,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
    MEET: tl.constexpr,
):
    """Levels last − 1 down to first: fills their rows of turned and sent. grad [W, d]."""
    TILES: tl.constexpr = (D + BK - 1) // BK
    programs = tl.num_programs(0)
    side = tl.program_id(0) % 2
    mine, step = (tl.program_id(0) // 2) // TILES, (programs // 2) // TILES * BM
    tile = (tl.program_id(0) // 2) % TILES
    col = tile * BK + tl.arange(0, BK)[None, :]
    inside = col < D
    inner = tl.arange(0, BK)[:, None]
    if TILES == 1:
        own_r, own_z, own_n, other_r, other_z, other_n = _six(w_own, w_other, side, inner, col, D)
    row = tl.load(blocks + 2 * last - 2 + side) + mine * BM + tl.arange(0, BM)
    own, other = _pair(children, row, row < tl.load(blocks + 2 * last - 1 + side))
    for back in range(last - first):
        level = last - 1 - back
        block = tl.load(blocks + 2 * level + side)
        stop = tl.load(blocks + 2 * level + side + 1)
        offset = tl.load(offsets + 2 * level + side)
        for at in range(block + mine * BM, stop, step):
            there = (at + tl.arange(0, BM) < stop)[:, None]
            mask = there & inside
            w = (at - first_written + tl.arange(0, BM)).to(tl.int64)[:, None]
            to = (offset + at - block + tl.arange(0, BM)).to(tl.int64)[:, None]
            by_own = tl.where(own >= 0, own - first_written, -1).to(tl.int64)[:, None]
            by_other = tl.where(other >= 0, other - first_written, -1).to(tl.int64)[:, None]
            to_own, h, r, z, n = _turn(grad, sent, kept, operands, w, by_own, by_other, to, mask, col, D)
            tl.store(turned + to * 4 * D + col, h, mask=mask)
            tl.store(turned + to * 4 * D + D + col, r, mask=mask)
            tl.store(turned + to * 4 * D + 2 * D + col, z, mask=mask)
            tl.store(turned + to * 4 * D + 3 * D + col, n, mask=mask)
            to_other = tl.zeros([BM, BK], tl.float32)
            if TILES == 1:
                to_own += _dot(h, own_n, PRECISION) + _dot(r, own_r, PRECISION) + _dot(z, own_z, PRECISION)
                to_other += _dot(n, other_n, PRECISION) + _dot(r, other_r, PRECISION) + _dot(z, other_z, PRECISION)
            else:
                for k in tl.static_range(0, D, BK):
                    across = k + tl.arange(0, BK)[None, :]
                    some = there & (across < D)
                    _, h, r, z, n = _turn(grad, sent, kept, operands, w, by_own, by_other, to, some, across, D)
                    to_own += _dot(h, _weights(w_own, side, 2, k + inner, col, D), PRECISION)
                    to_own += _dot(r, _weights(w_own, side, 0, k + inner, col, D), PRECISION)
                    to_own += _dot(z, _weights(w_own, side, 1, k + inner, col, D), PRECISION)
                    to_other += _dot(n, _weights(w_other, side, 2, k + inner, col, D), PRECISION)
                    to_other += _dot(r, _weights(w_other, side, 0, k + inner, col, D), PRECISION)
                    to_other += _dot(z, _weights(w_other, side, 1, k + inner, col, D), PRECISION)
            tl.store(sent + w * 2 * D + col, to_own, mask=mask)
            tl.store(sent + w * 2 * D + D + col, to_other, mask=mask)
            row = at + step + tl.arange(0, BM)
            own, other = _pair(children, row, row < stop)
        if level > first:
            row = tl.load(blocks + 2 * level - 2 + side) + mine * BM + tl.arange(0, BM)
            own, other = _pair(children, row, row < tl.load(blocks + 2 * level - 1 + side))
            if MEET:
                _meet(arrived, programs * (back + 1))


@triton.jit(do_not_specialize=["rows", "first_written"])
def root_gradients(out, sent, children, rows, first_written, D: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """out [rows, d]: what the children of a row that no level writes send back to it. Nought for ψ rows."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    there = row < rows
    own = tl.load(children + 2 * row.to(tl.int64), mask=there, other=-1)
    other = tl.load(children + 2 * row.to(tl.int64) + 1, mask=there, other=-1)
    from_own = (own - first_written).to(tl.int64)[:, None] * 2 * D
    from_other = (other - first_written).to(tl.int64)[:, None] * 2 * D + D
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        g = tl.load(sent + from_own + col, mask=(own >= 0)[:, None] & (col < D), other=0.0)
        g += tl.load(sent + from_other + col, mask=(other >= 0)[:, None] & (col < D), other=0.0)
        tl.store(out + row.to(tl.int64)[:, None] * D + col, g, mask=there[:, None] & (col < D))
