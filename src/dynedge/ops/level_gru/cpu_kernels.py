"""Numba kernels of level_gru: the levels forward, and backward, where gradients are gathered from the children.

Legend: d width of a state, W states written, R rows of the arena, F rows before the written ones.

A row's gates are stored next to each other, so that each parent's product covers 3d contiguous numbers:

    gates [W, 4d]         h_n | r | z | n         the own parent's product covers h_n r z, the other parent's r z n
    gate_grads [W, 4d]    ∂h_n | ∂r | ∂z | ∂n     gradients before the activations, in the same layout

Matrices of own parents have their rows in that order (n, r, z), those of other parents in torch's (r, z, n).
`state_grads` [R, d] holds a row's gradient while its level runs, and afterwards z times that, the part that goes
directly to its own parent.

Every kernel computes one part of `parts`, some of the rows of each level, and no two parts write the same row.
"""

from __future__ import annotations

import numpy as np

from dynedge.ops.gather_matmul import ALLOW_FMA, add_matmul, add_outer
from dynedge.ops.thread_pool import part_of_range
from dynedge.ops.vector_math import tanh
from dynedge.plan.schedule import OTHER, OWN
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

CHUNK = 32  # rows computed together: their gates, 32 KiB at d = 64, stay in the cache between the steps


@compiled
def kernel_weights(b_own: Array, w_own: Array, w_other: Array) -> tuple[Array, Array, Array]:
    """Bias and matrices for the forward pass: own parents' gates in the order n, r, z; matrices [2, d, 3d]."""
    d = w_own.shape[2]
    bias, own, other = (
        np.empty_like(b_own),
        np.empty((2, d, 3 * d), w_own.dtype),
        np.empty((2, d, 3 * d), w_own.dtype),
    )
    for side in range(2):
        for c in range(3 * d):
            reordered = c + d if c < 2 * d else c - 2 * d
            bias[side, reordered] = b_own[side, c]
            for j in range(d):
                own[side, j, reordered] = w_own[side, c, j]
                other[side, j, c] = w_other[side, c, j]
    return bias, own, other


@compiled
def project_roots(
    part: int,
    parts: int,
    bounds: Array,
    children: Array,
    w_own: Array,
    w_other: Array,
    arena: Array,
    entry_own: Array,
    root_other: Array,
) -> None:
    """Products of entry and ψ rows with the weights of their readers, computed once, before the levels.

    entry_own [entry rows, 3d]: as own parents; root_other [entry and ψ rows, 3d]: as other parents, if they are read
    as such. Entry users, entry items, ψ users and ψ items lie between the five bounds. w_own, w_other [2, d, 3d].
    """
    rows = np.empty(CHUNK, np.int64)
    for section in range(4):
        side = section % 2
        start, stop = part_of_range(bounds[section], bounds[section + 1], part, parts)
        for low in range(start, stop, CHUNK):
            high = min(low + CHUNK, stop)
            count = 0
            for row in range(low, high):
                if section >= 2 or children[row, OTHER] >= 0:
                    _clear(root_other[row])
                    rows[count] = row
                    count += 1
            add_matmul(root_other, 0, rows, arena, 0, rows, count, w_other[1 - side])
            if section < 2:
                for i in range(high - low):
                    rows[i] = low + i
                    _clear(entry_own[low + i])
                add_matmul(entry_own, 0, rows, arena, 0, rows, high - low, w_own[side])


@compiled
def forward(part: int, parts: int, first: int, last: int, blocks: Array, *arrays: Array) -> None:
    """Levels first to last − 1: fills their rows of arena [R, d] and gates, using the products of `project_roots`."""
    for level in range(first, last):
        for side in range(2):
            start, stop = part_of_range(blocks[2 * level + side], blocks[2 * level + side + 1], part, parts)
            _forward(start, stop, side, blocks[0], *arrays)


@compiled
def backward(part: int, parts: int, first: int, last: int, blocks: Array, *arrays: Array) -> None:
    """Levels last − 1 down to first: fills their rows of gate_grads and state_grads.

    grad [W, d]; w_own, w_other [2, 3d, d].
    """
    for level in range(last - 1, first - 1, -1):
        for side in range(2):
            start, stop = part_of_range(blocks[2 * level + side], blocks[2 * level + side + 1], part, parts)
            _backward(start, stop, side, blocks[0], *arrays)


@compiled
def _forward(
    start: int,
    stop: int,
    side: int,
    first_written: int,
    parents: Array,
    b_own: Array,
    w_own: Array,
    w_other: Array,
    arena: Array,
    entry_own: Array,
    root_other: Array,
    pre: Array,
    gates: Array,
) -> None:
    """Rows start to stop − 1, of one level and side.

    Sums always run in the order bias, features, own parent, other parent: a state has the same bits whether its
    parents are in the window or before it, so that a log may be cut into windows anywhere.
    """
    d = arena.shape[1]
    out_rows, in_rows = np.empty((2, CHUNK), np.int64), np.empty((2, CHUNK), np.int64)
    for low in range(start, stop, CHUNK):
        high = min(low + CHUNK, stop)
        num_own = num_other = 0
        for row in range(low, high):
            w = row - first_written
            own, other = parents[w, OWN], parents[w, OTHER]
            _fill_sums(gates[w], pre[w], b_own[side])
            if own < len(entry_own):
                _add(gates[w, : 3 * d], entry_own[own])
            else:
                out_rows[OWN, num_own], in_rows[OWN, num_own] = w, own
                num_own += 1
            if other >= len(root_other):
                out_rows[OTHER, num_other], in_rows[OTHER, num_other] = w, other
                num_other += 1
        add_matmul(gates, 0, out_rows[OWN], arena, 0, in_rows[OWN], num_own, w_own[side])
        for row in range(low, high):
            w = row - first_written
            if parents[w, OTHER] < len(root_other):
                _add(gates[w, d:], root_other[parents[w, OTHER]])
        add_matmul(gates, d, out_rows[OTHER], arena, 0, in_rows[OTHER], num_other, w_other[side])
        for row in range(low, high):
            w = row - first_written
            _apply_gates(gates[w], arena[parents[w, OWN]], arena[row])


@compiled
def _backward(
    start: int,
    stop: int,
    side: int,
    first_written: int,
    parents: Array,
    children: Array,
    w_own: Array,
    w_other: Array,
    arena: Array,
    gates: Array,
    grad: Array,
    gate_grads: Array,
    state_grads: Array,
) -> None:
    """Rows start to stop − 1, of one level and side."""
    rows, out_rows, in_rows = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    for low in range(start, stop, CHUNK):
        count = min(CHUNK, stop - low)
        for i in range(count):
            rows[i] = low + i
            _copy(state_grads[low + i], grad[low + i - first_written])
        _gather_from_children(
            rows[:count], side, first_written, children, w_own, w_other, gate_grads, state_grads, out_rows, in_rows
        )
        for row in range(low, low + count):
            w = row - first_written
            _gate_gradients(gates[w], arena[parents[w, OWN]], state_grads[row], gate_grads[w])


@compiled(fastmath=ALLOW_FMA)
def root_gradients(
    part: int,
    parts: int,
    rows: Array,
    side: int,
    first_written: int,
    children: Array,
    w_own: Array,
    w_other: Array,
    gate_grads: Array,
    state_grads: Array,
) -> None:
    """Gradients, in state_grads, of the rows of one side that no level writes, gathered from their children."""
    out_rows, in_rows = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    start, stop = part_of_range(0, len(rows), part, parts)
    for low in range(start, stop, CHUNK):
        chunk = rows[low : min(low + CHUNK, stop)]
        for i in range(len(chunk)):
            _clear(state_grads[chunk[i]])
        _gather_from_children(
            chunk, side, first_written, children, w_own, w_other, gate_grads, state_grads, out_rows, in_rows
        )


@compiled
def psi_gradients(
    part: int,
    parts: int,
    bounds: Array,
    starts: Array,
    readers: Array,
    first_written: int,
    w_other: Array,
    gate_grads: Array,
    reader_sums: Array,
    state_grads: Array,
) -> None:
    """Fills reader_sums [ψ rows, 3d], ∂r ∂z ∂n summed over the readers of each row, and the ψ rows of state_grads."""
    d = state_grads.shape[1]
    out_rows, in_rows = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    for side in range(2):
        start, stop = part_of_range(bounds[2 + side], bounds[3 + side], part, parts)
        for low in range(start, stop, CHUNK):
            count = min(CHUNK, stop - low)
            for i in range(count):
                out_rows[i], in_rows[i] = low + i, low + i - bounds[2]
                _clear(state_grads[out_rows[i]])
                _clear(reader_sums[in_rows[i]])
                for reader in range(starts[in_rows[i]], starts[in_rows[i] + 1]):
                    _add(reader_sums[in_rows[i]], gate_grads[readers[reader] - first_written, d:])
            add_matmul(state_grads, 0, out_rows, reader_sums, 0, in_rows, count, w_other[1 - side])


@compiled
def group_by_reading(blocks: Array, parents: Array, first_psi: int, first_phi: int) -> tuple[Array, Array]:
    """(written rows, from 0, in four groups; their starts): users' that do not read ψ, that do; items' likewise."""
    ends = np.zeros(5, np.int64)
    order = np.empty(len(parents), np.int64)
    for filling in range(2):
        for block in range(len(blocks) - 1):
            for w in range(blocks[block] - blocks[0], blocks[block + 1] - blocks[0]):
                group = 2 * (block % 2) + int(first_psi <= parents[w, OTHER] < first_phi)
                if filling:
                    order[ends[group]] = w
                ends[group + 1 - filling] += 1
        if not filling:
            ends = np.cumsum(ends)
    return order, np.concatenate((np.zeros(1, np.int64), ends[:4]))


@compiled
def weight_gradients(
    part: int,
    parts: int,
    order: Array,
    groups: Array,
    bounds: Array,
    parents: Array,
    gate_grads: Array,
    reader_sums: Array,
    arena: Array,
    w_own: Array,
    w_other: Array,
    b_own: Array,
) -> None:
    """Fills this part's rows of w_own, w_other [2, 3d, d] and b_own [2, 3d]; readers of ψ enter by reader_sums."""
    d = arena.shape[1]
    first, last = part_of_range(0, (3 * d + 3) // 4, part, parts)
    first, last = 4 * first, min(4 * last, 3 * d)
    own, other = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    b_partial = np.empty(last - first, arena.dtype)
    for side in range(2):
        w_own[side, first:last] = 0
        w_other[side, first:last] = 0
        _clear(b_own[side, first:last])
        start, first_psi_reader, stop = groups[2 * side], groups[2 * side + 1], groups[2 * side + 2]
        for low in range(start, stop, CHUNK):
            rows = order[low : min(low + CHUNK, stop)]
            _clear(b_partial)
            for i in range(len(rows)):
                own[i], other[i] = parents[rows[i], OWN], parents[rows[i], OTHER]
                _add(b_partial, gate_grads[rows[i], first:last])
            _add(b_own[side, first:last], b_partial)
            add_outer(w_own[side], first, last, gate_grads, 0, rows, arena, own[: len(rows)])
            plain_count = min(max(first_psi_reader - low, 0), len(rows))
            add_outer(w_other[side], first, last, gate_grads, d, rows[:plain_count], arena, other[:plain_count])
        for low in range(
            bounds[3 - side], bounds[4 - side], CHUNK
        ):  # users read the ψ of items, and items that of users
            rows = np.arange(low, min(low + CHUNK, bounds[4 - side]))
            add_outer(w_other[side], first, last, reader_sums, 0, rows - bounds[2], arena, rows)


@compiled(fastmath=ALLOW_FMA)
def _gather_from_children(
    rows: Array,
    side: int,
    first_written: int,
    children: Array,
    w_own: Array,
    w_other: Array,
    gate_grads: Array,
    state_grads: Array,
    out_rows: Array,
    in_rows: Array,
) -> None:
    """state_grads[row] += the gradients from its two children: as own parent of one, as other parent of the other."""
    count = 0
    for i in range(len(rows)):
        child = children[rows[i], OWN]
        if child >= 0:
            _add(state_grads[rows[i]], state_grads[child])
            out_rows[count], in_rows[count] = rows[i], child - first_written
            count += 1
    add_matmul(state_grads, 0, out_rows, gate_grads, 0, in_rows, count, w_own[side])
    count = 0
    for i in range(len(rows)):
        child = children[rows[i], OTHER]
        if child >= 0:
            out_rows[count], in_rows[count] = rows[i], child - first_written
            count += 1
    add_matmul(state_grads, 0, out_rows, gate_grads, state_grads.shape[1], in_rows, count, w_other[1 - side])


# Operations on one row: loops that LLVM vectorises.


@compiled
def _copy(row: Array, values: Array) -> None:
    for j in range(len(row)):
        row[j] = values[j]


@compiled
def _clear(row: Array) -> None:
    for j in range(len(row)):
        row[j] = 0


@compiled
def _add(total: Array, more: Array) -> None:
    for j in range(len(total)):
        total[j] += more[j]


@compiled
def _fill_sums(gates: Array, pre: Array, bias: Array) -> None:
    """Sums before the activations, without the parents' products."""
    d = len(gates) // 4
    h, rz, n = gates[:d], gates[d : 3 * d], gates[3 * d :]
    shared_bias, pre_n = bias[d:], pre[2 * d :]
    for j in range(d):
        h[j] = bias[j]
        n[j] = pre_n[j]
    for j in range(2 * d):
        rz[j] = shared_bias[j] + pre[j]


@compiled(fastmath=ALLOW_FMA)
def _apply_gates(gates: Array, own: Array, new: Array) -> None:
    """Turns the sums into gates, in place, and the gates into the new state. σ(x) is ½ + ½ tanh(½ x)."""
    d = len(own)
    half = own.dtype.type(0.5)
    rz = gates[d : 3 * d]
    for j in range(2 * d):
        rz[j] = half + half * tanh(half * rz[j])
    h, r, z, n = gates[:d], rz[:d], rz[d:], gates[3 * d :]
    for j in range(d):
        candidate = tanh(n[j] + r[j] * h[j])
        n[j] = candidate
        new[j] = candidate + z[j] * (own[j] - candidate)


@compiled(fastmath=ALLOW_FMA)
def _gate_gradients(gates: Array, own: Array, state_grads: Array, gate_grads: Array) -> None:
    """Gradients of the sums from that of the state; state_grads becomes what goes directly to the own parent."""
    d = len(own)
    one = own.dtype.type(1)
    h, r, z, n = gates[:d], gates[d : 2 * d], gates[2 * d : 3 * d], gates[3 * d :]
    to_h, to_r, to_z, to_n = gate_grads[:d], gate_grads[d : 2 * d], gate_grads[2 * d : 3 * d], gate_grads[3 * d :]
    for j in range(d):
        through_n = state_grads[j] * (one - z[j]) * (one - n[j] * n[j])
        through_z = state_grads[j] * (own[j] - n[j]) * z[j] * (one - z[j])
        state_grads[j] *= z[j]
        to_h[j] = through_n * r[j]
        to_r[j] = through_n * r[j] * h[j] * (one - r[j])
        to_z[j] = through_z
        to_n[j] = through_n
