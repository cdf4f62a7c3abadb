"""rows_before: the rows of a window's arena that items are read from just before given events.

Legend: m groups of C items, E items with events in the window that change their state, P active ones.

An item of the window that changes has its state of before the window in a row of its own, then one for each of its
events; an active item has one row; any other item has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.rows_before import reference

__all__ = ["ItemRows", "rows_before"]


class ItemRows(NamedTuple):
    """Where the states of a window's items are."""

    changing: Tensor  # int[E], sorted: items whose state changes
    starts: Tensor  # int[E + 1]: where each one's events start in `events`
    events: Tensor  # int: the events of each, in order
    after: Tensor  # int[n]: row of event k's item after the event
    first_changing: int  # row of the first changing item's state before the window; those of the others follow
    active: Tensor  # int[P], sorted
    first_active: int  # row of the first active item; those of the others follow


BY_DEVICE: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "cuda": prefer_triton(
        "dynedge.ops.rows_before.triton", "rows_before", reference.rows_before, lambda rows, items, _: items
    ),
}


def rows_before(rows: ItemRows, items: Tensor, events: Tensor) -> tuple[Tensor, Tensor]:
    """Of items int64[m, C] just before the events int64[m]: (int64[m, C] their rows or NO_ROW, int32[m, C] the first
    event from there on that changes them, or NEVER). Nothing waits for a GPU."""
    return BY_DEVICE.get(items.device.type, reference.rows_before)(rows, items, events)
