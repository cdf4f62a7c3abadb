"""Triton kernel of rows_before: two binary searches per item."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _first_not_below(values, value, low, high, steps):
    """Position of the first of values[low] to values[high − 1], sorted, that is not below `value`; else high."""
    for _ in range(steps):
        middle = (low + high) // 2
        is_below = tl.load(values + middle, mask=low < high, other=0).to(tl.int64) < value
        searching = low < high
        low, high = (
            tl.where(searching & is_below, middle + 1, low),
            tl.where(searching & (is_below == 0), middle, high),
        )
    return low


@triton.jit(
    do_not_specialize=[
        *("count", "columns", "num_changing", "num_active", "first_changing", "first_active"),
        *("changing_steps", "event_steps", "active_steps"),
    ]
)
def find(
    items,
    before,
    changing,
    starts,
    events,
    after,
    active,
    found,
    moves,
    count,
    columns,
    num_changing,
    num_active,
    first_changing,
    first_active,
    changing_steps,
    event_steps,
    active_steps,
    NO_ROW: tl.constexpr,
    NEVER: tl.constexpr,
    BM: tl.constexpr,
):
    """Fills found and moves, [m, C]."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    valid = i < count
    item = tl.load(items + i, mask=valid, other=-1).to(tl.int64)
    event = tl.load(before + i // columns, mask=valid, other=0).to(tl.int64)
    zero = tl.zeros([BM], tl.int64)
    slot = _first_not_below(changing, item, zero, zero + num_changing, changing_steps)
    in_range = valid & (slot < num_changing)
    is_changing = in_range & (tl.load(changing + slot, mask=in_range, other=-1).to(tl.int64) == item)
    start = tl.load(starts + slot, mask=is_changing, other=0).to(tl.int64)
    stop = tl.load(starts + slot + 1, mask=is_changing, other=0).to(tl.int64)
    written = _first_not_below(events, event, start, stop, event_steps)
    has_written = is_changing & (written > start)
    last = tl.load(events + written - 1, mask=has_written, other=0).to(tl.int64)
    row = tl.load(after + last, mask=has_written, other=0).to(tl.int64)
    row = tl.where(has_written, row, tl.where(is_changing, first_changing + slot, NO_ROW))
    following = tl.load(events + written, mask=is_changing & (written < stop), other=NEVER).to(tl.int32)
    slot = _first_not_below(active, item, zero, zero + num_active, active_steps)
    in_range = valid & (slot < num_active)
    is_active = in_range & (tl.load(active + slot, mask=in_range, other=-1).to(tl.int64) == item)
    row = tl.where(is_active, first_active + slot, row)
    tl.store(found + i, row, mask=valid)
    tl.store(moves + i, following, mask=valid)
