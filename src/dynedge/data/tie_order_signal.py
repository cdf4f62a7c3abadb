"""How much predictive signal a log carries in the order of events with equal times.

Such events keep the order of their input file. That order can be meaningful (the lines of an invoice, as typed) or
not; an unstable sort loses it, and a model's score with it. To measure the difference, a simple rule predicts on the
log as stored, and on the same log with equal times shuffled: the next item is the one that most often followed the
user's last item, over all users; ties go to the more popular item.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynedge.data.log import EventLog
from dynedge.data.pair_set import doubled, empty_set, find_slot, pair_key
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

MAX_EVENTS = 1_000_000  # only the last events of a longer log are used
SCORED_ONE_IN = 10  # the last tenth of them is predicted, the others are only counted
SEED = 0


def order_signal(log: EventLog) -> dict[str, Any]:
    """Returns {"events", "scored", "mrr", "mrr_shuffled"}: the rule's MRR as stored, and with equal times shuffled.

    The shuffle has a fixed seed, so that the result depends on the log alone.
    """
    start = max(len(log) - MAX_EVENTS, 0)
    user, item, time = (np.array(column[start:]) for column in (log.user, log.item, log.time))
    shuffled = np.lexsort((np.random.default_rng(SEED).random(len(time)), time))
    first = len(user) - len(user) // SCORED_ONE_IN
    stored_mrr = _mrr(user, item, first, log.num_users, log.num_items)
    shuffled_mrr = _mrr(user[shuffled], item[shuffled], first, log.num_users, log.num_items)
    return {"events": len(user), "scored": len(user) - first, "mrr": stored_mrr, "mrr_shuffled": shuffled_mrr}


@compiled
def _mrr(user: Array, item: Array, first: int, num_users: int, num_items: int) -> float:
    """Returns the MRR over events `first`, `first` + 1, …, each ranked among all items by the events before it.

    Ties get the mean rank. An entry holds a successor of an item and its count; the entries of one item form a linked
    list that starts at `head` and continues at `next_entry`.
    """
    last, head = np.full(num_users, -1, np.int32), np.full(num_items, -1, np.int32)
    successor, count, next_entry = np.empty((3, len(user)), np.int32)
    pairs, entries, total = empty_set(), 0, 0.0
    entry_of = np.empty(len(pairs), np.int32)
    popularity = np.zeros(num_items, np.int32)
    more_popular = np.zeros(len(user) + 1, np.int64)  # [c]: number of items with a popularity above c
    for k in range(len(user)):
        before, now = last[user[k]], item[k]
        entry = -1
        if before >= 0:
            key = pair_key(before, now)
            slot = find_slot(pairs, key)
            entry = entry_of[slot] if pairs[slot] == key else -1
        if k >= first:
            start = head[before] if before >= 0 else -1
            total += 1 / _rank(now, entry, start, successor, count, next_entry, popularity, more_popular)
        more_popular[popularity[now]] += 1
        popularity[now] += 1
        last[user[k]] = now
        if before >= 0 and entry < 0:
            pairs[slot], entry_of[slot] = key, entries
            successor[entries], count[entries], next_entry[entries], head[before] = now, 1, head[before], entries
            entries += 1
            if 2 * entries > len(pairs):
                pairs, entry_of = _doubled(pairs, entry_of)
        elif entry >= 0:
            count[entry] += 1
    return total / max(len(user) - first, 1)


@compiled
def _rank(
    now: int,
    entry: int,
    start: int,
    successor: Array,
    count: Array,
    next_entry: Array,
    popularity: Array,
    more_popular: Array,
) -> float:
    """Returns the mean rank of item `now` by count, then by popularity; `entry` is its entry in the list, or -1."""
    own_count, own_popularity = count[entry] if entry >= 0 else 0, popularity[now]
    better = tied = 0
    if entry < 0:  # ranked among the items that never followed: all items, corrected below for those in the list
        better = more_popular[own_popularity]
        tied = (more_popular[own_popularity - 1] if own_popularity else len(popularity)) - more_popular[
            own_popularity
        ]
    while start >= 0:
        other = popularity[successor[start]]
        if entry < 0:
            better += other <= own_popularity  # a successor ranks higher; the more popular ones are counted already
            tied -= other == own_popularity
        else:
            better += count[start] > own_count or (count[start] == own_count and other > own_popularity)
            tied += count[start] == own_count and other == own_popularity
        start = next_entry[start]
    return better + (tied + 1) / 2


@compiled
def _doubled(pairs: Array, entry_of: Array) -> tuple[Array, Array]:
    """Returns the set of pairs and their entries in tables of twice the size."""
    larger = doubled(pairs)
    moved = np.empty(len(larger), np.int32)
    for slot in range(len(pairs)):
        if pairs[slot] != 0:
            moved[find_slot(larger, pairs[slot])] = entry_of[slot]
    return larger, moved
