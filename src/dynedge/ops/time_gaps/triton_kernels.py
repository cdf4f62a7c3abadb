"""Triton kernel of time_gaps: times are subtracted in float64, logarithms are float32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _fill(time, entity, past, last_time, out, i, valid):
    """out [n, 2], every other row of a table: the features of events i."""
    before = tl.load(past + i, mask=valid, other=-1)
    own = tl.load(entity + i, mask=valid, other=0)
    earlier = tl.load(last_time + own, mask=valid & (before < 0), other=0.0)
    previous = tl.where(before >= 0, tl.load(time + before, mask=valid & (before >= 0), other=0.0), earlier)
    gap = tl.maximum((tl.load(time + i, mask=valid, other=0.0) - previous).to(tl.float32), 0.0)
    exists = previous >= 0
    tl.store(out + 4 * i, tl.where(exists, tl.log(1 + gap), 0.0), mask=valid)
    tl.store(out + 4 * i + 1, exists.to(tl.float32), mask=valid)


@triton.jit(do_not_specialize=["n"])
def gaps(time, user, user_past, user_time, item, item_past, item_time, out, n, BM: tl.constexpr):
    """out [n, 2, 2]: the features of each event's user, then of its item."""
    i = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    if tl.program_id(1) == 0:
        _fill(time, user, user_past, user_time, out, i, i < n)
    else:
        _fill(time, item, item_past, item_time, out + 2, i, i < n)
