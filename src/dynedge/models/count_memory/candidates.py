"""Reading the event index: the items that the contexts of a query lead to, how often and how recently.

A query is a user, a time and a clock: only events before the clock are read. Its candidates are the items of all
contexts together (candidate_buffer.py).

What is read lies far apart in memory, so a query's time is that of its cache misses: rows are fetched ahead, and
short loops let the processor fetch several at once.
"""

from __future__ import annotations

import numpy as np

from dynedge.models.count_memory.candidate_buffer import (
    CandidateBuffer,
    add_count,
    factor_at,
    gap_before,
    likeness_of_gaps,
    slot_of,
)
from dynedge.models.count_memory.config import CONTEXTS
from dynedge.models.count_memory.contexts import (
    EARLIER_DECAY,
    EARLIER_ITEMS,
    ELAPSED_POWER,
    NEAR_DECAY,
    PEER_ITEMS,
    PROFILE,
    RECENT_ITEMS,
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
)
from dynedge.models.count_memory.event_index import USER as OF_USER
from dynedge.models.count_memory.features import set_habits, set_kind, set_query_features
from dynedge.models.count_memory.nearby_items import (
    IN_ALIKE,
    IN_NEAR,
    IN_SESSION,
    may_be_member,
    member_bits,
    read_near,
    sum_near,
)
from dynedge.models.count_memory.queries import Query
from dynedge.ops.prefetch_row import prefetch_row
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

AHEAD = 8  # rows that are fetched before they are read

IN_USER, IN_USER_LAST, IN_ELAPSED, IN_LAST, IN_LAST_TWO, IN_AFTER_GAP, IN_SIMILAR, IN_EARLIER = range(8)
IN_PEERS, IN_RECENT, IN_NOW = range(len(CONTEXTS) - 3, len(CONTEXTS))
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
ELAPSED, AFTER_GAP, NOW = SOURCE["elapsed", "plain"], SOURCE["after_gap", "plain"], SOURCE["now", "log-decayed"]
PEERS, PEERS_LOG = SOURCE["peers", "plain"], SOURCE["peers", "log-decayed"]
RECENT, RECENT_CONTEXT = SOURCE["recent", "plain"], SOURCE["recent", "context-decayed"]


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
        members, weights = member_bits(recent[:count]), _weights_of_common(recent[:count])
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
                    size = read_near(
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
            sum_near(settings, buffer, others, size)
        set_query_features(index, query, recent, count, buffer)
        set_habits(index, settings, query, buffer)
        set_kind(index, query, stops, buffer)
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
        slot = slot_of(buffer, size, item)
        size = max(size, slot + 1)
        if recent:
            add_count(buffer, slot, RECENT, 1.0)
            add_count(buffer, slot, RECENT_CONTEXT, factor_at(settings.recent_decay, age))
        if now and buffer.sums[slot, NOW] == 0:
            start, of_item = items[item, START], np.float32(0)
            stop = first_from(occurrences, AT, start, start + items[item, LENGTH], clock)
            for x in range(max(start, stop - PROFILE), stop):
                alike = likeness_of_gaps(gap_likeness, gap, occurrences[x, GAP])
                weight = alike * factor_at(log_decay, clock - occurrences[x, AT])
                of_item += weight
                total += weight
            buffer.sums[slot, NOW] = of_item
    buffer.totals[NOW] = total
    return size


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
        slot = slot_of(buffer, size, history[x, ITEM])
        size = max(size, slot + 1)
        is_new = buffer.seen[slot] == 0
        buffer.seen[slot] = 1 + age if is_new else -abs(buffer.seen[slot])
        distinct += is_new
        if own:
            add_count(buffer, slot, USER, 1.0)
            add_count(buffer, slot, USER_CONTEXT, factor_at(settings.context_decay, age))
            add_count(buffer, slot, USER_LOG, factor_at(settings.log_decay, query.clock - index.history[x, CLOCK]))
            if is_new:
                add_count(buffer, slot, USER_RECENCY, 1.0 / (1 + age))
        if elapsed:
            seconds = max(query.time - index.history_time[x], 0.0)
            add_count(buffer, slot, ELAPSED, (1 + seconds) ** -ELAPSED_POWER)
        if after and age > 0 and history[x, ITEM] == last:
            slot = buffer.slot[history[x + 1, ITEM]]
            matches += 1
            add_count(buffer, slot, USER_LAST, 1.0)
            add_count(buffer, slot, USER_LAST_RECENCY, 1.0 / matches)
            if x > start and history[x - 1, ITEM] == history[end - 2, ITEM]:
                add_count(buffer, slot, USER_LAST_TWO, 1.0)
                if x > start + 1 and history[x - 2, ITEM] == history[end - 3, ITEM]:
                    add_count(buffer, slot, USER_LAST_THREE, 1.0)
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
                slot = slot_of(buffer, size, index.history[now, ITEM])
                size = max(size, slot + 1)
                add_count(buffer, slot, PEERS, weight)
                add_count(
                    buffer, slot, PEERS_LOG, weight * factor_at(settings.log_decay, clock - index.occurrences[x, AT])
                )
    if r == 0:
        buffer.query_features[8] = 0.2 * np.log1p(stop - start)
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
        slot = slot_of(buffer, size, occurrences[x, NEXT])
        size = max(size, slot + 1)
        age = clock - occurrences[x, NEXT_AT]
        log_factor = factor_at(log_decay, age)
        if last:
            fast_factor, rank_factor = factor_at(fast_decay, age), np.float32(1.0 / (1 + followed))
            sums[slot, LAST] += np.float32(1)
            add_count(buffer, slot, LAST_CONTEXT, factor_at(context_decay, followed))
            sums[slot, LAST_FAST] += fast_factor
            sums[slot, LAST_LOG] += log_factor
            sums[slot, LAST_RECENCY] += rank_factor
            fast += fast_factor
            decayed += log_factor
            recency += rank_factor  # type: ignore[assignment]
            followed += 1
        if after_gap:
            likeness = likeness_of_gaps(gap_likeness, gap, occurrences[x, NEXT_GAP])
            sums[slot, AFTER_GAP] += likeness
            of_gap += likeness
        if last_two and occurrences[x, BEFORE] == recent[1]:
            add_count(buffer, slot, LAST_TWO, 1.0)
            add_count(buffer, slot, LAST_TWO_RECENCY, 1.0 / buffer.totals[LAST_TWO])
            add_count(buffer, slot, LAST_TWO_LOG, log_factor)
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
        slot = slot_of(buffer, size, occurrences[x, NEXT])
        size = max(size, slot + 1)
        fresh = weight * factor_at(log_decay, clock - occurrences[x, NEXT_AT])
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
                if may_be_member(members, item):
                    for r in range(len(earlier)):
                        similarity += weights[r] if earlier[r] == item else np.float32(0)
            if similarity > 0:
                slot, age = buffer.slot[occurrences[x, NEXT]], clock - occurrences[x, NEXT_AT]
                add_count(buffer, slot, SIMILAR, similarity)
                add_count(buffer, slot, SIMILAR_LOG, similarity * factor_at(settings.log_decay, age))
