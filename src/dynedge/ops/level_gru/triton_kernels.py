"""Triton kernels of level_gru: gather, matrix products, gates and write in one kernel; backward by gathers alone.

Legend: d width of a state, W states written, R rows of the arena.

A program computes rows of one side, BM at a time, so that it reads that side's weights once and keeps them. One
launch computes a run of levels; between two levels all its programs wait for each other. A run of one
level needs no barrier and may have any number of programs.

What the backward pass needs is laid out by side, all users' rows before all items' (`offsets` is where each block
starts), so that weight gradients are plain products of whole tables:

    gates [W, 4d]          h_n | r | z | n
    parent_states [W, 2d]  own | other, as they entered the products
    gate_grads [W, 4d]     ∂h_n | ∂r | ∂z | ∂n, gradients before the activations
    parent_grads [W, 2d]   gradient for the own parent | for the other one, in the order of the arena: a row gathers
                           it from its children

A state wider than BK columns is computed by several programs: each computes a tile of its columns from all of its
inputs. Indices of the next rows are read before the barrier; states are loaded past the L1 cache, which does not see
other programs' writes. The start of a block is read again in each level: Triton 3.6 loses a bound carried around the
outer loop.
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
def _grid_barrier(arrivals, goal):
    """Waits until programs have arrived `goal` times in total; what they wrote before can be read afterwards."""
    tl.debug_barrier()
    tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu")
    while tl.atomic_add(arrivals, 0, sem="acquire", scope="gpu") < goal:
        pass
    tl.debug_barrier()


@triton.jit
def _load_links(links, row, valid):
    """The two rows linked to each row; −1 where there is none."""
    address = links + 2 * row.to(tl.int64)
    return tl.load(address, mask=valid, other=-1), tl.load(address + 1, mask=valid, other=-1)


@triton.jit
def _store_gates(table, row, h, r, z, n, mask, col, D: tl.constexpr):
    """Rows of a table [W, 4d] of gates or of their gradients."""
    address = table + row * 4 * D + col
    tl.store(address, h, mask=mask)
    tl.store(address + D, r, mask=mask)
    tl.store(address + 2 * D, z, mask=mask)
    tl.store(address + 3 * D, n, mask=mask)


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
    """Levels first to last − 1: fills their rows of arena [R, d], gates, parent_states. Row w adds pre[source[w]]."""
    TILES: tl.constexpr = (D + BK - 1) // BK
    programs = tl.num_programs(0)
    side = tl.program_id(0) % 2
    first_tile, stride = (tl.program_id(0) // 2) // TILES, (programs // 2) // TILES * BM
    tile = (tl.program_id(0) // 2) % TILES
    col = tile * BK + tl.arange(0, BK)[None, :]
    in_state = col < D
    inner = tl.arange(0, BK)[:, None]
    bias_r = tl.load(b_own + (side * 3 + 0) * D + col, mask=in_state, other=0.0).to(tl.float32)
    bias_z = tl.load(b_own + (side * 3 + 1) * D + col, mask=in_state, other=0.0).to(tl.float32)
    bias_n = tl.load(b_own + (side * 3 + 2) * D + col, mask=in_state, other=0.0).to(tl.float32)
    if TILES == 1:
        own_r, own_z, own_n, other_r, other_z, other_n = _load_gate_weights(w_own, w_other, side, col, inner, D)
    row = tl.load(blocks + 2 * first + side) + first_tile * BM + tl.arange(0, BM)
    valid_next = row < tl.load(blocks + 2 * first + side + 1)
    own, other = _load_links(parents, row - first_written, valid_next)
    pre_row = tl.load(source + row - first_written, mask=valid_next, other=-1)
    for level in range(first, last):
        block = tl.load(blocks + 2 * level + side)
        stop = tl.load(blocks + 2 * level + side + 1)
        offset = tl.load(offsets + 2 * level + side)
        for block_row in range(block + first_tile * BM, stop, stride):
            valid = (own >= 0)[:, None]
            mask = valid & in_state
            from_own = own.to(tl.int64)[:, None] * D
            from_other = other.to(tl.int64)[:, None] * D
            pre_offset = pre_row.to(tl.int64)[:, None] * 3 * D
            own_state = tl.load(arena + from_own + col, mask=mask, other=0.0, cache_modifier=".cg")
            other_state = tl.load(arena + from_other + col, mask=mask, other=0.0, cache_modifier=".cg")
            r = tl.load(pre + pre_offset + col, mask=mask, other=0.0).to(tl.float32) + bias_r
            z = tl.load(pre + pre_offset + D + col, mask=mask, other=0.0).to(tl.float32) + bias_z
            n = tl.load(pre + pre_offset + 2 * D + col, mask=mask, other=0.0).to(tl.float32)
            h = tl.zeros([BM, BK], tl.float32) + bias_n
            if TILES == 1:
                r += _dot(own_state, own_r, PRECISION) + _dot(other_state, other_r, PRECISION)
                z += _dot(own_state, own_z, PRECISION) + _dot(other_state, other_z, PRECISION)
                h += _dot(own_state, own_n, PRECISION)
                n += _dot(other_state, other_n, PRECISION)
            else:
                for k in tl.static_range(0, D, BK):
                    inner_col = k + tl.arange(0, BK)[None, :]
                    inner_mask = valid & (inner_col < D)
                    a = tl.load(arena + from_own + inner_col, mask=inner_mask, other=0.0, cache_modifier=".cg")
                    b = tl.load(arena + from_other + inner_col, mask=inner_mask, other=0.0, cache_modifier=".cg")
                    r += _dot(a, _load_weight(w_own, side, 0, col, k + inner, D), PRECISION)
                    z += _dot(a, _load_weight(w_own, side, 1, col, k + inner, D), PRECISION)
                    h += _dot(a, _load_weight(w_own, side, 2, col, k + inner, D), PRECISION)
                    r += _dot(b, _load_weight(w_other, side, 0, col, k + inner, D), PRECISION)
                    z += _dot(b, _load_weight(w_other, side, 1, col, k + inner, D), PRECISION)
                    n += _dot(b, _load_weight(w_other, side, 2, col, k + inner, D), PRECISION)
            r, z = tl.sigmoid(r), tl.sigmoid(z)
            n = 2 * tl.sigmoid(2 * (n + r * h)) - 1  # tanh
            state_row = (block_row + tl.arange(0, BM)).to(tl.int64)[:, None]
            gate_row = (offset + block_row - block + tl.arange(0, BM)).to(tl.int64)[:, None]
            tl.store(arena + state_row * D + col, n + z * (own_state - n), mask=mask)
            _store_gates(gates, gate_row, h, r, z, n, mask, col, D)
            tl.store(parent_states + gate_row * 2 * D + col, own_state, mask=mask)
            tl.store(parent_states + gate_row * 2 * D + D + col, other_state, mask=mask)
            row = block_row + stride + tl.arange(0, BM)
            own, other = _load_links(parents, row - first_written, row < stop)
            pre_row = tl.load(source + row - first_written, mask=row < stop, other=-1)
        if level + 1 < last:
            row = tl.load(blocks + 2 * level + 2 + side) + first_tile * BM + tl.arange(0, BM)
            valid_next = row < tl.load(blocks + 2 * level + 3 + side)
            own, other = _load_links(parents, row - first_written, valid_next)
            pre_row = tl.load(source + row - first_written, mask=valid_next, other=-1)
            if HAS_BARRIER:
                _grid_barrier(arrivals, programs * (level + 1 - first))


@triton.jit
def _gate_gradients(grad, parent_grads, gates, parent_states, w, own, other, gate_row, mask, col, D: tl.constexpr):
    """(gradient that goes directly to the own parent, ∂h_n, ∂r, ∂z, ∂n) of rows w, for columns col."""
    has_own, has_other = mask & (own >= 0), mask & (other >= 0)
    g = tl.load(grad + w * D + col, mask=mask, other=0.0).to(tl.float32)
    g += tl.load(parent_grads + own * 2 * D + col, mask=has_own, other=0.0, cache_modifier=".cg")
    g += tl.load(parent_grads + other * 2 * D + D + col, mask=has_other, other=0.0, cache_modifier=".cg")
    h = tl.load(gates + gate_row * 4 * D + col, mask=mask, other=0.0).to(tl.float32)
    r = tl.load(gates + gate_row * 4 * D + D + col, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(gates + gate_row * 4 * D + 2 * D + col, mask=mask, other=0.0).to(tl.float32)
    n = tl.load(gates + gate_row * 4 * D + 3 * D + col, mask=mask, other=0.0).to(tl.float32)
    own_state = tl.load(parent_states + gate_row * 2 * D + col, mask=mask, other=0.0).to(tl.float32)
    to_n = g * (1 - z) * (1 - n * n)
    to_z = g * (own_state - n) * z * (1 - z)
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
    programs = tl.num_programs(0)
    side = tl.program_id(0) % 2
    first_tile, stride = (tl.program_id(0) // 2) // TILES, (programs // 2) // TILES * BM
    tile = (tl.program_id(0) // 2) % TILES
    col = tile * BK + tl.arange(0, BK)[None, :]
    in_state = col < D
    inner = tl.arange(0, BK)[:, None]
    if TILES == 1:
        own_r, own_z, own_n, other_r, other_z, other_n = _load_gate_weights(w_own, w_other, side, inner, col, D)
    row = tl.load(blocks + 2 * last - 2 + side) + first_tile * BM + tl.arange(0, BM)
    own, other = _load_links(children, row, row < tl.load(blocks + 2 * last - 1 + side))
    for step in range(last - first):
        level = last - 1 - step
        block = tl.load(blocks + 2 * level + side)
        stop = tl.load(blocks + 2 * level + side + 1)
        offset = tl.load(offsets + 2 * level + side)
        for block_row in range(block + first_tile * BM, stop, stride):
            valid = (block_row + tl.arange(0, BM) < stop)[:, None]
            mask = valid & in_state
            w = (block_row - first_written + tl.arange(0, BM)).to(tl.int64)[:, None]
            gate_row = (offset + block_row - block + tl.arange(0, BM)).to(tl.int64)[:, None]
            own_child = tl.where(own >= 0, own - first_written, -1).to(tl.int64)[:, None]
            other_child = tl.where(other >= 0, other - first_written, -1).to(tl.int64)[:, None]
            to_own, h, r, z, n = _gate_gradients(
                grad, parent_grads, gates, parent_states, w, own_child, other_child, gate_row, mask, col, D
            )
            _store_gates(gate_grads, gate_row, h, r, z, n, mask, col, D)
            to_other = tl.zeros([BM, BK], tl.float32)
            if TILES == 1:
                to_own += _dot(h, own_n, PRECISION) + _dot(r, own_r, PRECISION) + _dot(z, own_z, PRECISION)
                to_other += _dot(n, other_n, PRECISION) + _dot(r, other_r, PRECISION) + _dot(z, other_z, PRECISION)
            else:
                for k in tl.static_range(0, D, BK):
                    inner_col = k + tl.arange(0, BK)[None, :]
                    inner_mask = valid & (inner_col < D)
                    _, h, r, z, n = _gate_gradients(
                        grad,
                        parent_grads,
                        gates,
                        parent_states,
                        w,
                        own_child,
                        other_child,
                        gate_row,
                        inner_mask,
                        inner_col,
                        D,
                    )
                    to_own += _dot(h, _load_weight(w_own, side, 2, k + inner, col, D), PRECISION)
                    to_own += _dot(r, _load_weight(w_own, side, 0, k + inner, col, D), PRECISION)
                    to_own += _dot(z, _load_weight(w_own, side, 1, k + inner, col, D), PRECISION)
                    to_other += _dot(n, _load_weight(w_other, side, 2, k + inner, col, D), PRECISION)
                    to_other += _dot(r, _load_weight(w_other, side, 0, k + inner, col, D), PRECISION)
                    to_other += _dot(z, _load_weight(w_other, side, 1, k + inner, col, D), PRECISION)
            tl.store(parent_grads + w * 2 * D + col, to_own, mask=mask)
            tl.store(parent_grads + w * 2 * D + D + col, to_other, mask=mask)
            row = block_row + stride + tl.arange(0, BM)
            own, other = _load_links(children, row, row < stop)
        if level > first:
            row = tl.load(blocks + 2 * level - 2 + side) + first_tile * BM + tl.arange(0, BM)
            own, other = _load_links(children, row, row < tl.load(blocks + 2 * level - 1 + side))
            if HAS_BARRIER:
                _grid_barrier(arrivals, programs * (step + 1))


@triton.jit(do_not_specialize=["rows", "first_written"])
def root_gradients(
    out, parent_grads, children, rows, first_written, D: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr
):
    """out [rows, d]: gradients of rows that no level writes, from their children. Zero for ψ rows."""
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
        tl.store(out + row.to(tl.int64)[:, None] * D + col, g, mask=valid[:, None] & (col < D))
