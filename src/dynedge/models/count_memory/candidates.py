"""Reading the event index: the items that the contexts of a query lead to, how often and how recently, and features.

A query is a user, a time and a clock: only events before the clock are read. Its candidates are the items of all
contexts together; every other item has probability 0 under all context sources. Sums are collected unnormalised, with
their totals: a probability is their ratio. Most candidates are found by `near` alone: they come last, and the sums of
`near`, `session` and `alike` are in a small array of their own.

What is read lies far apart in memory, so a query's time is that of its cache misses: rows are fetched ahead, and
short loops let the processor fetch several at once.

Legend: I items, C candidates, n of them that the rescaling network sees, H half-lives of the popularity.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.count_memory.config import CONTEXTS
from dynedge.models.count_memory.contexts import (
    CONTEXT_SOURCES,
    EARLIER_DECAY,
    EARLIER_ITEMS,
    ELAPSED_POWER,
    HABIT_DECAY,
    HABIT_EVENTS,
    NEAR_DECAY,
    NEAR_DISTANCE,
    NEAR_POWER,
    PEER_ITEMS,
    PROFILE,
    RECENT_ITEMS,
    SESSION,
    SIMILAR_DISTANCE,
    SOURCE,
    CountSettings,
)
from dynedge.models.count_memory.event_index import (
    AT,
    BEFORE,
    CLOCK,
    GAP,
    ITEM,
    LENGTH,
    NEXT,
    NEXT_AT,
    NEXT_GAP,
    NONE,
    PLACE,
    RECENT_EVENTS,
    START,
    EventIndex,
    first_from,
    gap_code,
)
from dynedge.models.count_memory.event_index import USER as OF_USER
from dynedge.ops.all_scores.by_block import BLOCK
from dynedge.ops.prefetch_row import prefetch_row
from dynedge.ops.vector_math import log
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

QUERY_FEATURES = 24  # sizes of the contexts, time since the user's last event, the user's habits and kind of items
ITEM_FEATURES = 20  # of an item: how recently, how often and after which gaps the user and anyone met it
AHEAD = 8  # rows that are fetched before they are read
MEMBER_WORDS = 64  # of 64 bits, by which most items are told from a few ones
SEEN = 0  # the item feature that is 1 for the user's own items
STALENESS, GAPS, KIND = 6, 13, 15  # the first item features that are about anyone, about gaps, and compare items
LOGARITHMS = (
    (1, 0.3),
    (2, 0.1),
    (6, 0.2),
    (7, 0.1),
    (8, 0.2),
    (9, 0.1),
    (10, 0.2),
)  # item features: log(1 + x), scaled

IN_USER, IN_USER_LAST, IN_ELAPSED, IN_LAST, IN_LAST_TWO, IN_AFTER_GAP, IN_SIMILAR, IN_EARLIER = range(8)
IN_NEAR, IN_SESSION, IN_ALIKE, IN_PEERS, IN_RECENT, IN_NOW = range(8, len(CONTEXTS))
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
NEAR = SOURCE["near", "plain"]  # the first of those that `near`, `session` and `alike` have
NEAR_SOURCES = SOURCE["alike", "plain"] + 1 - NEAR
ELAPSED, AFTER_GAP, NOW = SOURCE["elapsed", "plain"], SOURCE["after_gap", "plain"], SOURCE["now", "log-decayed"]
PEERS, PEERS_LOG = SOURCE["peers", "plain"], SOURCE["peers", "log-decayed"]
RECENT, RECENT_CONTEXT = SOURCE["recent", "plain"], SOURCE["recent", "context-decayed"]


class CandidateBuffer(NamedTuple):
    """Scratch for the candidates of one query at a time, which take the slots from 0 on."""

    slot: Array  # int32[I]: slot of an item, or -1
    items: Array  # int32[C]: item in each slot
    seen: Array  # int32[C]: 1 + age of the user's newest event with the item, negative if there are others; 0: none
    near: Array  # float32[C, NEAR_SOURCES]: sums of the sources from NEAR on, by slot
    sums: Array  # float32[C, CONTEXT_SOURCES], by slot; not of candidates that these alone found, see add_rows
    totals: Array  # float64[CONTEXT_SOURCES]: 0 where the source has seen nothing
    query_features: Array  # float32[QUERY_FEATURES]
    popularity: Array  # float32[C, H]: counts at all half-lives, by slot (scoring.py)
    probability: Array  # float32[C]: of the mixture, by slot (scoring.py)
    row: Array  # float32[I, and more to fill a block]: the same of all items in some blocks (scoring.py)


class Query(NamedTuple):
    """Who asks and when; `latest_items` int32[RECENT_EVENTS] are those of the whole log before the clock, or -1."""

    user: int
    place: int  # number of the user's events before the clock
    clock: int
    time: float
    latest_items: Array


def allocate_buffer(items: int, candidates: int, half_lives: int) -> CandidateBuffer:
    """Returns an empty buffer for logs of up to `items` items and queries of up to `candidates`."""
    return CandidateBuffer(
        np.full(items, NONE, np.int32),
        np.zeros(candidates, np.int32),
        np.zeros(candidates, np.int32),
        np.zeros((candidates, NEAR_SOURCES), np.float32),
        np.zeros((candidates, CONTEXT_SOURCES), np.float32),
        np.zeros(CONTEXT_SOURCES),
        np.zeros(QUERY_FEATURES, np.float32),
        np.zeros((candidates, half_lives), np.float32),
        np.zeros(candidates, np.float32),
        np.ones(-(-items // BLOCK) * BLOCK, np.float32),
    )


@compiled
def collect_candidates(
    index: EventIndex, settings: CountSettings, query: Query, buffer: CandidateBuffer
) -> tuple[int, int]:
    """Fills an empty buffer for a query; `clear` empties it again.

    Returns the number of candidates that other contexts than `near`, `session` and `alike` found, and of all.
    """
    buffer.totals[:] = 0
    buffer.query_features[:] = 0
    size = 0
    if query.place > 0:
        recent, count = _recent_items(index, query)
        stops = _find_occurrences(index, query, recent, count)
        at, after, begin = _allocate_places(settings, stops)
        members, weights = _members(recent[:count]), _weights_of_common(recent[:count])
        size = _read_history(index, settings, query, buffer, size)
        for r in range(count):
            if not _occurs(recent, r):
                size = _read_occurrences(
                    index,
                    settings,
                    query,
                    recent,
                    count,
                    members,
                    weights,
                    r,
                    stops[r],
                    at[begin[r] :],
                    after[begin[r] :],
                    buffer,
                    size,
                )
    size = _read_latest(index, settings, query, buffer, size)
    others = size
    if query.place > 0:
        if settings.contexts[IN_NEAR] or settings.contexts[IN_SESSION] or settings.contexts[IN_ALIKE]:
            for r in range(min(count, settings.near_items)):
                if not _occurs(recent, r):
                    size = _read_near(
                        index,
                        settings,
                        query,
                        recent[:count],
                        members,
                        r,
                        stops[r],
                        at[begin[r] :],
                        after[begin[r] :],
                        buffer,
                        size,
                    )
            _sum_near(settings, buffer, others, size)
        _set_query_features(index, query, recent, count, buffer)
        _set_habits(index, settings, query, buffer)
        _set_kind(index, query, stops, buffer)
    return others, size


@compiled_without_counting
def _read_latest(index: EventIndex, settings: CountSettings, query: Query, buffer: CandidateBuffer, size: int) -> int:
    """Counts the latest items of the log: contexts `recent` and `now`."""
    recent, now, gap = settings.contexts[IN_RECENT], settings.contexts[IN_NOW], gap_before(index, query)
    if not (recent or now):
        return size
    total, clock, latest, occurrences = buffer.totals[NOW], query.clock, query.latest_items, index.occurrences
    items, gap_likeness, log_decay = index.item_blocks, settings.gap_likeness, settings.log_decay
    for age in range(RECENT_EVENTS):
        prefetch_row(items, latest[RECENT_EVENTS - 1 - age])
    for age in range(RECENT_EVENTS):
        ahead = latest[max(RECENT_EVENTS - 1 - age - AHEAD, 0)]
        if now and ahead != NONE:
            end = items[ahead, START] + items[ahead, LENGTH]
            for x in range(end - PROFILE, end, 2):  # two to a cache line
                prefetch_row(occurrences, x)
        item = latest[RECENT_EVENTS - 1 - age]
        if item == NONE:
            break
        slot = _slot_of(buffer, size, item)
        size = max(size, slot + 1)
        if recent:
            _add(buffer, slot, RECENT, 1.0)
            _add(buffer, slot, RECENT_CONTEXT, _factor(settings.recent_decay, age))
        if now and buffer.sums[slot, NOW] == 0:
            start, of_item = items[item, START], np.float32(0)
            stop = first_from(occurrences, AT, start, start + items[item, LENGTH], clock)
            for x in range(max(start, stop - PROFILE), stop):
                alike = _likeness(gap_likeness, gap, occurrences[x, GAP])
                weight = alike * _factor(log_decay, clock - occurrences[x, AT])
                of_item += weight
                total += weight
            buffer.sums[slot, NOW] = of_item
    buffer.totals[NOW] = total
    return size


@compiled_without_counting
def gap_before(index: EventIndex, query: Query) -> int:
    """Returns the code of the time since the user's last event; NONE without one."""
    if query.place == 0:
        return NONE
    last = index.user_blocks[query.user, START] + query.place - 1
    return int(gap_code(query.time - index.history_time[last]))


@compiled(inline="always")
def _likeness(factors: Array, gap: int, other: int) -> np.float32:
    """Returns 1 for gaps with the same code, half of it for twice the time; the first event of a user has none."""
    likeness, is_same = _factor(factors, abs(gap - other)), np.float32(gap == other)
    return is_same if min(gap, other) == NONE else likeness  # both are computed: a branch could not be predicted


@compiled_without_counting
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
        buffer.slot[item], buffer.items[slot], buffer.seen[slot] = slot, item, 0
        for s in range(NEAR_SOURCES):
            buffer.near[slot, s] = 0
        for s in range(CONTEXT_SOURCES):
            buffer.sums[slot, s] = 0
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


@compiled_without_counting
def _occurs(recent: Array, r: int) -> bool:
    """Returns whether item number r is also a newer one."""
    occurs = False
    for other in range(r):
        occurs |= recent[other] == recent[r]
    return occurs


@compiled_without_counting
def _read_history(
    index: EventIndex, settings: CountSettings, query: Query, buffer: CandidateBuffer, size: int
) -> int:
    """Counts the user's own events: contexts `user`, `user_last` and `elapsed`."""
    start = index.user_blocks[query.user, START]
    end = start + query.place
    own, after, elapsed = settings.contexts[IN_USER], settings.contexts[IN_USER_LAST], settings.contexts[IN_ELAPSED]
    if not (own or after or elapsed):
        return size
    history, last, matches, distinct = index.history, index.history[end - 1, ITEM], 0, 0
    for age in range(min(query.place, settings.history_events)):
        x = end - 1 - age
        slot = _slot_of(buffer, size, history[x, ITEM])
        size = max(size, slot + 1)
        is_new = buffer.seen[slot] == 0
        buffer.seen[slot] = 1 + age if is_new else -abs(buffer.seen[slot])
        distinct += is_new
        if own:
            _add(buffer, slot, USER, 1.0)
            _add(buffer, slot, USER_CONTEXT, _factor(settings.context_decay, age))
            _add(buffer, slot, USER_LOG, _factor(settings.log_decay, query.clock - index.history[x, CLOCK]))
            if is_new:
                _add(buffer, slot, USER_RECENCY, 1.0 / (1 + age))
        if elapsed:
            seconds = max(query.time - index.history_time[x], 0.0)
            _add(buffer, slot, ELAPSED, (1 + seconds) ** -ELAPSED_POWER)
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
def _find_occurrences(index: EventIndex, query: Query, recent: Array, count: int) -> Array:
    """Returns int64[count, 2]: where the occurrences of each recent item begin, and end before the clock."""
    found = np.empty((count, 2), np.int64)
    for r in range(count):
        prefetch_row(index.item_blocks, recent[r])
    for r in range(count):
        found[r, 0] = index.item_blocks[recent[r], START]
        found[r, 1] = found[r, 0] + index.item_blocks[recent[r], LENGTH]
        prefetch_row(index.occurrences, found[r, 1] - 1)
    for r in range(count):
        found[r, 1] = first_from(index.occurrences, AT, found[r, 0], found[r, 1], query.clock)
    return found


@compiled
def _allocate_places(settings: CountSettings, found: Array) -> tuple[Array, Array, Array]:
    """Returns memory for `_locate_occurrences` of all recent items, and int64[count]: where each of them begins."""
    begin, size = np.empty(len(found), np.int64), 0
    for r in range(len(found)):
        begin[r] = size
        size += min(found[r, 1] - found[r, 0], settings.occurrences[r], settings.near_occurrences[r])
    return np.empty(size, np.int64), np.empty(size, np.int64), begin


@compiled_without_counting
def _read_occurrences(
    index: EventIndex,
    settings: CountSettings,
    query: Query,
    recent: Array,
    count: int,
    members: Array,
    weights: Array,
    r: int,
    found: Array,
    at: Array,
    after: Array,
    buffer: CandidateBuffer,
    size: int,
) -> int:
    """Reads what followed the latest occurrences of the user's item number r, and where their users are now."""
    used, clock, (start, stop) = settings.contexts, query.clock, found
    follows = used[IN_EARLIER] and r < EARLIER_ITEMS
    if r == 0:
        follows = used[IN_LAST] or used[IN_LAST_TWO] or used[IN_SIMILAR] or used[IN_AFTER_GAP]
    peers = used[IN_PEERS] and r < PEER_ITEMS
    near = used[IN_NEAR] or used[IN_SESSION] or used[IN_ALIKE]
    if not (follows or peers or near):
        return size
    read = min(stop - start, settings.occurrences[r])
    if follows and r == 0:
        size = _read_followers(index, settings, query, recent, count, stop, read, buffer, size)
    elif follows:
        size = _read_earlier(index, settings, query, r, stop, read, buffer, size)
    read = min(read, settings.near_occurrences[r])
    _locate_occurrences(index, stop, read, at, after)
    if r == 0 and used[IN_SIMILAR] and count > 1:
        for c in range(read):
            prefetch_row(index.history, at[c] - min(index.occurrences[stop - 1 - c, PLACE], SIMILAR_DISTANCE))
        _read_similar(index, settings, clock, stop, at[:read], recent[:count], members, weights, buffer)
    if peers:
        weight, read = EARLIER_DECAY ** (r - 1), min(read, settings.peers)
        for c in range(read):
            prefetch_row(index.history, at[c] + after[c])
        for c in range(read):
            x = stop - 1 - c
            if index.occurrences[x, NEXT_AT] < clock and index.occurrences[x, OF_USER] != query.user:
                now = first_from(index.history, CLOCK, at[c] + 1, at[c] + 1 + after[c], clock) - 1
                slot = _slot_of(buffer, size, index.history[now, ITEM])
                size = max(size, slot + 1)
                _add(buffer, slot, PEERS, weight)
                _add(buffer, slot, PEERS_LOG, weight * _factor(settings.log_decay, clock - index.occurrences[x, AT]))
    if r == 0:
        buffer.query_features[8] = 0.2 * np.log1p(stop - start)
    return size


@compiled_without_counting
def _read_near(
    index: EventIndex,
    settings: CountSettings,
    query: Query,
    recent: Array,
    members: Array,
    r: int,
    found: Array,
    at: Array,
    after: Array,
    buffer: CandidateBuffer,
    size: int,
) -> int:
    """Counts what came before and after the latest occurrences of the user's item number r."""
    (start, stop), clock, zero = found, query.clock, np.float32(0)
    read = min(stop - start, settings.occurrences[r], settings.near_occurrences[r])
    scale = np.float32(max(read, 1) ** -NEAR_POWER)
    weights, of_item = settings.near_weights, np.float32(NEAR_DECAY**r * max(read, 1) ** -NEAR_POWER)
    own_time = index.history_time[index.user_blocks[query.user, START] + query.place - 1 - r]
    in_session = settings.contexts[IN_SESSION] and query.time - own_time <= SESSION
    at_same_time, alike = query.time <= own_time, settings.contexts[IN_ALIKE]
    history, times, occurrences, log_decay = index.history, index.history_time, index.occurrences, settings.log_decay
    slots, items, near = buffer.slot, buffer.items, buffer.near
    of_session, of_time, of_alike, cleared = zero, zero, zero, size
    for c in range(read):
        while cleared < min(size + 2 * NEAR_DISTANCE, len(near)):  # as many as may be new
            for s in range(NEAR_SOURCES):
                near[cleared, s] = 0
            cleared += 1
        ahead = at[min(c + AHEAD, read - 1)]
        prefetch_row(history, ahead - NEAR_DISTANCE)
        prefetch_row(history, ahead + NEAR_DISTANCE)
        if in_session:
            prefetch_row(times, ahead - NEAR_DISTANCE)
            prefetch_row(times, ahead + NEAR_DISTANCE)
        x, y = stop - 1 - c, at[c]
        fresh = _factor(log_decay, clock - occurrences[x, AT])
        first, last = y - min(NEAR_DISTANCE, occurrences[x, PLACE]), y + min(NEAR_DISTANCE, after[c])
        while history[last, CLOCK] >= clock:
            last -= 1
        common = _common_items(history, recent, members, recent[r], first, last) if alike else 0
        squared = np.float32(common * common)
        for other in range(first, last):
            z = other + (other >= y)  # not the occurrence itself; no branch: it could not be predicted
            weight = of_item * weights[NEAR_DISTANCE + z - y]
            if weight > 0:
                item = history[z, ITEM]
                if in_session:
                    apart = abs(times[z] - times[y])
                    of_session = scale if apart <= SESSION else zero
                    of_time = scale if at_same_time and apart <= 0 else zero
                of_alike = weight * squared
                slot = slots[item]
                is_new = slot == NONE
                slot = size if is_new else slot
                slots[item], items[slot] = slot, item
                near[slot, 0] += weight
                near[slot, 1] += weight * fresh
                near[slot, 2] += of_session
                near[slot, 3] += of_time
                near[slot, 4] += of_alike
                size += is_new
    return size


@compiled
def _weights_of_common(recent: Array) -> Array:
    """Returns the weight of each item but the last one in `similar`, once for items that occur again."""
    earlier = recent[1:]
    weights = np.zeros(len(earlier), np.float32)
    for r in range(len(earlier)):
        if not _occurs(earlier, r):
            weights[r] = NEAR_DECAY**r
    return weights


@compiled
def _members(items: Array) -> Array:
    """Returns uint64[MEMBER_WORDS] with a bit for each of the items: an item whose bit is not set is none of them."""
    members = np.zeros(MEMBER_WORDS, np.uint64)
    for item in items:
        members[(item >> 6) & (MEMBER_WORDS - 1)] |= np.uint64(1) << np.uint64(item & 63)
    return members


@compiled(inline="always")
def _may_be_member(members: Array, item: int) -> np.uint64:
    """Returns 1 or 0."""
    return (members[(item >> 6) & (MEMBER_WORDS - 1)] >> np.uint64(item & 63)) & np.uint64(1)


@compiled_without_counting
def _common_items(history: Array, recent: Array, members: Array, but: int, first: int, last: int) -> int:
    """Returns how many of these events have one of the recent items, `but` one; see `_members`."""
    possible, common = np.uint64(0), 0
    for z in range(first, last + 1):  # no branch: most often there is none
        item = history[z, ITEM]
        possible += _may_be_member(members, item) & np.uint64(item != but)
    if possible:
        for z in range(first, last + 1):
            item = history[z, ITEM]
            if _may_be_member(members, item) and item != but:
                for other in recent:
                    if other == item:
                        common += 1
                        break
    return common


@compiled_without_counting
def _sum_near(settings: CountSettings, buffer: CandidateBuffer, others: int, size: int) -> None:
    """Totals the sums of `near`, `session` and `alike`, and copies them to rows that other contexts have begun."""
    for s, context in enumerate((IN_NEAR, IN_NEAR, IN_SESSION, IN_SESSION, IN_ALIKE)):
        for slot in range(0 if settings.contexts[context] else size):
            buffer.near[slot, s] = 0
    plain, decayed, of_session, of_time, of_alike = 0.0, 0.0, 0.0, 0.0, 0.0
    for slot in range(size):
        plain += buffer.near[slot, 0]
        decayed += buffer.near[slot, 1]
        of_session += buffer.near[slot, 2]
        of_time += buffer.near[slot, 3]
        of_alike += buffer.near[slot, 4]
    for s, total in enumerate((plain, decayed, of_session, of_time, of_alike)):
        buffer.totals[NEAR + s] = total
    buffer.seen[others:size] = 0
    for slot in range(others):
        for s in range(NEAR_SOURCES):
            buffer.sums[slot, NEAR + s] = buffer.near[slot, s]


@compiled_without_counting
def add_rows(buffer: CandidateBuffer, others: int, slots: Array) -> None:
    """Fills the rows of `sums` of those of these candidates that have none yet: the slots from `others` on."""
    for slot in slots:
        if slot >= others:
            for s in range(CONTEXT_SOURCES):
                buffer.sums[slot, s] = 0
            for s in range(NEAR_SOURCES):
                buffer.sums[slot, NEAR + s] = buffer.near[slot, s]


@compiled_without_counting
def _locate_occurrences(index: EventIndex, stop: int, read: int, at: Array, after: Array) -> None:
    """Writes, for the `read` occurrences before `stop`, newest first: their places in the pool of histories, and how
    many events of that user are stored after them.
    """
    occurrences, users = index.occurrences, index.user_blocks
    for c in range(read):
        user, place = occurrences[stop - 1 - c, OF_USER], occurrences[stop - 1 - c, PLACE]
        at[c] = users[user, START] + place
        after[c] = users[user, LENGTH] - place - 1


@compiled_without_counting
def _read_followers(
    index: EventIndex,
    settings: CountSettings,
    query: Query,
    recent: Array,
    count: int,
    stop: int,
    read: int,
    buffer: CandidateBuffer,
    size: int,
) -> int:
    """Counts what followed the last item's occurrences before `stop`: contexts `last`, `last_two` and `after_gap`."""
    last, last_two = settings.contexts[IN_LAST], settings.contexts[IN_LAST_TWO] and count > 1
    after_gap, gap, clock = settings.contexts[IN_AFTER_GAP], gap_before(index, query), query.clock
    followed, sums, fast, decayed, recency, of_gap = 0, buffer.sums, 0.0, 0.0, 0.0, 0.0  # totals stay in registers
    occurrences, log_decay, fast_decay = index.occurrences, settings.log_decay, settings.fast_decay
    context_decay, gap_likeness = settings.context_decay, settings.gap_likeness
    for x in range(stop - 1, stop - 1 - read, -1):
        if occurrences[x, NEXT_AT] >= clock:
            continue
        slot = _slot_of(buffer, size, occurrences[x, NEXT])
        size = max(size, slot + 1)
        age = clock - occurrences[x, NEXT_AT]
        log_factor = _factor(log_decay, age)
        if last:
            fast_factor, rank_factor = _factor(fast_decay, age), np.float32(1.0 / (1 + followed))
            sums[slot, LAST] += np.float32(1)
            _add(buffer, slot, LAST_CONTEXT, _factor(context_decay, followed))
            sums[slot, LAST_FAST] += fast_factor
            sums[slot, LAST_LOG] += log_factor
            sums[slot, LAST_RECENCY] += rank_factor
            fast += fast_factor
            decayed += log_factor
            recency += rank_factor  # type: ignore[assignment]
            followed += 1
        if after_gap:
            likeness = _likeness(gap_likeness, gap, occurrences[x, NEXT_GAP])
            sums[slot, AFTER_GAP] += likeness
            of_gap += likeness
        if last_two and occurrences[x, BEFORE] == recent[1]:
            _add(buffer, slot, LAST_TWO, 1.0)
            _add(buffer, slot, LAST_TWO_RECENCY, 1.0 / buffer.totals[LAST_TWO])
            _add(buffer, slot, LAST_TWO_LOG, log_factor)
    totals = buffer.totals
    totals[LAST], totals[LAST_FAST], totals[LAST_LOG], totals[LAST_RECENCY] = followed, fast, decayed, recency
    totals[AFTER_GAP] = of_gap
    return size


@compiled_without_counting
def _read_earlier(
    index: EventIndex,
    settings: CountSettings,
    query: Query,
    r: int,
    stop: int,
    read: int,
    buffer: CandidateBuffer,
    size: int,
) -> int:
    """Counts what followed the occurrences before `stop` of the user's item number r > 0: context `earlier`."""
    weight, clock = np.float32(EARLIER_DECAY ** (r - 1)), query.clock
    occurrences, log_decay = index.occurrences, settings.log_decay
    plain, decayed = buffer.totals[EARLIER], buffer.totals[EARLIER_LOG]
    for x in range(stop - 1, stop - 1 - read, -1):
        if occurrences[x, NEXT_AT] >= clock:
            continue
        slot = _slot_of(buffer, size, occurrences[x, NEXT])
        size = max(size, slot + 1)
        fresh = weight * _factor(log_decay, clock - occurrences[x, NEXT_AT])
        buffer.sums[slot, EARLIER] += weight
        buffer.sums[slot, EARLIER_LOG] += fresh
        plain, decayed = plain + weight, decayed + fresh
    buffer.totals[EARLIER], buffer.totals[EARLIER_LOG] = plain, decayed
    return size


@compiled_without_counting
def _read_similar(
    index: EventIndex,
    settings: CountSettings,
    clock: int,
    stop: int,
    at: Array,
    recent: Array,
    members: Array,
    weights: Array,
    buffer: CandidateBuffer,
) -> None:
    """Counts what followed the last item of users with recent items in common; `at` are the places in histories."""
    earlier, occurrences, history = recent[1:], index.occurrences, index.history
    for c in range(len(at)):
        x = stop - 1 - c
        if occurrences[x, NEXT_AT] < clock:
            similarity = np.float32(0)
            for y in range(at[c] - min(occurrences[x, PLACE], SIMILAR_DISTANCE), at[c]):
                item = history[y, ITEM]
                if _may_be_member(members, item):
                    for r in range(len(earlier)):
                        similarity += weights[r] if earlier[r] == item else np.float32(0)
            if similarity > 0:
                slot, age = buffer.slot[occurrences[x, NEXT]], clock - occurrences[x, NEXT_AT]
                _add(buffer, slot, SIMILAR, similarity)
                _add(buffer, slot, SIMILAR_LOG, similarity * _factor(settings.log_decay, age))


@compiled_without_counting
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


@compiled_without_counting
def _set_habits(index: EventIndex, settings: CountSettings, query: Query, buffer: CandidateBuffer) -> None:
    """How often the user's latest events repeat the one before, in all and after gaps like this one, and how often
    their item occurs once; and the size of the session.
    """
    last, gap = index.user_blocks[query.user, START] + query.place - 1, gap_before(index, query)
    weight, events, repeats, once, session = 1.0, 0.0, 0.0, 0.0, 0
    alike, alike_repeats = 0.0, 0.0
    for age in range(min(query.place, HABIT_EVENTS)):
        x = last - age
        session += query.time - index.history_time[x] <= SESSION
        slot = buffer.slot[index.history[x, ITEM]]
        events += weight
        once += weight if slot != NONE and buffer.seen[slot] == 1 + age else 0.0
        if age + 1 < query.place:
            is_repeat = index.history[x, ITEM] == index.history[x - 1, ITEM]
            other = gap_code(index.history_time[x] - index.history_time[x - 1])
            of_gap = weight * _likeness(settings.gap_likeness, gap, other)
            alike += of_gap
            if is_repeat:
                repeats += weight
                alike_repeats += of_gap
        weight *= HABIT_DECAY
    features = buffer.query_features
    features[18] = repeats / events
    features[19] = (alike_repeats + 0.1) / (alike + 0.2)
    features[20] = once / events
    features[21] = 0.2 * np.log1p(session)


@compiled_without_counting
def _set_kind(index: EventIndex, query: Query, found: Array, buffer: CandidateBuffer) -> None:
    """How frequent and how old the user's last items are, on average; `found` as by `_find_occurrences`."""
    frequency, age, count = 0.0, 0.0, len(found)
    for r in range(count):
        frequency += _frequency(found[r, 1] - found[r, 0])
        age += _item_age(query.clock - index.occurrences[found[r, 0], AT])
    buffer.query_features[22], buffer.query_features[23] = frequency / count, age / count


@compiled(inline="always")
def _frequency(events: float) -> float:
    return 0.2 * np.log1p(events)


@compiled(inline="always")
def _item_age(events: float) -> float:
    return 0.1 * np.log1p(events)


@compiled_without_counting(error_model="numpy")
def item_features(
    index: EventIndex,
    settings: CountSettings,
    query: Query,
    buffer: CandidateBuffer,
    slots: Array,
    found: Array,
    out: Array,
) -> None:
    """Writes out[ITEM_FEATURES, n or more] of the candidates in `slots`: when, how often and after which gaps the
    user and anyone met the item, and how it differs from the user's last items. `found` int64[3, n] is scratch.
    """
    end, n = index.user_blocks[query.user, START] + query.place, len(slots)
    out[:] = 0
    for j in range(n):
        age = abs(buffer.seen[slots[j]]) - 1
        if age >= 0:
            elapsed = query.time - index.history_time[end - 1 - age]
            out[SEEN, j] = 1.0
            out[1, j] = age
            out[2, j] = max(elapsed, 0.0)
            out[3, j] = 1.0 if elapsed <= 0 else 0.0
            out[4, j] = 1.0 if age == 0 else 0.0
            out[5, j] = 1.0 if buffer.seen[slots[j]] > 0 else 0.0
    _staleness(index, settings, query, buffer, slots, found, out[STALENESS:GAPS], out[GAPS:KIND])
    if query.place > 0:
        _compare_kind(index, query, index.history[end - 1, ITEM], buffer, n, out[STALENESS:GAPS], out[KIND:])
    for row, scale in LOGARITHMS:
        values, factor = out[row], np.float32(scale)
        for j in range(out.shape[1]):
            values[j] = factor * log(np.float32(1) + values[j])


@compiled_without_counting
def _staleness(
    index: EventIndex,
    settings: CountSettings,
    query: Query,
    buffer: CandidateBuffer,
    slots: Array,
    found: Array,
    out: Array,
    of_gaps: Array,
) -> None:
    """Writes the features that are about anyone, without their logarithms; and of the item's latest events the share
    after gaps like this one, and of first events of a user.
    """
    n, gap, occurrences = len(slots), gap_before(index, query), index.occurrences
    gap_likeness, clock = settings.gap_likeness, query.clock
    starts, stops, at = found[0], found[1], found[2]
    for j in range(n):
        prefetch_row(index.item_blocks, buffer.items[slots[j]])
    for j in range(n):
        item = buffer.items[slots[j]]
        starts[j] = index.item_blocks[item, START]
        stops[j] = starts[j] + index.item_blocks[item, LENGTH]
        prefetch_row(occurrences, stops[j] - 1)
        for x in range(max(starts[j], stops[j] - PROFILE), stops[j], 2):  # two to a cache line
            prefetch_row(occurrences, x)
        prefetch_row(occurrences, starts[j])
    for j in range(n):
        stops[j] = first_from(occurrences, AT, starts[j], stops[j], clock)
        prefetch_row(index.user_blocks, occurrences[stops[j] - 1, OF_USER])
    for j in range(n):
        x = stops[j] - 1
        at[j] = index.user_blocks[occurrences[x, OF_USER], START] + occurrences[x, PLACE]
        prefetch_row(index.history_time, at[j])
    for j in range(n):
        start, stop, elapsed = starts[j], stops[j], query.time - index.history_time[at[j]]
        out[0, j] = clock - occurrences[stop - 1, AT]
        out[1, j] = max(elapsed, 0.0)
        out[2, j] = stop - start
        out[3, j] = clock - occurrences[start, AT]
        out[4, j] = clock - occurrences[max(start, stop - 8), AT]
        out[5, j] = 1.0 if elapsed <= 0 else 0.0
        out[6, j] = 1.0 if occurrences[stop - 1, OF_USER] == query.user else 0.0
        alike, firsts, read = np.float32(0), np.float32(0), min(stop - start, PROFILE)
        for x in range(stop - read, stop):
            alike += _likeness(gap_likeness, gap, occurrences[x, GAP])
            firsts += np.float32(occurrences[x, GAP] == NONE)
        of_gaps[0, j], of_gaps[1, j] = alike / read, firsts / read


@compiled_without_counting
def _compare_kind(
    index: EventIndex, query: Query, last: int, buffer: CandidateBuffer, n: int, of_anyone: Array, out: Array
) -> None:
    """Writes how n candidates differ from the user's last items, on average and from the last one, in frequency and
    age; `of_anyone` are the features by `_staleness`.
    """
    start = index.item_blocks[last, START]
    stop = first_from(index.occurrences, AT, start, start + index.item_blocks[last, LENGTH], query.clock)
    frequency, first = _frequency(stop - start), query.clock - index.occurrences[start, AT]
    for j in range(n):
        of_item, age = _frequency(of_anyone[2, j]), of_anyone[3, j]
        out[0, j] = of_item - buffer.query_features[22]
        out[1, j] = abs(out[0, j])
        out[2, j] = abs(of_item - frequency)
        out[3, j] = abs(_item_age(age) - buffer.query_features[23])
        out[4, j] = _item_age(abs(age - first))
