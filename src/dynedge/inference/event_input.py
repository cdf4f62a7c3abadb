"""Events from callers, in any supported form, as a log with the rows of a run: ids to rows, times to seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dynedge.data.frames import is_lazy
from dynedge.data.log import EventLog
from dynedge.data.run_rows import RunIds, encode_log, rows_of
from dynedge.data.timestamps import parse_timestamp
from dynedge.errors import DataError, UsageError
from dynedge.utils.array_type import Array

COLUMNS = "user_id", "item_id", "timestamp"


MAX_FEATURE = float(np.finfo(np.float32).max)  # features are stored in float32


class Event(NamedTuple):
    """One event with external ids as texts and the time in seconds."""

    user: str
    item: str
    time: float
    features: tuple[float, ...] = ()
    event_id: str | None = None

    @property
    def is_finite(self) -> bool:
        """Whether its features are finite numbers, also in float32."""
        return all(abs(value) <= MAX_FEATURE for value in self.features)


def encode_events(ids: RunIds, events: Any, columns: tuple[str, str, str] = COLUMNS, unit: str = "s") -> EventLog:
    """Returns events as a log in the rows of a run; new ids are added to `ids`, or refused if it cannot grow.

    `events` is a log, a frame or mapping with these columns, or three sequences (users, items, times in `unit`).
    """
    if isinstance(events, EventLog):
        return encode_log(ids, events)
    if is_lazy(events):
        events = events.collect()
    user, item, time = _three_columns(events, columns)
    if not len(user) == len(item) == len(time):
        raise UsageError(f"users, items and times have different lengths: {len(user)}, {len(item)}, {len(time)}.")
    features, times = _features(ids.run_log, events), _times(time, unit)
    user_rows, item_rows = rows_of(ids, ids.users, user, "user"), rows_of(ids, ids.items, item, "item")
    counts = {"num_users": len(ids.users), "num_items": len(ids.items)}
    return EventLog.from_arrays(user_rows, item_rows, times, features=features, **counts)


def _three_columns(events: Any, columns: tuple[str, str, str]) -> list[Any]:
    if isinstance(events, tuple | list):
        if len(events) != 3:
            raise UsageError(f"events should be three sequences (users, items, times), not {len(events)}.")
        return [_array_or_list(part) for part in events]
    if len(columns) != 3:
        raise UsageError(f"columns should name three columns (user, item, time), not {len(columns)}.")
    if isinstance(events, Mapping):
        names = list(events.keys())
    else:
        names = list(getattr(events, "column_names", getattr(events, "columns", [])))  # Arrow, or pandas and polars
    for column in columns:
        if column not in names:
            raise DataError(f"the events have no column '{column}'; their columns are: {', '.join(map(str, names))}.")
    return [_array_or_list(events[column]) for column in columns]


def _array_or_list(values: Any) -> Any:
    """Returns a series or array as a NumPy array, any other iterable as a list of its Python values."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UsageError(f"events should be three sequences (users, items, times); {values!r:.40} is a single value.")
    return np.asarray(values) if hasattr(values, "__array__") else list(values)


def _times(values: Any, unit: str) -> Array:
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        if np.isnat(values).any():
            raise UsageError(f"event {int(np.argmax(np.isnat(values)))} has no time (NaT); remove it.")
        return values.astype("datetime64[ns]").astype(np.int64) / 1e9
    if isinstance(values, np.ndarray):
        values = values.tolist()
    return np.array([parse_timestamp(value, unit, "the time") for value in values], np.float64)


def _features(run_log: EventLog, events: Any) -> Array | None:
    if not run_log.features.shape[1]:
        return None
    names = [str(name) for name in run_log.metadata.get("features", [])]
    try:
        with np.errstate(over="ignore"):
            features = np.stack([np.asarray(events[name], np.float32) for name in names], 1)
    except (KeyError, TypeError, IndexError, ValueError, OverflowError):
        features = np.empty((0, 0), np.float32)
    if features.shape[1] != run_log.features.shape[1]:
        raise DataError(
            f"the run was trained with {run_log.features.shape[1]} features per event ({', '.join(names[:8])}): pass "
            "a frame with these columns, or a log made by dynedge.prepare."
        )
    if not np.isfinite(features).all():
        row, column = np.argwhere(~np.isfinite(features))[0]
        raise DataError(f"feature '{names[column]}' of event {row} is not a finite number; correct or remove it.")
    return features
