"""Statistics of a log: counts, activity, repeats, equal times. Memory grows with users and items, not with events."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynedge.data.log import EventLog
from dynedge.data.pair_set import doubled, empty_set, find_slot, pair_key
from dynedge.data.tie_order_signal import order_signal
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

CHUNK = 1 << 22  # events processed at a time
MAX_PAIRS = 20_000_000  # beyond this many events, repeats are counted on a sample of the users
QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


def degrees(ids: Array, count: int) -> Array:
    """Returns the number of events of each user or item: int64[count] from dense ids int32[E]."""
    total = np.zeros(count, np.int64)
    for start in range(0, len(ids), CHUNK):
        total += np.bincount(ids[start : start + CHUNK], minlength=count)
    return total


def describe(log: EventLog) -> dict[str, Any]:
    """Returns the statistics of a log as plain values. The keys are stable: scripts read them."""
    events = len(log)
    every = max(1, -(-events // MAX_PAIRS))  # repeats are counted for one user in `every`
    shares = _shares(log, every)
    return {
        "events": events,
        "users": log.num_users,
        "items": log.num_items,
        "one_population": log.one_population,
        "rejected": log.metadata.get("rejected", 0),
        "first_time": float(log.time[0]) if events else None,
        "last_time": float(log.time[-1]) if events else None,
        "features": log.features.shape[1],
        "item_features": log.metadata.get("item_features", []),
        "user_features": log.metadata.get("user_features", []),
        "label": log.label is not None,
        "label_is_feature": bool(log.metadata.get("label_is_feature")),
        "positive": log.metadata.get("positive"),
        "left_out": log.metadata.get("left_out", 0),
        "unused_columns": log.metadata.get("unused_columns", []),
        "split": log.metadata.get("split", str(log.split)),
        "events_per_user": _quantiles(degrees(log.user, log.num_users)),
        "events_per_item": _quantiles(degrees(log.item, log.num_items)),
        **shares,
        "repeat_share_from_one_user_in": every,
        "order_signal": order_signal(log) if shares["equal_time_share"] else None,
        "source": log.metadata.get("source", {}),
    }


def _quantiles(counts: Array) -> dict[str, float]:
    if not len(counts):
        return {}
    values = np.quantile(counts, QUANTILES, method="lower")
    return {f"{q:g}": int(value) for q, value in zip(QUANTILES, values, strict=True)} | {"mean": float(counts.mean())}


def _shares(log: EventLog, every: int) -> dict[str, float]:
    """Returns the shares of events that repeat a pair or the user's last item, or share a time."""
    last_item = np.full(log.num_users, -1, np.int32)
    last_time = np.full(log.num_users, -1.0)
    pairs = empty_set()
    counts = np.zeros(6, np.int64)  # repeats, sampled events, same as last, equal times, equal times of a user, pairs
    previous_time = -1.0
    for start in range(0, len(log), CHUNK):
        user, item = log.user[start : start + CHUNK], log.item[start : start + CHUNK]
        time = np.ascontiguousarray(log.time[start : start + CHUNK])
        row = 0
        while row < len(user):
            row = _count(user, item, time, row, previous_time, every, last_item, last_time, pairs, counts)
            if row < len(user):
                pairs = doubled(pairs)
        previous_time = float(time[-1])
    events = max(len(log), 1)
    return {
        "repeat_share": float(counts[0] / max(counts[1], 1)),
        "same_as_last_share": float(counts[2] / events),
        "equal_time_share": float(counts[3] / events),
        "equal_time_same_user_share": float(counts[4] / events),
    }


@compiled
def _count(
    user: Array,
    item: Array,
    time: Array,
    row: int,
    previous_time: float,
    every: int,
    last_item: Array,
    last_time: Array,
    pairs: Array,
    counts: Array,
) -> int:
    """Counts from `row` on and returns the next row; stops early when the set of pairs is half full."""
    while row < len(user):
        u, i = user[row], item[row]
        if u % every == 0:
            key = pair_key(u, i)
            slot = find_slot(pairs, key)
            if pairs[slot] == key:
                counts[0] += 1
            else:
                if 2 * (counts[5] + 1) > len(pairs):
                    return row
                pairs[slot] = key
                counts[5] += 1
            counts[1] += 1
        counts[2] += last_item[u] == i
        counts[3] += time[row] == (time[row - 1] if row > 0 else previous_time)
        counts[4] += time[row] == last_time[u] and last_item[u] >= 0
        last_item[u], last_time[u] = i, time[row]
        row += 1
    return row
