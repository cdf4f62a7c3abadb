"""Triton kernels of level_gru: gather, one matrix product, gates and write in one kernel; backward by gathers alone.

Legend: d width of a state, W states written, R rows of the arena.

A program computes rows of one side, BM at a time, so that it reads that side's weights once and keeps them. One
launch computes a run of levels; between two levels all its programs wait for each other. A run of one
level needs no barrier and may have any number of programs.

Tables that the backward pass needs are laid out by side, all users' rows before all items' (`offsets` is where each
block starts), so that weight gradients are plain products of whole tables:

    gates [W, 4d]          h_n | r | z | n
    parent_states [W, 2d]  own | other, as they entered the product
    gate_grads [W, 4d]     ∂h_n | ∂r | ∂z | ∂n, gradients before the activations
    parent_grads [W, 2d]   gradient for the own parent | for the other one, in the order of the arena: a row gathers
                           it from its children

A row's projected features are a row of `pre` and, with G > 0, a row of `values` [E, G] times `value_weights`
[2, G, 3d]: a few numbers of each event, which need no table of 3d numbers for each event this way.

The products of a block are one: [own | other] times a matrix of the four gates, in which the blocks that do not exist
(h_n has no other parent, n no own one) are zero. Each product of its own would take its own detour through shared
memory, and these, not the arithmetic, are the time of a level. For the same reason rows of gates are loaded and
stored as a whole.

A state wider than BK columns is computed by several programs: each computes a tile of its columns from all of its
inputs. What does not depend on the level before is loaded before waiting for it, and what the next level does not
read is stored after reporting the level as done. States are loaded past the L1 cache, which does not see other
programs' writes. The start of a block is read again in each level: Triton 3.6 loses a bound carried around the outer
loop.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    """a · b in b's type with float32 sums; "rounded" gives the same by float32 products, for the interpreter, which
    treats bfloat16 as integers."""
    if PRECISION == "rounded":
        return tl.dot(a.to(b.dtype).to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a.to(b.dtype), b, input_precision=PRECISION)


@triton.jit
def _beside(left, right):
    """[m, 2k]: the columns of `left`, then those of `right`, both [m, k]."""
    return tl.join(left, right).permute(0, 2, 1).reshape(left.shape[0], 2 * left.shape[1])


@triton.jit
def _halves(x):
    """The first and the second half of the columns."""
    return tl.split(x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1))


@triton.jit
def _load_weights(w_own, w_other, side, gate, out, is_own, into, D: tl.constexpr):
    """A side's weights from the parents' columns `into` to the gates' columns `out`; gates as in `gates`."""
    inside = (out < D) & (into < D)
    place = out * D + into
    own = tl.load(w_own + (side * 3 + (gate + 2) % 3) * D * D + place, mask=inside & is_own & (gate < 3), other=0.0)
    other = tl.load(
        w_other + (side * 3 + gate - 1) * D * D + place, mask=inside & (is_own == 0) & (gate > 0), other=0.0
    )
    return own + other


@triton.jit
def _arrive(arrivals, done, HAS_BARRIER: tl.constexpr):
    """Reports that this program has written its rows of a level, if it is done."""
    if HAS_BARRIER:
        tl.debug_barrier()
        tl.atomic_add(arrivals, 1, mask=done, sem="acq_rel", scope="gpu")


@triton.jit
def _wait(arrivals, goal, HAS_BARRIER: tl.constexpr):
    """Waits until programs have arrived `goal` times in total; what they wrote before can be read afterwards."""
    if HAS_BARRIER:
        while tl.atomic_add(arrivals, 0, sem="acquire", scope="gpu") < goal:
            pass
        tl.debug_barrier()


@triton.jit
def _load_links(links, row, valid):
    """The two rows linked to each row; −1 where there is none."""
    address = links + 2 * row.to(tl.int64)
    return tl.load(address, mask=valid, other=-1), tl.load(address + 1, mask=valid, other=-1)


@triton.jit
def _load_inputs(
    parents,
    source,
    pre,
    values,
    value_rows,
    row,
    first_written,
    stop,
    gate,
    column,
    D: tl.constexpr,
    G: tl.constexpr,
    BG: tl.constexpr,
):
    """Own parents, other parents, projected features [BM, 4 BK], in the gates' order, and rows of `values` [BM, BG],
    of rows below `stop`."""
    w = row - first_written
    own, other = _load_links(parents, w, row < stop)
    pre_row = tl.load(source + w, mask=row < stop, other=-1).to(tl.int64)[:, None]
    added = tl.load(
        pre + pre_row * 3 * D + (gate - 1) * D + column, mask=(pre_row >= 0) & (gate > 0) & (column < D), other=0.0
    )
    more = tl.zeros([row.shape[0], BG], tl.float32)
    if G:
        value_row = tl.load(value_rows + w, mask=row < stop, other=0).to(tl.int64)[:, None]
        number = tl.arange(0, BG)[None, :]
        more = tl.load(values + value_row * G + number, mask=(row < stop)[:, None] & (number < G), other=0.0)
    return own, other, added, more


@triton.jit(do_not_specialize=["first", "last", "first_written"], do_not_specialize_on_alignment=["arrivals"])
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
    arrivals,
    first,
    last,
    first_written,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
    HAS_BARRIER: tl.constexpr,
    G: tl.constexpr,
):
    """Levels first to last − 1: fills their rows of arena [R, d], gates, parent_states. Row w adds pre[source[w]]
    and, with G > 0, value_weights · values[value_rows[w]]."""
    TILES: tl.constexpr = (D + BK - 1) // BK
    DTYPE: tl.constexpr = gates.dtype.element_ty
    BG: tl.constexpr = 16
    programs = tl.num_programs(0)
    side = tl.program_id(0) % 2
    first_tile, stride = (tl.program_id(0) // 2) // TILES, (programs // 2) // TILES * BM
    tile = (tl.program_id(0) // 2) % TILES
    col = tile * BK + tl.arange(0, BK)[None, :]
    gate, column = (tl.arange(0, 4 * BK) // BK)[None, :], (tile * BK + tl.arange(0, 4 * BK) % BK)[None, :]
    is_own, inner = (tl.arange(0, 2 * BK) < BK)[:, None], (tl.arange(0, 2 * BK) % BK)[:, None]
    bias = tl.load(b_own + (side * 3 + (gate + 2) % 3) * D + column, mask=(gate < 3) & (column < D), other=0.0).to(
        tl.float32
    )
    if TILES == 1:
        weights = _load_weights(w_own, w_other, side, gate, column, is_own, inner, D)
    if G:
        number = tl.arange(0, BG)[:, None]
        place = ((side * G + number) * 3 + gate - 1) * D + column
        of_values = tl.load(value_weights + place, mask=(number < G) & (gate > 0) & (column < D), other=0.0).to(DTYPE)
    row = tl.load(blocks + 2 * first + side) + first_tile * BM + tl.arange(0, BM)
    stop = tl.load(blocks + 2 * first + side + 1)
    own, other, added, more = _load_inputs(
        parents, source, pre, values, value_rows, row, first_written, stop, gate, column, D, G, BG
    )
    for level in range(first, last):
        block = tl.load(blocks + 2 * level + side)
        stop = tl.load(blocks + 2 * level + side + 1)
        offset = tl.load(offsets + 2 * level + side)
        _wait(arrivals, programs * (level - first), HAS_BARRIER)
        for block_row in range(block + first_tile * BM, stop, stride):
            valid = (own >= 0)[:, None]
            mask = valid & (col < D)
            from_own = own.to(tl.int64)[:, None] * D
            from_other = other.to(tl.int64)[:, None] * D
            own_state = tl.load(arena + from_own + col, mask=mask, other=0.0, cache_modifier=".cg")
            other_state = tl.load(arena + from_other + col, mask=mask, other=0.0, cache_modifier=".cg")
            if TILES == 1:
                out = _dot(_beside(own_state.to(DTYPE), other_state.to(DTYPE)), weights, PRECISION) + bias
            else:
                out = tl.zeros([BM, 4 * BK], tl.float32) + bias
                for k in tl.static_range(0, D, BK):
                    into = k + tl.arange(0, BK)[None, :]
                    a = tl.load(arena + from_own + into, mask=valid & (into < D), other=0.0, cache_modifier=".cg")
                    b = tl.load(arena + from_other + into, mask=valid & (into < D), other=0.0, cache_modifier=".cg")
                    part = _load_weights(w_own, w_other, side, gate, column, is_own, k + inner, D)
                    out += _dot(_beside(a.to(DTYPE), b.to(DTYPE)), part, PRECISION)
            out += added.to(tl.float32)
            if G:
                out += _dot(more, of_values, PRECISION)
            h_and_r, z_and_n = _halves(out)
            h, r = _halves(h_and_r)
            z, n = _halves(z_and_n)
            r, z = tl.sigmoid(r), tl.sigmoid(z)
            n = 2 * tl.sigmoid(2 * (n + r * h)) - 1  # tanh
            state_row = (block_row + tl.arange(0, BM)).to(tl.int64)[:, None]
            gate_row = (offset + block_row - block + tl.arange(0, BM)).to(tl.int64)[:, None]
            tl.store(arena + state_row * D + col, n + z * (own_state - n), mask=mask)
            _arrive(arrivals, block_row + stride >= stop, HAS_BARRIER)
            whole = _beside(_beside(h.to(DTYPE), r.to(DTYPE)), _beside(z.to(DTYPE), n.to(DTYPE)))
            tl.store(gates + gate_row * 4 * D + gate * D + column, whole, mask=valid & (column < D))
            tl.store(parent_states + gate_row * 2 * D + col, own_state, mask=mask)
            tl.store(parent_states + gate_row * 2 * D + D + col, other_state, mask=mask)
            row = block_row + stride + tl.arange(0, BM)
            own, other, added, more = _load_inputs(
                parents, source, pre, values, value_rows, row, first_written, stop, gate, column, D, G, BG
            )
        _arrive(arrivals, block + first_tile * BM >= stop, HAS_BARRIER)
        if level + 1 < last:
            row = tl.load(blocks + 2 * level + 2 + side) + first_tile * BM + tl.arange(0, BM)
            stop = tl.load(blocks + 2 * level + 3 + side)
            own, other, added, more = _load_inputs(
                parents, source, pre, values, value_rows, row, first_written, stop, gate, column, D, G, BG
            )


@triton.jit
def _load_saved(grad, gates, parent_states, w, gate_row, mask, col, D: tl.constexpr):
    """What the backward pass reads of a row: its gradient, h_n, r, z, n and the own parent's state."""
    return (
        tl.load(grad + w * D + col, mask=mask, other=0.0),
        tl.load(gates + gate_row * 4 * D + col, mask=mask, other=0.0),
        tl.load(gates + gate_row * 4 * D + D + col, mask=mask, other=0.0),
        tl.load(gates + gate_row * 4 * D + 2 * D + col, mask=mask, other=0.0),
        tl.load(gates + gate_row * 4 * D + 3 * D + col, mask=mask, other=0.0),
        tl.load(parent_states + gate_row * 2 * D + col, mask=mask, other=0.0),
    )


@triton.jit
def _load_outputs(children, grad, gates, parent_states, row, first_written, stop, gate_row, col, D: tl.constexpr):
    """Own and other children of the rows below `stop`, and what the backward pass reads of them (_load_saved)."""
    own, other = _load_links(children, row, row < stop)
    w = (row - first_written).to(tl.int64)[:, None]
    mask = (row < stop)[:, None] & (col < D)
    g, h, r, z, n, own_state = _load_saved(
        grad, gates, parent_states, w, gate_row.to(tl.int64)[:, None], mask, col, D
    )
    return own, other, g, h, r, z, n, own_state


@triton.jit
def _load_parent_grads(parent_grads, own, other, first_written, col, D: tl.constexpr):
    """Gradients from two children: the one that has the row as own parent, and the one as other parent."""
    own_offset = (own - first_written).to(tl.int64)[:, None] * 2 * D
    other_offset = (other - first_written).to(tl.int64)[:, None] * 2 * D + D
    return (
        tl.load(
            parent_grads + own_offset + col, mask=(own >= 0)[:, None] & (col < D), other=0.0, cache_modifier=".cg"
        ),
        tl.load(
            parent_grads + other_offset + col, mask=(other >= 0)[:, None] & (col < D), other=0.0, cache_modifier=".cg"
        ),
    )


@triton.jit
def _gate_gradients(g, h, r, z, n, own_state):
    """(gradient that goes directly to the own parent, ∂h_n, ∂r, ∂z, ∂n)."""
    h, r, z, n = h.to(tl.float32), r.to(tl.float32), z.to(tl.float32), n.to(tl.float32)
    to_n = g * (1 - z) * (1 - n * n)
    to_z = g * (own_state.to(tl.float32) - n) * z * (1 - z)
    return g * z, to_n * r, to_n * h * r * (1 - r), to_z, to_n


@triton.jit(do_not_specialize=["first", "last", "first_written"], do_not_specialize_on_alignment=["arrivals"])
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
    arrivals,
    first,
    last,
    first_written,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
    HAS_BARRIER: tl.constexpr,
):
    """Levels last − 1 down to first: fills their rows of gate_grads and parent_grads. grad [W, d]."""
    TILES: tl.constexpr = (D + BK - 1) // BK
    DTYPE: tl.constexpr = gates.dtype.element_ty
    programs = tl.num_programs(0)
    side = tl.program_id(0) % 2
    first_tile, stride = (tl.program_id(0) // 2) // TILES, (programs // 2) // TILES * BM
    tile = (tl.program_id(0) // 2) % TILES
    col = tile * BK + tl.arange(0, BK)[None, :]
    gate, column = (tl.arange(0, 4 * BK) // BK)[None, :], (tile * BK + tl.arange(0, 4 * BK) % BK)[None, :]
    from_gate, inner = (tl.arange(0, 4 * BK) // BK)[:, None], (tl.arange(0, 4 * BK) % BK)[:, None]
    is_own, into = (tl.arange(0, 2 * BK) < BK)[None, :], (tile * BK + tl.arange(0, 2 * BK) % BK)[None, :]
    if TILES == 1:
        weights = _load_weights(w_own, w_other, side, from_gate, inner, is_own, into, D)
    block = tl.load(blocks + 2 * last - 2 + side)
    stop = tl.load(blocks + 2 * last - 1 + side)
    row = block + first_tile * BM + tl.arange(0, BM)
    first_gate = tl.load(offsets + 2 * last - 2 + side)
    own, other, g, h, r, z, n, own_state = _load_outputs(
        children, grad, gates, parent_states, row, first_written, stop, first_gate + row - block, col, D
    )
    for step in range(last - first):
        level = last - 1 - step
        block = tl.load(blocks + 2 * level + side)
        stop = tl.load(blocks + 2 * level + side + 1)
        offset = tl.load(offsets + 2 * level + side)
        _wait(arrivals, programs * step, HAS_BARRIER)
        for block_row in range(block + first_tile * BM, stop, stride):
            valid = (block_row + tl.arange(0, BM) < stop)[:, None]
            w = (block_row - first_written + tl.arange(0, BM)).to(tl.int64)[:, None]
            gate_row = (offset + block_row - block + tl.arange(0, BM)).to(tl.int64)[:, None]
            from_own, from_other = _load_parent_grads(parent_grads, own, other, first_written, col, D)
            to_own, h, r, z, n = _gate_gradients(g.to(tl.float32) + from_own + from_other, h, r, z, n, own_state)
            whole = _beside(_beside(h.to(DTYPE), r.to(DTYPE)), _beside(z.to(DTYPE), n.to(DTYPE)))
            to_parents = _beside(to_own, tl.zeros([BM, BK], tl.float32))
            if TILES == 1:
                to_parents += _dot(whole, weights, PRECISION)
            else:
                for k in tl.static_range(0, D, BK):
                    near = k + tl.arange(0, BK)[None, :]
                    g, h, r, z, n, own_state = _load_saved(
                        grad, gates, parent_states, w, gate_row, valid & (near < D), near, D
                    )
                    from_own, from_other = _load_parent_grads(parent_grads, own, other, first_written, near, D)
                    _, h, r, z, n = _gate_gradients(g.to(tl.float32) + from_own + from_other, h, r, z, n, own_state)
                    part = _load_weights(w_own, w_other, side, from_gate, k + inner, is_own, into, D)
                    gradients = _beside(_beside(h.to(DTYPE), r.to(DTYPE)), _beside(z.to(DTYPE), n.to(DTYPE)))
                    to_parents += _dot(gradients, part, PRECISION)
            parent = tl.where(is_own, 0, 1)
            tl.store(parent_grads + w * 2 * D + parent * D + into, to_parents, mask=valid & (into < D))
            _arrive(arrivals, block_row + stride >= stop, HAS_BARRIER)
            tl.store(gate_grads + gate_row * 4 * D + gate * D + column, whole, mask=valid & (column < D))
            row = block_row + stride + tl.arange(0, BM)
            own, other, g, h, r, z, n, own_state = _load_outputs(
                children, grad, gates, parent_states, row, first_written, stop, offset + row - block, col, D
            )
        _arrive(arrivals, block + first_tile * BM >= stop, HAS_BARRIER)
        if level > first:
            block = tl.load(blocks + 2 * level - 2 + side)
            stop = tl.load(blocks + 2 * level - 1 + side)
            row = block + first_tile * BM + tl.arange(0, BM)
            first_gate = tl.load(offsets + 2 * level - 2 + side)
            own, other, g, h, r, z, n, own_state = _load_outputs(
                children, grad, gates, parent_states, row, first_written, stop, first_gate + row - block, col, D
            )


@triton.jit(do_not_specialize=["rows", "first_written"])
def root_gradients(
    out, grad, parent_grads, children, rows, first_written, D: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr
):
    """out [rows, d]: gradients of rows that no level writes, `grad` and those from children, which ψ has none of."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    valid = row < rows
    own = tl.load(children + 2 * row.to(tl.int64), mask=valid, other=-1)
    other = tl.load(children + 2 * row.to(tl.int64) + 1, mask=valid, other=-1)
    from_own = (own - first_written).to(tl.int64)[:, None] * 2 * D
    from_other = (other - first_written).to(tl.int64)[:, None] * 2 * D + D
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        g = tl.load(parent_grads + from_own + col, mask=(own >= 0)[:, None] & (col < D), other=0.0)
        g += tl.load(parent_grads + from_other + col, mask=(other >= 0)[:, None] & (col < D), other=0.0)
        g += tl.load(grad + row.to(tl.int64)[:, None] * D + col, mask=valid[:, None] & (col < D), other=0.0)
        tl.store(out + row.to(tl.int64)[:, None] * D + col, g, mask=valid[:, None] & (col < D))
