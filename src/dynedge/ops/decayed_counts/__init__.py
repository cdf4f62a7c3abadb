"""decayed_counts: the exponentially decayed number of an item's events, right after each of them.

Legend: M items of a window, W events of theirs, h half-lives.

    out[w] = 1 + out[the item's event before w] · 2^(−rate · events of the log in between)

Before its first event of the window an item has the count `start` [M, h] of event number `start_event` int64[M] (any
number where the count is 0). Events are counted through the log: the window's first one has number `clock`. Each
count is rounded to the type of `start`, so that the bits do not depend on how a log is cut into windows.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynedge.ops.decayed_counts import cpu, reference
from dynedge.ops.dispatch import prefer_triton

__all__ = ["decayed_counts"]

BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.decayed_counts,
    "cuda": prefer_triton("dynedge.ops.decayed_counts.triton", "decayed_counts", reference.decayed_counts),
}


def decayed_counts(
    start: Tensor, start_event: Tensor, item_starts: Tensor, item_events: Tensor, clock: Tensor, rate: Tensor
) -> Tensor:
    """[W, h]; events item_starts[i] to item_starts[i + 1] − 1 of item_events int[W] are those of item i, in order.

    clock int64[1]; rate float64[h]: one over the half-life, in events. Has no gradient.
    """
    compute = BY_DEVICE.get(start.device.type, reference.decayed_counts)
    return compute(start, start_event, item_starts, item_events, clock, rate)
