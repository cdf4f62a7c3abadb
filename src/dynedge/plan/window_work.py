"""How much work the training of an event is, for windows that take equally long to train.

The longer a log, the more items an event lists whose scores get a bonus (models/edge/score_lists.py), so that of
windows with equal numbers of events the later ones take longer. Processes that train windows of several segments side
by side would wait for those of the last segment.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dynedge.data.log import EventLog
from dynedge.data.windows import cut_by_work
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

# Fixed work of an event, in units of one listed item: `edge` on one CPU core, 945 items, all of them candidates
# (benchmarks/segments.py, "CPU seconds of compute by segment").
EVENT_WORK = 350
MOST_EVENTS = 1 << 22  # roughly: in a longer log, the work is counted for the events of every k-th user
PARTS = 1 << 14  # into which a longer log is cut; an event's work is the mean of its part
READ_TOGETHER = 1 << 22


def windows_of_equal_work(log: EventLog, train_end: int, listed: int, count: int) -> list[range]:
    """The log's first `train_end` events in `count` windows; at most `listed` items of a user count."""
    return cut_by_work(parts_work(log, train_end, listed), train_end, count)


def parts_work(log: EventLog, train_end: int, listed: int) -> Array:
    """int64[B]: the mean work of an event in each of B parts of the events, with bounded memory."""
    share = max(1, -(-train_end // MOST_EVENTS))
    position, user, item = (np.concatenate(column) for column in zip(*_events(log, train_end, share), strict=True))
    work = event_work(user, item, listed)
    if share == 1 or not len(work):
        return work
    part = position * PARTS // train_end
    total, events = (np.bincount(part, weights, PARTS).astype(np.int64) for weights in (work, None))
    known = np.maximum.accumulate(np.where(events > 0, np.arange(PARTS), np.flatnonzero(events)[:1]))
    mean: Array = total[known] // events[known]
    return mean


def _events(log: EventLog, stop: int, share: int) -> Iterator[tuple[Array, Array, Array]]:
    """(positions, users, items) of the events of every `share`-th user; these users are numbered anew."""
    for start in range(0, max(stop, 1), READ_TOGETHER):
        rows = slice(start, min(start + READ_TOGETHER, stop))
        user, item = np.array(log.user[rows]), np.array(log.item[rows])
        chosen = np.flatnonzero(user % share == 0)
        yield start + chosen, user[chosen] // share, item[chosen]


def event_work(user: Array, item: Array, listed: int) -> Array:
    """int64[n]: EVENT_WORK plus the number of the user's earlier items, at most `listed`."""
    pairs = user.astype(np.int64) * (int(item.max(initial=0)) + 1) + item
    is_new = np.zeros(len(user), np.bool_)
    is_new[np.unique(pairs, return_index=True)[1]] = True
    work: Array = EVENT_WORK + np.minimum(_items_before(user, is_new), listed)
    return work


@compiled
def _items_before(user: Array, is_new: Array) -> Array:
    """int64[n]: the number of different items that the event's user had before."""
    users = 0
    for k in range(len(user)):
        users = max(users, user[k] + 1)
    items, before = np.zeros(users, np.int64), np.empty(len(user), np.int64)
    for k in range(len(user)):
        before[k] = items[user[k]]
        items[user[k]] += is_new[k]
    return before
