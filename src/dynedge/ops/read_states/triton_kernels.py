"""read_states on a GPU: one pass over the entities each way."""

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
    moved,
    entities,
    count,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """rows [q, d] and where they are from: a row of ψ, or −1 for ξ, or −2 for a state of its own."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    there = i < count
    entity = tl.load(entities + i, mask=there, other=0).to(tl.int64)
    own = tl.load(moved + entity, mask=there, other=0) != 0
    of = tl.where(own, -2, tl.maximum(tl.load(psi_row + entity, mask=there, other=-1), -1))
    tl.store(source + i, of, mask=there)
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        inside = there[:, None] & (col < D)
        vector = tl.load(stored + entity[:, None] * D + col, mask=inside & own[:, None], other=0.0)
        vector += tl.load(psi + of[:, None] * D + col, mask=inside & (of >= 0)[:, None], other=0.0)
        vector += tl.load(xi + col + tl.zeros([BM, 1], tl.int32), mask=inside & (of == -1)[:, None], other=0.0)
        tl.store(rows + i.to(tl.int64)[:, None] * D + col, vector, mask=inside)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["grad", "source"])
def xi_sums(grad, source, part, count, D: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """part [programs, d]: sums of the gradients of the rows that are ξ, over programs · BM rows in strides."""
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        total = tl.zeros([BM, BK], tl.float32)
        for low in range(tl.program_id(0) * BM, count, tl.num_programs(0) * BM):
            i = low + tl.arange(0, BM)
            mine = tl.load(source + i, mask=i < count, other=0) == -1
            total += tl.load(grad + i.to(tl.int64)[:, None] * D + col, mask=mine[:, None] & (col < D), other=0.0)
        at = part + tl.program_id(0) * D + k + tl.arange(0, BK)
        tl.store(at, tl.sum(total, 0), mask=k + tl.arange(0, BK) < D)
