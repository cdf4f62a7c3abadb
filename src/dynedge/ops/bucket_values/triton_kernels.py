"""Triton kernel of bucket_values: every entry is compared with every bucket."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["entries", "buckets"])
def sum_entries(grad, bucket, partial, entries, buckets, BE: tl.constexpr, BB: tl.constexpr):
    """partial [programs, B]: each program's sum of its entries' gradients, by bucket."""
    own = tl.program_id(1) * BB + tl.arange(0, BB)
    total = tl.zeros([BE, BB], tl.float32)
    for low in range(tl.program_id(0) * BE, entries, tl.num_programs(0) * BE):
        i = low + tl.arange(0, BE)
        key = tl.load(bucket + i, mask=i < entries, other=-1)
        g = tl.load(grad + i, mask=i < entries, other=0.0)
        total += tl.where(key[:, None] == own[None, :], g[:, None], 0.0)
    tl.store(partial + tl.program_id(0) * buckets + own, tl.sum(total, 0), mask=own < buckets)
