"""Events from outside, in whatever form, as a log with the rows of a run: own ids to rows, times to seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dynedge.data.id_index import IdIndex
from dynedge.data.log import EventLog
from dynedge.data.timestamps import parse_timestamp
from dynedge.errors import DataError, UsageError
from dynedge.utils.arrays import Array

COLUMNS = "user_id", "item_id", "timestamp"


class Event(NamedTuple):
    """ExternalId ids as texts; time in seconds."""

    user: str
    item: str
    time: float
    features: tuple[float, ...] = ()
    event_id: str | None = None


def with_rows_of(run: EventLog, events: Any, columns: tuple[str, str, str] = COLUMNS, unit: str = "s") -> EventLog:
    """`events`: a log, a frame or mapping with these columns, or three sequences (users, items, times in `unit`).

    An id that the run has not met is refused: its tables have no row for it.
    """
    if isinstance(events, EventLog):
        return _of_log(run, events)
    user, item, time = _three(events, columns)
    if not len(user) == len(item) == len(time):
        raise UsageError(f"users, items and times have different lengths: {len(user)}, {len(item)}, {len(time)}.")
    return EventLog.from_arrays(
        _rows(run.user_ids, user, "user"),
        _rows(run.item_ids, item, "item"),
        _times(time, unit),
        features=_features(run, events),
        num_users=run.num_users,
        num_items=run.num_items,
    )


def _of_log(run: EventLog, log: EventLog) -> EventLog:
    if log.features.shape[1] != run.features.shape[1]:
        raise DataError(
            f"{log.path or 'the log'} has {log.features.shape[1]} features an event, and the run was trained with "
            f"{run.features.shape[1]}."
        )
    same = log.user_ids.equals(run.user_ids), log.item_ids.equals(run.item_ids)
    if all(same):
        return log
    rows = (
        _rows(run.user_ids, log.user_ids.take(range(log.num_users)), "user")[log.user],
        _rows(run.item_ids, log.item_ids.take(range(log.num_items)), "item")[log.item],
    )
    return replace(log, user=rows[0], item=rows[1], user_ids=run.user_ids, item_ids=run.item_ids)


def _three(events: Any, columns: tuple[str, str, str]) -> list[Any]:
    if isinstance(events, tuple | list):
        if len(events) != 3:
            raise UsageError(f"events should be three sequences (users, items, times), not {len(events)}.")
        return [_plain(part) for part in events]
    names = list(events.keys()) if isinstance(events, Mapping) else list(getattr(events, "columns", []))
    for column in columns:
        if column not in names:
            raise DataError(f"the events have no column '{column}'; theirs are: {', '.join(map(str, names))}.")
    return [_plain(events[column]) for column in columns]


def _plain(values: Any) -> Any:
    """A series, an array or any iterable as an array or a list; Python's own numbers and strings stay as they are."""
    return np.asarray(values) if hasattr(values, "__array__") else list(values)


def _rows(ids: IdIndex, own: Iterable[Any], side: str) -> Array:
    values = own.tolist() if isinstance(own, np.ndarray) else list(own)
    rows = np.array([ids.find(value) for value in values], np.int32)
    if (rows < 0).any():
        first = values[int(np.argmax(rows < 0))]
        others = len({value for value, row in zip(values, rows, strict=True) if row < 0}) - 1
        more = f" and {others:,} more" if others else ""
        raise DataError(
            f"the {side} {first!r}{more} was not in the log that the run was trained on; train again with it."
        )
    return rows


def _times(values: Any, unit: str) -> Array:
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        return values.astype("datetime64[ns]").astype(np.int64) / 1e9
    if isinstance(values, np.ndarray):
        values = values.tolist()
    return np.array([parse_timestamp(value, unit, "the time") for value in values], np.float64)


def _features(run: EventLog, events: Any) -> Array | None:
    if not run.features.shape[1]:
        return None
    names = [str(name) for name in run.metadata.get("features", [])]
    try:
        found = np.stack([np.asarray(events[name], np.float32) for name in names], 1)
    except (KeyError, TypeError, IndexError, ValueError):
        found = np.empty((0, 0), np.float32)
    if found.shape[1] != run.features.shape[1]:
        raise DataError(
            f"the run was trained with {run.features.shape[1]} features an event ({', '.join(names[:8])}): pass a "
            "frame with these columns, or a log made by dynedge.prepare."
        )
    return found
