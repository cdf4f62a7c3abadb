"""decayed_counts on a GPU by a Triton kernel."""

from __future__ import annotations

import triton
from torch import Tensor

from dynedge.ops.decayed_counts import triton_kernels


def decayed_counts(
    start: Tensor, start_event: Tensor, item_starts: Tensor, item_events: Tensor, clock: Tensor, rate: Tensor
) -> Tensor:
    items, h = start.shape
    out = start.new_empty(len(item_events), h)
    if items and h:
        triton_kernels.count_events[(items,)](
            *(start.contiguous(), start_event, item_starts, item_events, clock, rate, out),
            h=h,
            BH=triton.next_power_of_2(h),
            num_warps=1,
        )
    return out
