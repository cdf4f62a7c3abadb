"""Validation of incoming events, before they reach the journal."""

from __future__ import annotations

import time as clock

from dynedge.data.timestamps import parse_timestamp
from dynedge.errors import UsageError
from dynedge.inference.event_input import Event
from dynedge.inference.session import Session
from dynedge.models.capabilities import Growable, capable
from dynedge.serving.schemas import EventBody

MAX_AHEAD = 86400.0  # seconds that an event may be ahead of this machine's clock
MAX_TIME = 7_258_118_400.0  # the year 2200, as in ingestion


def validate_event(session: Session, event: EventBody) -> Event:
    """Returns a valid event with its time in seconds, or raises UsageError."""
    user, item = str(event.user_id), str(event.item_id)
    time = parse_timestamp(event.timestamp, session.time_unit, "timestamp")
    if not 0 <= time <= min(MAX_TIME, clock.time() + MAX_AHEAD):
        raise UsageError(
            f"timestamp {event.timestamp!r} is before 1970 or in the future; is its unit {session.time_unit}?"
        )
    width = session.run_log.features.shape[1]
    if event.features is not None and len(event.features) != width:
        raise UsageError(f"features: got {len(event.features)}, but the run was trained with {width}.")
    if capable(session.model, Growable) is None:
        for ids, external_id, side in ((session.users, user, "user"), (session.items, item, "item")):
            if ids.find(external_id) < 0:
                raise UsageError(
                    f"the {side} {external_id!r} is new, and the model {session.config.name} cannot add {side}s."
                )
    return Event(user, item, time, tuple(event.features or ()), event.event_id)
