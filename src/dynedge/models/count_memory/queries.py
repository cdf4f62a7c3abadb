"""Queries: who asks and when; and the events of a window as queries.

Legend: n events or queries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.count_memory.event_index import RECENT_EVENTS
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled


class Query(NamedTuple):
    """Who asks and when; `latest_items` int32[RECENT_EVENTS] are those of the whole log before the clock, or -1."""

    user: int
    place: int  # number of the user's events before the clock
    clock: int
    time: float
    latest_items: Array


class Events(NamedTuple):
    """A window whose events are in the index, or queries after all events of the index."""

    user: Array  # [n]
    item: Array  # [n]
    time: Array  # float64[n]
    place: Array  # int32[n]: in the user's history
    clock: int  # of the first event
    latest_items: Array  # int32[RECENT_EVENTS + n]: items of the log's events up to the last one of the window
    step: int  # from an event's clock to the next one's: 1, or 0 for queries, of which all have the same latest items


@compiled
def query_of(events: Events, k: int) -> Query:
    """Returns event k of a window as a query."""
    at = k * events.step
    latest = events.latest_items[at : at + RECENT_EVENTS]
    user, place = np.int64(events.user[k]), np.int64(events.place[k])  # as in explain.py: one type to compile for
    return Query(user, place, events.clock + at, events.time[k], latest)  # type: ignore[arg-type]
