"""Validation of incoming events, before they reach the journal."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from dynedge.data.id_index import is_id
from dynedge.data.timestamps import LATEST_TIME, parse_timestamp
from dynedge.errors import UsageError
from dynedge.inference.event_input import Event
from dynedge.inference.session import Session
from dynedge.models.capabilities import Growable, capable
from dynedge.serving.journal import Entry
from dynedge.serving.schemas import EventBody

MAX_AHEAD = 300.0  # seconds that an event may be ahead of this machine's clock: events until then would be late


def validate_event(session: Session, event: EventBody, now: float | None = None) -> Event:
    """Returns a valid event with its time in seconds, or raises UsageError; `now` is by default the clock's time."""
    time = parse_timestamp(event.timestamp, session.time_unit, "timestamp")
    if not 0 <= time <= (clock.time() if now is None else now) + MAX_AHEAD:
        shown = str(event.timestamp)[:40]
        raise UsageError(f"timestamp {shown!r} is before 1970 or in the future; is its unit {session.time_unit}?")
    valid = Event(str(event.user_id), str(event.item_id), time, tuple(event.features or ()), event.event_id)
    _check_applicable(session, valid, has_features=event.features is not None)
    return valid


def entry_event(session: Session, entry: Entry) -> Event:
    """Returns the event of a journal entry, or raises UsageError if the session cannot apply it.

    The outcome depends on the entry and the run alone, so that all replicas agree.
    """
    if entry.event is None:
        return validate_event(session, _body(entry), entry.arrived)
    _check_applicable(session, entry.event, has_features=bool(entry.event.features))
    return entry.event


def applicable_events(session: Session, entries: Iterable[Entry]) -> list[tuple[Entry, Event]]:
    """Returns those entries that the session can apply, with their events."""
    events = list[tuple[Entry, Event]]()
    for entry in entries:
        with suppress(UsageError):
            events.append((entry, entry_event(session, entry)))
    return events


def _body(entry: Entry) -> EventBody:
    """Returns the body of an entry that another program wrote."""
    try:
        values: dict[str, Any] = dict(entry.fields)
        if "features" in values:
            values["features"] = json.loads(values["features"])
        return EventBody(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
    except (ValueError, TypeError, RecursionError):
        raise UsageError("features: not a JSON list of numbers.") from None


def _check_applicable(session: Session, event: Event, *, has_features: bool) -> None:
    """Raises UsageError for numbers out of range, ids that are none, features of another width, and new ids.

    New ids only if the model cannot add them.
    """
    if not event.is_finite:
        raise UsageError("a feature is not a finite number.")
    if not 0 <= event.time <= LATEST_TIME:
        raise UsageError("the time is before 1970 or after the year 2200.")
    if not (is_id(event.user) and is_id(event.item)):
        raise UsageError("an id is empty, has a zero byte or is not valid Unicode.")
    width = session.run_log.features.shape[1]
    if has_features and len(event.features) != width:
        raise UsageError(f"features: got {len(event.features)}, but the run was trained with {width}.")
    if capable(session.model, Growable) is None:
        for ids, external_id, side in ((session.users, event.user, "user"), (session.items, event.item, "item")):
            if ids.find(external_id) < 0:
                raise UsageError(
                    f"the {side} {external_id!r} is new, and the model {session.config.name} cannot add {side}s."
                )
