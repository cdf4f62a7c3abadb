"""The levels, compiled: gather, products, gates, write; and backward, where gradients come back by gathers alone.

Legend: d width of a state, W states written, R rows of the arena, F rows before the written ones.

A row's gates are kept side by side, so that each parent's product falls on 3d numbers in one piece:

    gates [W, 4d]     h_n | r | z | n         own's product falls on h_n r z, other's on r z n
    turned [W, 4d]    ∂h_n | ∂r | ∂z | ∂n     gradients before the activations, laid out the same

Matrices of own parents come with their rows in that order (n, r, z); those of other parents in torch's (r, z, n).
`flow` [R, d] holds a row's gradient while its level runs, and after it the part that goes straight on to its own
parent, z times that.

Every kernel does one part of `parts`, some of the rows of each level, and no two parts write the same row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from dynedge.ops.gather_matmul import FUSE, add_outer, add_products
from dynedge.ops.spin_pair import FIRST, NEVER, SECOND, TAKEN, arrive, hand_over, store_release, wait
from dynedge.plan.schedule import OTHER, OWN
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

CHUNK = 32  # rows done together: their gates, 32 KiB at d = 64, are still near when their products are added


@compiled
def lay_out(b_own: Array, w_own: Array, w_other: Array) -> tuple[Array, Array, Array]:
    """The same for the way forward: own parents' gates in the order n, r, z; matrices [2, d, 3d]."""
    d = w_own.shape[2]
    bias, own, other = (
        np.empty_like(b_own),
        np.empty((2, d, 3 * d), w_own.dtype),
        np.empty((2, d, 3 * d), w_own.dtype),
    )
    for side in range(2):
        for c in range(3 * d):
            turned = c + d if c < 2 * d else c - 2 * d
            bias[side, turned] = b_own[side, c]
            for j in range(d):
                own[side, j, turned] = w_own[side, c, j]
                other[side, j, c] = w_other[side, c, j]
    return bias, own, other


@compiled
def project(
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
    """Before the levels, what entry and ψ rows give their readers.

    entry_own [entry rows, 3d] as own parents, root_other [entry and ψ rows, 3d] as others, if they are read as
    such. Entry users, entry items, ψ users and ψ items lie between the five bounds. w_own, w_other [2, d, 3d].
    """
    rows = np.empty(CHUNK, np.int64)
    for section in range(4):
        side = section % 2
        start, stop = _share(bounds[section], bounds[section + 1], part, parts)
        for low in range(start, stop, CHUNK):
            high = min(low + CHUNK, stop)
            found = 0
            for row in range(low, high):
                if section >= 2 or children[row, OTHER] >= 0:
                    _clear(root_other[row])
                    rows[found] = row
                    found += 1
            add_products(root_other, 0, rows, arena, 0, rows, found, w_other[1 - side])
            if section < 2:
                for i in range(high - low):
                    rows[i] = low + i
                    _clear(entry_own[low + i])
                add_products(entry_own, 0, rows, arena, 0, rows, high - low, w_own[side])


@compiled
def forward(part: int, parts: int, first: int, last: int, blocks: Array, *arrays: Array) -> None:
    """Levels first to last − 1: fills their rows of arena [R, d] and gates. What `project` did is not done again."""
    for level in range(first, last):
        for side in range(2):
            start, stop = _share(blocks[2 * level + side], blocks[2 * level + side + 1], part, parts)
            _forward(start, stop, side, blocks[0], *arrays)


@compiled
def backward(part: int, parts: int, first: int, last: int, blocks: Array, *arrays: Array) -> None:
    """Levels last − 1 down to first: fills their rows of turned and flow. grad [W, d]; w_own, w_other [2, 3d, d]."""
    for level in range(last - 1, first - 1, -1):
        for side in range(2):
            start, stop = _share(blocks[2 * level + side], blocks[2 * level + side + 1], part, parts)
            _backward(start, stop, side, blocks[0], *arrays)


# The same by two threads, one a side: see ops/pair.py. A level's users read nothing of its items, and back.


@compiled
def forward_in_pair(second: int, numbers: Array, first: int, last: int, blocks: Array, *arrays: Array) -> None:
    since = arrive(numbers) if second else NEVER
    for step in range(min(since, last - first) if second else 0, last - first):
        level = first + step
        alone, since = _meet(second, numbers, step, since)
        for side in range(2):
            if alone or side == second:
                _forward(blocks[2 * level + side], blocks[2 * level + side + 1], side, blocks[0], *arrays)
        store_release(numbers, SECOND if second else FIRST, step + 1)
    _part(second, numbers, last - first, since)


@compiled
def backward_in_pair(second: int, numbers: Array, first: int, last: int, blocks: Array, *arrays: Array) -> None:
    since = arrive(numbers) if second else NEVER
    for step in range(min(since, last - first) if second else 0, last - first):
        level = last - 1 - step
        alone, since = _meet(second, numbers, step, since)
        for side in range(2):
            if alone or side == second:
                _backward(blocks[2 * level + side], blocks[2 * level + side + 1], side, blocks[0], *arrays)
        store_release(numbers, SECOND if second else FIRST, step + 1)
    _part(second, numbers, last - first, since)


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

    Sums are always bias, features, own parent, other parent, in this order: a state has the same bits wherever its
    parents lie, in the window or before it, so that a log may be cut into windows anyhow.
    """
    d = arena.shape[1]
    to, of = np.empty((2, CHUNK), np.int64), np.empty((2, CHUNK), np.int64)
    for low in range(start, stop, CHUNK):
        high = min(low + CHUNK, stop)
        owns = others = 0
        for row in range(low, high):
            w = row - first_written
            own, other = parents[w, OWN], parents[w, OTHER]
            _begin(gates[w], pre[w], b_own[side])
            if own < len(entry_own):
                _add(gates[w, : 3 * d], entry_own[own])
            else:
                to[OWN, owns], of[OWN, owns] = w, own
                owns += 1
            if other >= len(root_other):
                to[OTHER, others], of[OTHER, others] = w, other
                others += 1
        add_products(gates, 0, to[OWN], arena, 0, of[OWN], owns, w_own[side])
        for row in range(low, high):
            w = row - first_written
            if parents[w, OTHER] < len(root_other):
                _add(gates[w, d:], root_other[parents[w, OTHER]])
        add_products(gates, d, to[OTHER], arena, 0, of[OTHER], others, w_other[side])
        for row in range(low, high):
            w = row - first_written
            _finish(gates[w], arena[parents[w, OWN]], arena[row])


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
    turned: Array,
    flow: Array,
) -> None:
    """Rows start to stop − 1, of one level and side."""
    rows, to, of = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    for low in range(start, stop, CHUNK):
        count = min(CHUNK, stop - low)
        for i in range(count):
            rows[i] = low + i
            _copy(flow[low + i], grad[low + i - first_written])
        _gather(rows[:count], side, first_written, children, w_own, w_other, turned, flow, to, of)
        for row in range(low, low + count):
            w = row - first_written
            _turn(gates[w], arena[parents[w, OWN]], flow[row], turned[w])


@compiled
def _meet(second: int, numbers: Array, step: int, since: int) -> tuple[bool, int]:
    """Before a step: (does this thread do both halves, from which step on the other does the second)."""
    if second:
        wait(numbers, FIRST, step)
        return False, since
    if since == NEVER and hand_over(numbers, step):
        since = step
    if step > since:
        wait(numbers, SECOND, step)
    return since == NEVER, since


@compiled
def _part(second: int, numbers: Array, steps: int, since: int) -> None:
    """After the last step. A thread that comes now finds nothing to do."""
    if not second:
        if since == NEVER:
            store_release(numbers, TAKEN, steps)
        else:
            wait(numbers, SECOND, steps)


@compiled(fastmath=FUSE)
def root_gradients(
    part: int,
    parts: int,
    rows: Array,
    side: int,
    first_written: int,
    children: Array,
    w_own: Array,
    w_other: Array,
    turned: Array,
    flow: Array,
) -> None:
    """Rows of one side that no level writes: their gradient, in flow, is what their children send."""
    to, of = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    start, stop = _share(0, len(rows), part, parts)
    for low in range(start, stop, CHUNK):
        some = rows[low : min(low + CHUNK, stop)]
        for i in range(len(some)):
            _clear(flow[some[i]])
        _gather(some, side, first_written, children, w_own, w_other, turned, flow, to, of)


@compiled
def psi_gradients(
    part: int,
    parts: int,
    bounds: Array,
    starts: Array,
    readers: Array,
    first_written: int,
    w_other: Array,
    turned: Array,
    sums: Array,
    flow: Array,
) -> None:
    """sums [ψ rows, 3d]: ∂r ∂z ∂n over all the rows that read each, in their order; flow: the ψ rows' gradients."""
    d = flow.shape[1]
    to, of = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    for side in range(2):
        start, stop = _share(bounds[2 + side], bounds[3 + side], part, parts)
        for low in range(start, stop, CHUNK):
            count = min(CHUNK, stop - low)
            for i in range(count):
                to[i], of[i] = low + i, low + i - bounds[2]
                _clear(flow[to[i]])
                _clear(sums[of[i]])
                for at in range(starts[of[i]], starts[of[i] + 1]):
                    _add(sums[of[i]], turned[readers[at] - first_written, d:])
            add_products(flow, 0, to, sums, 0, of, count, w_other[1 - side])


@compiled
def by_reading(blocks: Array, parents: Array, first_psi: int, first_phi: int) -> tuple[Array, Array]:
    """(the written rows, from 0, in four groups, where each starts): users' that read no ψ, that do; items' alike."""
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
    turned: Array,
    sums: Array,
    arena: Array,
    w_own: Array,
    w_other: Array,
    b_own: Array,
) -> None:
    """Some of the 3d rows of w_own, w_other [2, 3d, d] and b_own [2, 3d]; rows that read ψ enter by their sums."""
    d = arena.shape[1]
    first, last = _share(0, (3 * d + 3) // 4, part, parts)
    first, last = 4 * first, min(4 * last, 3 * d)
    own, other = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    b_some = np.empty(last - first, arena.dtype)
    for side in range(2):
        w_own[side, first:last] = 0
        w_other[side, first:last] = 0
        _clear(b_own[side, first:last])
        start, plain, stop = groups[2 * side], groups[2 * side + 1], groups[2 * side + 2]
        for low in range(start, stop, CHUNK):
            rows = order[low : min(low + CHUNK, stop)]
            _clear(b_some)
            for i in range(len(rows)):
                own[i], other[i] = parents[rows[i], OWN], parents[rows[i], OTHER]
                _add(b_some, turned[rows[i], first:last])
            _add(b_own[side, first:last], b_some)
            add_outer(w_own[side], first, last, turned, 0, rows, arena, own[: len(rows)])
            few = min(max(plain - low, 0), len(rows))
            add_outer(w_other[side], first, last, turned, d, rows[:few], arena, other[:few])
        for low in range(bounds[3 - side], bounds[4 - side], CHUNK):  # users' rows read the items' ψ
            rows = np.arange(low, min(low + CHUNK, bounds[4 - side]))
            add_outer(w_other[side], first, last, sums, 0, rows - bounds[2], arena, rows)


@compiled
def _share(start: int, stop: int, part: int, parts: int) -> tuple[int, int]:
    """One part of a range."""
    return start + (stop - start) * part // parts, start + (stop - start) * (part + 1) // parts


@compiled(fastmath=FUSE)
def _gather(
    rows: Array,
    side: int,
    first_written: int,
    children: Array,
    w_own: Array,
    w_other: Array,
    turned: Array,
    flow: Array,
    to: Array,
    of: Array,
) -> None:
    """flow[row] += what comes back from the row that has it as own parent, and from the one that has it as other."""
    found = 0
    for i in range(len(rows)):
        child = children[rows[i], OWN]
        if child >= 0:
            _add(flow[rows[i]], flow[child])
            to[found], of[found] = rows[i], child - first_written
            found += 1
    add_products(flow, 0, to, turned, 0, of, found, w_own[side])
    found = 0
    for i in range(len(rows)):
        child = children[rows[i], OTHER]
        if child >= 0:
            to[found], of[found] = rows[i], child - first_written
            found += 1
    add_products(flow, 0, to, turned, flow.shape[1], of, found, w_other[1 - side])


# One row: loops that LLVM turns into vector instructions.


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
def _begin(gates: Array, pre: Array, bias: Array) -> None:
    """The sums before the activations, without either parent's product."""
    d = len(gates) // 4
    h, shared, n = gates[:d], gates[d : 3 * d], gates[3 * d :]
    shared_bias, pre_n = bias[d:], pre[2 * d :]
    for j in range(d):
        h[j] = bias[j]
        n[j] = pre_n[j]
    for j in range(2 * d):
        shared[j] = shared_bias[j] + pre[j]


@compiled(fastmath=FUSE)
def _finish(gates: Array, own: Array, new: Array) -> None:
    """Sums become gates, and gates a state. σ(x) is ½ + ½ tanh(½ x)."""
    d = len(own)
    half = own.dtype.type(0.5)
    shared = gates[d : 3 * d]
    for j in range(2 * d):
        shared[j] = half + half * _tanh(half * shared[j])
    h, r, z, n = gates[:d], shared[:d], shared[d:], gates[3 * d :]
    for j in range(d):
        candidate = _tanh(n[j] + r[j] * h[j])
        n[j] = candidate
        new[j] = candidate + z[j] * (own[j] - candidate)


@compiled(fastmath=FUSE)
def _turn(gates: Array, own: Array, flow: Array, turned: Array) -> None:
    """A state's gradient becomes that of the sums, and in flow what goes straight on to its own parent."""
    d = len(own)
    one = own.dtype.type(1)
    h, r, z, n = gates[:d], gates[d : 2 * d], gates[2 * d : 3 * d], gates[3 * d :]
    to_h, to_r, to_z, to_n = turned[:d], turned[d : 2 * d], turned[2 * d : 3 * d], turned[3 * d :]
    for j in range(d):
        through_n = flow[j] * (one - z[j]) * (one - n[j] * n[j])
        through_z = flow[j] * (own[j] - n[j]) * z[j] * (one - z[j])
        flow[j] *= z[j]
        to_h[j] = through_n * r[j]
        to_r[j] = through_n * r[j] * h[j] * (one - r[j])
        to_z[j] = through_z
        to_n[j] = through_n


def _tanh(x: float) -> float:
    """Exact in float64. In float32 within 3.5e-7, by arithmetic alone, so that it runs as vector instructions."""
    return math.tanh(x)


# x P(x²) / Q(x²), fitted for the least relative error up to END, 6e-9; there tanh is 1 to 3e-7. More is rounding.
END = np.float32(7.9)
P0, P1, P2, P3, P4 = (np.float32(p) for p in (1, 0.1345062043, 3.578991849e-3, 2.202324203e-5, 1.542796805e-8))
Q0, Q1, Q2, Q3, Q4 = (np.float32(q) for q in (1, 0.4678394843, 2.619223728e-2, 3.423650256e-4, 8.59877826e-7))


def _tanh_64(x: Any) -> Any:
    return math.tanh(x)


def _tanh_32(x: Any) -> Any:
    x = END if x > END else x  # not min(x, END), which would hide a NaN
    x = -END if x < -END else x
    y = x * x
    return x * ((((P4 * y + P3) * y + P2) * y + P1) * y + P0) / ((((Q4 * y + Q3) * y + Q2) * y + Q1) * y + Q0)


@overload(_tanh, jit_options={"fastmath": FUSE, "error_model": "numpy"})
def _tanh_of(x: Any) -> Any:
    return _tanh_32 if x == types.float32 else _tanh_64
