"""Triton kernels of read_states: one pass over the entities each way."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["rows", "source", "xi"])
def fill(
    rows,
    source,
    xi,
    psi,
    psi_row,
    stored,
    has_stored,
    entities,
    count,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """Fills rows [q, d] and their sources: a row of ψ, −1 for ξ, −2 for a stored state.

    Rows of negative entities stay as they are, and their source is −3.
    """
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    entity = tl.load(entities + i, mask=i < count, other=-1).to(tl.int64)
    valid = entity >= 0
    is_stored = tl.load(has_stored + entity, mask=valid, other=0) != 0
    origin = tl.where(is_stored, -2, tl.maximum(tl.load(psi_row + entity, mask=valid, other=-1), -1))
    origin = tl.where(valid, origin, -3)
    tl.store(source + i, origin, mask=i < count)
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        mask = valid[:, None] & (col < D)
        vector = tl.load(stored + entity[:, None] * D + col, mask=mask & is_stored[:, None], other=0.0)
        vector += tl.load(psi + origin[:, None] * D + col, mask=mask & (origin >= 0)[:, None], other=0.0)
        vector += tl.load(xi + col + tl.zeros([BM, 1], tl.int32), mask=mask & (origin == -1)[:, None], other=0.0)
        tl.store(rows + i.to(tl.int64)[:, None] * D + col, vector.to(rows.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["grad", "source"])
def xi_sums(grad, source, partial, count, D: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """partial [programs, d]: each program's sum of the gradients of rows that read ξ."""
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        total = tl.zeros([BM, BK], tl.float32)
        for low in range(tl.program_id(0) * BM, count, tl.num_programs(0) * BM):
            i = low + tl.arange(0, BM)
            is_xi = tl.load(source + i, mask=i < count, other=0) == -1
            total += tl.load(grad + i.to(tl.int64)[:, None] * D + col, mask=is_xi[:, None] & (col < D), other=0.0)
        target = partial + tl.program_id(0) * D + k + tl.arange(0, BK)
        tl.store(target, tl.sum(total, 0), mask=k + tl.arange(0, BK) < D)


@triton.jit(do_not_specialize=["count", "ended"])
def store(
    stored,
    has_stored,
    entities,
    rows,
    arena,
    time,
    item,
    last_entity,
    last_time,
    last_item,
    count,
    ended,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    HAS_ITEM: tl.constexpr,
):
    """stored[entities] = arena[rows], which are marked as stored; time and item of the `last_entity` events."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    valid = i < count
    entity = tl.load(entities + i, mask=valid, other=0).to(tl.int64)
    row = tl.load(rows + i, mask=valid, other=0).to(tl.int64)
    tl.store(has_stored + entity, tl.full([BM], 1, tl.int8), mask=valid)
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        mask = valid[:, None] & (col < D)
        state = tl.load(arena + row[:, None] * D + col, mask=mask, other=0.0)
        tl.store(stored + entity[:, None] * D + col, state, mask=mask)
    last = tl.load(last_entity + i, mask=i < ended, other=0).to(tl.int64)
    tl.store(time + last, tl.load(last_time + i, mask=i < ended, other=0.0), mask=i < ended)
    if HAS_ITEM:
        tl.store(item + last, tl.load(last_item + i, mask=i < ended, other=0).to(tl.int64), mask=i < ended)
