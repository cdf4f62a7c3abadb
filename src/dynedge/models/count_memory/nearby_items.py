"""Contexts `near`, `session` and `alike`: items before and after the latest occurrences of the user's last items."""

from __future__ import annotations

import numpy as np

from dynedge.models.count_memory.candidate_buffer import NEAR, NEAR_SOURCES, CandidateBuffer, factor_at
from dynedge.models.count_memory.config import CONTEXTS
from dynedge.models.count_memory.contexts import NEAR_DECAY, NEAR_DISTANCE, NEAR_POWER, SESSION, CountSettings
from dynedge.models.count_memory.event_index import AT, CLOCK, ITEM, NONE, PLACE, START, EventIndex
from dynedge.models.count_memory.queries import Query
from dynedge.ops.prefetch_row import prefetch_row
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

AHEAD = 8  # rows that are fetched before they are read
MEMBER_WORDS = 64  # of 64 bits, by which most items are told from a few ones
IN_NEAR, IN_SESSION, IN_ALIKE = (CONTEXTS.index(name) for name in ("near", "session", "alike"))


@compiled_without_counting
def read_near(
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
        fresh = factor_at(log_decay, clock - occurrences[x, AT])
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
def member_bits(items: Array) -> Array:
    """Returns uint64[MEMBER_WORDS] with a bit for each of the items: an item whose bit is not set is none of them."""
    members = np.zeros(MEMBER_WORDS, np.uint64)
    for item in items:
        members[(item >> 6) & (MEMBER_WORDS - 1)] |= np.uint64(1) << np.uint64(item & 63)
    return members


@compiled(inline="always")
def may_be_member(members: Array, item: int) -> np.uint64:
    """Returns 1 or 0."""
    return (members[(item >> 6) & (MEMBER_WORDS - 1)] >> np.uint64(item & 63)) & np.uint64(1)


@compiled_without_counting
def _common_items(history: Array, recent: Array, members: Array, but: int, first: int, last: int) -> int:
    """Returns how many of these events have one of the recent items, `but` one; see `member_bits`."""
    possible, common = np.uint64(0), 0
    for z in range(first, last + 1):  # no branch: most often there is none
        item = history[z, ITEM]
        possible += may_be_member(members, item) & np.uint64(item != but)
    if possible:
        for z in range(first, last + 1):
            item = history[z, ITEM]
            if may_be_member(members, item) and item != but:
                for other in recent:
                    if other == item:
                        common += 1
                        break
    return common


@compiled_without_counting
def sum_near(settings: CountSettings, buffer: CandidateBuffer, others: int, size: int) -> None:
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
