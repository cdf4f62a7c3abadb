"""Triton kernel of decayed_counts: one program per item."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count_events(start, start_event, item_starts, item_events, clock, rate, out, h: tl.constexpr, BH: tl.constexpr):
    """The counts of an item after each of its events. Legend: as in the package."""
    i = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BH)
    mask = col < h
    per_event = tl.load(rate + col, mask=mask, other=0.0)
    count = tl.load(start + i * h + col, mask=mask, other=0.0)
    previous = tl.load(start_event + i)
    now = tl.load(clock)
    for w in range(tl.load(item_starts + i), tl.load(item_starts + i + 1)):
        number = now + tl.load(item_events + w)
        factor = tl.exp2(((previous - number).to(tl.float64) * per_event).to(tl.float32))
        count = (1 + count * factor).to(count.dtype)
        tl.store(out + w * h + col, count, mask=mask)
        previous = number
