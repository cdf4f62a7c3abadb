"""How much work the training of an event is, for windows that take equally long to train.

The longer a log, the more items an event lists whose scores get a bonus (models/edge/score_lists.py), so that of
windows with equal numbers of events the later ones take longer. Processes that train windows of several segments side
by side would wait for those of the last segment.
"""

from __future__ import annotations

import numpy as np

from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

# What an event takes without any listed item, in listed items: `edge` on one CPU core, 945 items, all of them
# candidates (benchmarks/segments.py, "CPU seconds of compute by segment").
EVENT_WORK = 350


def event_work(user: Array, item: Array, listed: int) -> Array:
    """int64[n]: the work of each event, its user's items before it, of which at most `listed` count."""
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
