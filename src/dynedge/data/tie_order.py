"""How much of a log's signal sits in the order of events at equal times.

Such events keep the order of the file they came from. That order can mean something (the lines of an invoice, as they
were typed) or nothing; a sort that is not stable loses it, and a model's score with it. To tell how much is at stake,
a plain rule predicts from the log as it stands, and from the same log with equal times shuffled: next comes the item
that most often followed the user's last one, whoever the user was; among equals, the more popular.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynedge.data.log import EventLog
from dynedge.data.repeat_events import empty, grown, key_of, place
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

EVENTS_AT_MOST = 1_000_000  # the last so many of a log are looked at
SCORED_SHARE = 10  # one in so many of those is predicted: the last ones, with the others to count from
SEED = 0


def order_signal(log: EventLog) -> dict[str, Any]:
    """{"events", "scored", "mrr", "mrr_shuffled"}: the rule's MRR in the stored order, and with equal times shuffled.

    The shuffle has a seed of its own, so that a log has one answer.
    """
    start = max(len(log) - EVENTS_AT_MOST, 0)
    user, item, time = (np.array(column[start:]) for column in (log.user, log.item, log.time))
    shuffled = np.lexsort((np.random.default_rng(SEED).random(len(time)), time))
    first = len(user) - len(user) // SCORED_SHARE
    as_it_is = _mrr(user, item, first, log.num_users, log.num_items)
    without = _mrr(user[shuffled], item[shuffled], first, log.num_users, log.num_items)
    return {"events": len(user), "scored": len(user) - first, "mrr": as_it_is, "mrr_shuffled": without}


@compiled
def _mrr(user: Array, item: Array, first: int, num_users: int, num_items: int) -> float:
    """Of the events from `first` on, each ranked among all items by what came before it; ties: the mean rank.

    A slot holds an item that followed another and how often; an item's slots are a chain, from `head` by `behind`.
    """
    last, head = np.full(num_users, -1, np.int32), np.full(num_items, -1, np.int32)
    successor, count, behind = np.empty((3, len(user)), np.int32)
    known, slots, total = empty(), 0, 0.0
    slot_of = np.empty(len(known), np.int32)
    popularity = np.zeros(num_items, np.int32)
    above = np.zeros(len(user) + 1, np.int64)  # how many items are more popular than so much
    for k in range(len(user)):
        before, now = last[user[k]], item[k]
        slot = -1
        if before >= 0:
            key = key_of(before, now)
            at = place(known, key)
            slot = slot_of[at] if known[at] == key else -1
        if k >= first:
            total += 1 / _rank(
                now, slot, head[before] if before >= 0 else -1, successor, count, behind, popularity, above
            )
        above[popularity[now]] += 1
        popularity[now] += 1
        last[user[k]] = now
        if before >= 0 and slot < 0:
            known[at], slot_of[at] = key, slots
            successor[slots], count[slots], behind[slots], head[before] = now, 1, head[before], slots
            slots += 1
            if 2 * slots > len(known):
                known, slot_of = _larger(known, slot_of)
        elif slot >= 0:
            count[slot] += 1
    return total / max(len(user) - first, 1)


@compiled
def _rank(
    now: int, slot: int, chain: int, successor: Array, count: Array, behind: Array, popularity: Array, above: Array
) -> float:
    """The mean rank of item `now`, in `slot` of the chain or in none, by count and then by popularity."""
    mine, own = count[slot] if slot >= 0 else 0, popularity[now]
    better = tied = 0
    if slot < 0:  # among all items that never followed: of all items, less those of the chain
        better = above[own]
        tied = (above[own - 1] if own else len(popularity)) - above[own]
    while chain >= 0:
        other = popularity[successor[chain]]
        if slot < 0:
            better += other <= own  # before this one for having followed; the more popular were counted
            tied -= other == own
        else:
            better += count[chain] > mine or (count[chain] == mine and other > own)
            tied += count[chain] == mine and other == own
        chain = behind[chain]
    return better + (tied + 1) / 2


@compiled
def _larger(known: Array, slot_of: Array) -> tuple[Array, Array]:
    larger = grown(known)
    moved = np.empty(len(larger), np.int32)
    for at in range(len(known)):
        if known[at] != 0:
            moved[place(larger, known[at])] = slot_of[at]
    return larger, moved
