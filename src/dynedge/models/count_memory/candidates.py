"""Reading the event index: the items that the contexts of a query lead to, how often and how recently, and features.

A query is a user, a time and a clock: only events before the clock are read. Its candidates are the items of all
contexts together; every other item has probability 0 under all context sources. Sums are collected unnormalised, with
their totals: a probability is their ratio.

Legend: I items, C candidates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.count_memory.contexts import (
    CONTEXT_SOURCES,
    EARLIER_DECAY,
    EARLIER_ITEMS,
    NEAR_DECAY,
    NEAR_DISTANCE,
    NEAR_POWER,
    PEER_ITEMS,
    RECENT_ITEMS,
    SIMILAR_DISTANCE,
    SOURCE,
    CountSettings,
)
from dynedge.models.count_memory.event_index import (
    AT,
    BEFORE,
    CLOCK,
    ITEM,
    LENGTH,
    NEXT,
    NEXT_AT,
    NONE,
    PLACE,
    RECENT_EVENTS,
    START,
    EventIndex,
    first_from,
)
from dynedge.models.count_memory.event_index import USER as OF_USER
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

QUERY_FEATURES = 18  # sizes of the contexts, time since the user's last event, whether the last items are the same
ITEM_FEATURES = 13  # of an item: how recently and how often the user and anyone met it
SEEN = 0  # the item feature that is 1 for the user's own items
STALENESS = 6  # the first item feature that is not about the user

IN_USER, IN_USER_LAST, IN_LAST, IN_LAST_TWO, IN_SIMILAR, IN_EARLIER, IN_NEAR, IN_PEERS, IN_RECENT = range(9)
USER, USER_CONTEXT, USER_LOG, USER_RECENCY = (
    SOURCE["user", kind] for kind in ("plain", "context-decayed", "log-decayed", "recency")
)
USER_LAST, USER_LAST_RECENCY = SOURCE["user_last", "plain"], SOURCE["user_last", "recency"]
USER_LAST_TWO, USER_LAST_THREE = SOURCE["user_last", "last two"], SOURCE["user_last", "last three"]
LAST, LAST_CONTEXT, LAST_FAST = SOURCE["last", "plain"], SOURCE["last", "context-decayed"], SOURCE["last", "fast"]
LAST_LOG, LAST_RECENCY = SOURCE["last", "log-decayed"], SOURCE["last", "recency"]
LAST_TWO, LAST_TWO_RECENCY = SOURCE["last_two", "plain"], SOURCE["last_two", "recency"]
LAST_TWO_LOG = SOURCE["last_two", "log-decayed"]
SIMILAR, SIMILAR_LOG = SOURCE["similar", "plain"], SOURCE["similar", "log-decayed"]
EARLIER, EARLIER_LOG = SOURCE["earlier", "plain"], SOURCE["earlier", "log-decayed"]
NEAR, NEAR_LOG = SOURCE["near", "plain"], SOURCE["near", "log-decayed"]
PEERS, PEERS_LOG = SOURCE["peers", "plain"], SOURCE["peers", "log-decayed"]
RECENT, RECENT_CONTEXT = SOURCE["recent", "plain"], SOURCE["recent", "context-decayed"]


class CandidateBuffer(NamedTuple):
    """Scratch for the candidates of one query at a time, which take the slots from 0 on."""

    slot: Array  # int32[I]: slot of an item, or -1
    items: Array  # int32[C]: item in each slot
    sums: Array  # float32[C, CONTEXT_SOURCES], by slot
    item_features: Array  # float32[C, ITEM_FEATURES], by slot
    totals: Array  # float64[CONTEXT_SOURCES]: 0 where the source has seen nothing
    query_features: Array  # float32[QUERY_FEATURES]
    similarity: Array  # float32[I]: weight of the user's recent items, 0 for all others
    near: Array  # float32[I, 2]: plain and log-decayed sums of `near` while it is read, else 0
    probability: Array  # float32[C]: of the mixture, by slot (scoring.py)


class Query(NamedTuple):
    """Who asks and when; `latest_items` int32[RECENT_EVENTS] are those of the whole log before the clock, or -1."""

    user: int
    place: int  # number of the user's events before the clock
    clock: int
    time: float
    latest_items: Array


def allocate_buffer(items: int, candidates: int) -> CandidateBuffer:
    """Returns an empty buffer for logs of up to `items` items and queries of up to `candidates`."""
    return CandidateBuffer(
        np.full(items, NONE, np.int32),
        np.zeros(candidates, np.int32),
        np.zeros((candidates, CONTEXT_SOURCES), np.float32),
        np.zeros((candidates, ITEM_FEATURES), np.float32),
        np.zeros(CONTEXT_SOURCES),
        np.zeros(QUERY_FEATURES, np.float32),
        np.zeros(items, np.float32),
        np.zeros((items, 2), np.float32),
        np.zeros(candidates, np.float32),
    )


@compiled
def collect_candidates(index: EventIndex, settings: CountSettings, query: Query, buffer: CandidateBuffer) -> int:
    """Fills an empty buffer for a query and returns the number of candidates; `clear` empties it again."""
    buffer.totals[:] = 0
    buffer.query_features[:] = 0
    size = 0
    if query.place > 0:
        size = _read_history(index, settings, query, buffer, size)
        recent, count = _recent_items(index, query)
        for r in range(count - 1, 0, -1):
            buffer.similarity[recent[r]] = NEAR_DECAY ** (r - 1)
        for r in range(count):
            if not _occurs(recent, r):
                size = _read_occurrences(index, settings, query, recent, count, r, buffer, size)
        for r in range(1, count):
            buffer.similarity[recent[r]] = 0
        if settings.contexts[IN_NEAR]:
            _move_near(buffer, size)
        _set_query_features(index, query, recent, count, buffer)
    if settings.contexts[IN_RECENT]:
        for age in range(RECENT_EVENTS):
            item = query.latest_items[RECENT_EVENTS - 1 - age]
            if item == NONE:
                break
            slot = _slot_of(buffer, size, item)
            size = max(size, slot + 1)
            _add(buffer, slot, RECENT, 1.0)
            _add(buffer, slot, RECENT_CONTEXT, _factor(settings.recent_decay, age))
    return size


@compiled
def clear(buffer: CandidateBuffer, size: int) -> None:
    """Empties a buffer of `size` candidates."""
    for slot in range(size):
        buffer.slot[buffer.items[slot]] = NONE


@compiled(inline="always")
def _slot_of(buffer: CandidateBuffer, size: int, item: int) -> int:
    """Returns the slot of an item, which is `size` for a new candidate."""
    slot = buffer.slot[item]
    if slot == NONE:
        slot = size
        buffer.slot[item], buffer.items[slot] = slot, item
        buffer.sums[slot] = 0
        buffer.item_features[slot] = 0
    return slot


@compiled(inline="always")
def _add(buffer: CandidateBuffer, slot: int, source: int, weight: float) -> None:
    buffer.sums[slot, source] += np.float32(weight)
    buffer.totals[source] += np.float32(weight)


@compiled(inline="always")
def _factor(factors: Array, age: int) -> np.float32:
    """Returns the factor for an age in events; past the end of the table it is 0."""
    return factors[min(age, len(factors) - 1)]


@compiled
def _recent_items(index: EventIndex, query: Query) -> tuple[Array, int]:
    """Returns the user's last items, newest first, and how many there are."""
    recent, count = np.empty(RECENT_ITEMS, np.int32), min(query.place, RECENT_ITEMS)
    end = index.user_blocks[query.user, START] + query.place
    for r in range(count):
        recent[r] = index.history[end - 1 - r, ITEM]
    return recent, count


@compiled
def _occurs(recent: Array, r: int) -> bool:
    """Returns whether item number r is also a newer one."""
    return (recent[:r] == recent[r]).any()


@compiled
def _read_history(
    index: EventIndex, settings: CountSettings, query: Query, buffer: CandidateBuffer, size: int
) -> int:
    """Counts the user's own events: contexts `user` and `user_last`, and the features of the user's items."""
    start = index.user_blocks[query.user, START]
    end = start + query.place
    own, after = settings.contexts[IN_USER], settings.contexts[IN_USER_LAST]
    if not (own or after):
        return size
    history, last, matches, distinct = index.history, index.history[end - 1, ITEM], 0, 0
    for age in range(min(query.place, settings.history_events)):
        x = end - 1 - age
        slot = _slot_of(buffer, size, history[x, ITEM])
        size = max(size, slot + 1)
        features = buffer.item_features[slot]
        is_new = features[SEEN] == 0
        if is_new:
            elapsed = query.time - index.history_time[x]
            features[SEEN] = 1.0
            features[1] = 0.3 * np.log1p(age)
            features[2] = 0.1 * np.log1p(max(elapsed, 0.0))
            features[3] = 1.0 if elapsed <= 0 else 0.0
            features[4] = 1.0 if age == 0 else 0.0
            distinct += 1
        features[5] = 1.0 if is_new else 0.0
        if own:
            _add(buffer, slot, USER, 1.0)
            _add(buffer, slot, USER_CONTEXT, _factor(settings.context_decay, age))
            _add(buffer, slot, USER_LOG, _factor(settings.log_decay, query.clock - index.history[x, CLOCK]))
            if is_new:
                _add(buffer, slot, USER_RECENCY, 1.0 / (1 + age))
        if after and age > 0 and history[x, ITEM] == last:
            slot = buffer.slot[history[x + 1, ITEM]]
            matches += 1
            _add(buffer, slot, USER_LAST, 1.0)
            _add(buffer, slot, USER_LAST_RECENCY, 1.0 / matches)
            if x > start and history[x - 1, ITEM] == history[end - 2, ITEM]:
                _add(buffer, slot, USER_LAST_TWO, 1.0)
                if x > start + 1 and history[x - 2, ITEM] == history[end - 3, ITEM]:
                    _add(buffer, slot, USER_LAST_THREE, 1.0)
    buffer.query_features[0] = 0.2 * np.log1p(query.place)
    buffer.query_features[1] = 0.2 * np.log1p(distinct)
    return size


@compiled
def _read_occurrences(
    index: EventIndex,
    settings: CountSettings,
    query: Query,
    recent: Array,
    count: int,
    r: int,
    buffer: CandidateBuffer,
    size: int,
) -> int:
    """Reads what came before and after the latest occurrences of the user's item number r, newest first."""
    used, clock = settings.contexts, query.clock
    start = index.item_blocks[recent[r], START]
    stop = first_from(index.occurrences, AT, start, start + index.item_blocks[recent[r], LENGTH], clock)
    follows = used[IN_EARLIER] and r < EARLIER_ITEMS
    if r == 0:
        follows = used[IN_LAST] or used[IN_LAST_TWO] or used[IN_SIMILAR]
    near, peers = used[IN_NEAR] and r < settings.near_items, used[IN_PEERS] and r < PEER_ITEMS
    if not (follows or near or peers):
        return size
    read = min(stop - start, settings.occurrences[r])
    if follows:
        size = _read_followers(index, settings, clock, recent, count, r, stop, read, buffer, size)
    read = min(read, settings.near_occurrences[r])
    at, after = _locate_occurrences(index, stop, read)
    if r == 0 and used[IN_SIMILAR] and count > 1:
        _read_similar(index, settings, clock, stop, at, buffer)
    near_weight = np.float32(NEAR_DECAY**r * max(read, 1) ** -NEAR_POWER)
    peer_weight = EARLIER_DECAY ** (r - 1)
    for c in range(read):
        x, y = stop - 1 - c, at[c]
        fresh = _factor(settings.log_decay, clock - index.occurrences[x, AT])
        has_moved = index.occurrences[x, NEXT_AT] < clock and index.occurrences[x, OF_USER] != query.user
        if peers and has_moved and c < settings.peers:
            now = first_from(index.history, CLOCK, y + 1, y + 1 + after[c], clock) - 1
            slot = _slot_of(buffer, size, index.history[now, ITEM])
            size = max(size, slot + 1)
            _add(buffer, slot, PEERS, peer_weight)
            _add(buffer, slot, PEERS_LOG, peer_weight * fresh)
        if near:
            first = max(-NEAR_DISTANCE, -index.occurrences[x, PLACE])
            for distance in range(first, min(NEAR_DISTANCE, after[c]) + 1):
                weight = settings.near_weights[NEAR_DISTANCE + distance] * near_weight
                if weight > 0 and index.history[y + distance, CLOCK] < clock:
                    item = index.history[y + distance, ITEM]
                    if buffer.near[item, 0] == 0:
                        size = max(size, _slot_of(buffer, size, item) + 1)
                    buffer.near[item, 0] += weight
                    buffer.near[item, 1] += weight * fresh
    if r == 0:
        buffer.query_features[8] = 0.2 * np.log1p(stop - start)
    return size


@compiled
def _move_near(buffer: CandidateBuffer, size: int) -> None:
    """Moves the sums of `near`, which were collected by item, to the candidates' slots."""
    for slot in range(size):
        sums = buffer.near[buffer.items[slot]]
        buffer.sums[slot, NEAR], buffer.sums[slot, NEAR_LOG] = sums[0], sums[1]
        buffer.totals[NEAR] += sums[0]
        buffer.totals[NEAR_LOG] += sums[1]
        sums[:] = 0


@compiled
def _locate_occurrences(index: EventIndex, stop: int, read: int) -> tuple[Array, Array]:
    """Returns, for the `read` occurrences before `stop`, newest first: their places in the pool of histories, and how
    many events of that user are stored after them.

    Users lie far apart in memory: a short loop lets the processor fetch several at once.
    """
    at, after = np.empty(read, np.int64), np.empty(read, np.int64)
    for c in range(read):
        user, place = index.occurrences[stop - 1 - c, OF_USER], index.occurrences[stop - 1 - c, PLACE]
        at[c] = index.user_blocks[user, START] + place
        after[c] = index.user_blocks[user, LENGTH] - place - 1
    return at, after


@compiled
def _read_followers(
    index: EventIndex,
    settings: CountSettings,
    clock: int,
    recent: Array,
    count: int,
    r: int,
    stop: int,
    read: int,
    buffer: CandidateBuffer,
    size: int,
) -> int:
    """Counts what followed the occurrences before `stop`: contexts `last` and `last_two`, or `earlier` for r > 0."""
    last, last_two = settings.contexts[IN_LAST], settings.contexts[IN_LAST_TWO] and count > 1
    weight, followed = np.float32(EARLIER_DECAY ** (r - 1)), 0
    for x in range(stop - 1, stop - 1 - read, -1):
        if index.occurrences[x, NEXT_AT] >= clock:
            continue
        slot = _slot_of(buffer, size, index.occurrences[x, NEXT])
        size = max(size, slot + 1)
        age = clock - index.occurrences[x, NEXT_AT]
        log_factor = _factor(settings.log_decay, age)
        if r > 0:
            _add(buffer, slot, EARLIER, weight)
            _add(buffer, slot, EARLIER_LOG, weight * log_factor)
            continue
        if last:
            _add(buffer, slot, LAST, 1.0)
            _add(buffer, slot, LAST_CONTEXT, _factor(settings.context_decay, followed))
            _add(buffer, slot, LAST_FAST, _factor(settings.fast_decay, age))
            _add(buffer, slot, LAST_LOG, log_factor)
            _add(buffer, slot, LAST_RECENCY, 1.0 / (1 + followed))
            followed += 1
        if last_two and index.occurrences[x, BEFORE] == recent[1]:
            _add(buffer, slot, LAST_TWO, 1.0)
            _add(buffer, slot, LAST_TWO_RECENCY, 1.0 / buffer.totals[LAST_TWO])
            _add(buffer, slot, LAST_TWO_LOG, log_factor)
    return size


@compiled
def _read_similar(
    index: EventIndex, settings: CountSettings, clock: int, stop: int, at: Array, buffer: CandidateBuffer
) -> None:
    """Counts what followed the last item of users with recent items in common; `at` are the places in histories."""
    for c in range(len(at)):
        x = stop - 1 - c
        if index.occurrences[x, NEXT_AT] < clock:
            similarity = np.float32(0)
            for y in range(at[c] - min(index.occurrences[x, PLACE], SIMILAR_DISTANCE), at[c]):
                similarity += buffer.similarity[index.history[y, ITEM]]
            if similarity > 0:
                slot, age = buffer.slot[index.occurrences[x, NEXT]], clock - index.occurrences[x, NEXT_AT]
                _add(buffer, slot, SIMILAR, similarity)
                _add(buffer, slot, SIMILAR_LOG, similarity * _factor(settings.log_decay, age))


@compiled
def _set_query_features(index: EventIndex, query: Query, recent: Array, count: int, buffer: CandidateBuffer) -> None:
    features, totals = buffer.query_features, buffer.totals
    last = index.user_blocks[query.user, START] + query.place - 1
    gap = query.time - index.history_time[last]
    features[2] = 0.2 * np.log1p(totals[USER_LAST])
    features[3] = 1.0
    features[4] = 0.1 * np.log1p(max(gap, 0.0))
    features[5] = 1.0 if gap <= 0 else 0.0
    features[6] = 1.0 if count > 1 and recent[0] == recent[1] else 0.0
    features[7] = 1.0 if count > 2 and recent[0] == recent[2] else 0.0
    features[9] = 0.2 * np.log1p(totals[LAST])
    features[10] = 0.2 * np.log1p(totals[LAST_TWO])
    features[11] = 0.2 * np.log1p(totals[SIMILAR])
    features[12] = 0.2 * np.log1p(totals[EARLIER])
    features[13] = 0.2 * np.log1p(totals[LAST_FAST])
    features[14] = 0.2 * np.log1p(totals[LAST_LOG])
    features[15] = 0.1 * np.log1p(query.clock - index.history[last, CLOCK])
    features[16] = 0.2 * np.log1p(totals[PEERS_LOG])
    features[17] = 0.2 * np.log1p(totals[USER_LAST_TWO])


@compiled
def set_staleness(index: EventIndex, query: Query, buffer: CandidateBuffer, slots: Array) -> None:
    """Sets the features of candidates that are not about the user: when and how often anyone met the item.

    Their data lie far apart in memory: short loops let the processor fetch several at once.
    """
    starts, stops = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
    for j in range(len(slots)):
        item = buffer.items[slots[j]]
        starts[j] = index.item_blocks[item, START]
        stops[j] = starts[j] + index.item_blocks[item, LENGTH]
    for j in range(len(slots)):
        stops[j] = first_from(index.occurrences, AT, starts[j], stops[j], query.clock)
    for j in range(len(slots)):
        features, start, stop = buffer.item_features[slots[j]], starts[j], stops[j]
        other = index.occurrences[stop - 1, OF_USER]
        elapsed = (
            query.time - index.history_time[index.user_blocks[other, START] + index.occurrences[stop - 1, PLACE]]
        )
        features[STALENESS] = 0.2 * np.log1p(np.float32(query.clock - index.occurrences[stop - 1, AT]))
        features[STALENESS + 1] = 0.1 * np.log1p(np.float32(max(elapsed, 0.0)))
        features[STALENESS + 2] = 0.2 * np.log1p(np.float32(stop - start))
        features[STALENESS + 3] = 0.1 * np.log1p(np.float32(query.clock - index.occurrences[start, AT]))
        features[STALENESS + 4] = 0.2 * np.log1p(
            np.float32(query.clock - index.occurrences[max(start, stop - 8), AT])
        )
        features[STALENESS + 5] = 1.0 if elapsed <= 0 else 0.0
        features[STALENESS + 6] = 1.0 if other == query.user else 0.0
