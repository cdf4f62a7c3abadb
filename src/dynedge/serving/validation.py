"""Events from outside, checked: whatever could be wrong with one is found before it is in the journal."""

from __future__ import annotations

import time as clock

from dynedge.data.timestamps import parse_timestamp
from dynedge.errors import UsageError
from dynedge.inference.event_input import Event
from dynedge.inference.session import Live
from dynedge.serving.schemas import EventIn

AHEAD = 86400.0  # seconds that an event may be ahead of this machine's clock
LATEST = 7_258_118_400.0  # the year 2200, as for files


def checked(live: Live, event: EventIn) -> Event:
    user, item = str(event.user_id), str(event.item_id)
    time = parse_timestamp(event.timestamp, live.time_unit, "timestamp")
    if not 0 <= time <= min(LATEST, clock.time() + AHEAD):
        raise UsageError(
            f"timestamp {event.timestamp!r} is before 1970 or in the future; is its unit {live.time_unit}?"
        )
    width = live.ids.features.shape[1]
    if event.features is not None and len(event.features) != width:
        raise UsageError(f"features: {len(event.features)} of them, and the run was trained with {width}.")
    if not live.model.grows:
        for names, own, side in ((live.users, user, "user"), (live.items, item, "item")):
            if names.find(own) < 0:
                raise UsageError(f"the {side} {own!r} is new, and {live.config.name} knows those of its log only.")
    return Event(user, item, time, tuple(event.features or ()), event.event_id)
