"""time_gaps: the time since the previous events of each event's user and item, as inputs of a network.

Legend: n events of a window, N entities of a side.

An entity's previous event is the one at position `past` of the window or, where that is negative, the one at the time
`last_time` of before the window, if that is not negative either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.time_gaps import reference
from dynedge.ops.time_gaps.reference import previous_times, time_gap_features

__all__ = ["EntityTimes", "previous_times", "time_gap_features", "time_gaps"]


class EntityTimes(NamedTuple):
    """The events of one side."""

    entity: Tensor  # int[n]
    past: Tensor  # int[n]
    last_time: Tensor  # float64[N]


BY_DEVICE: dict[str, Callable[..., list[Tensor]]] = {
    "cuda": prefer_triton("dynedge.ops.time_gaps.triton", "time_gaps", reference.time_gaps, lambda *args: args[-1]),
}


def time_gaps(time: Tensor, sides: Sequence[EntityTimes], like: Tensor) -> list[Tensor]:
    """`time_gap_features` [n, 2] of each side, in the precision of `like`; time float64[n]."""
    return BY_DEVICE.get(time.device.type, reference.time_gaps)(time, sides, like)
