"""Features of a query and of its candidates: how recently, how often and after which gaps items were met.

Legend: C candidates, n of them that the rescaling network sees.
"""

from __future__ import annotations

import numpy as np

from dynedge.models.count_memory.candidate_buffer import CandidateBuffer, gap_before, likeness_of_gaps
from dynedge.models.count_memory.contexts import HABIT_DECAY, HABIT_EVENTS, PROFILE, SESSION, SOURCE, CountSettings
from dynedge.models.count_memory.event_index import (
    AT,
    CLOCK,
    GAP,
    ITEM,
    LENGTH,
    NONE,
    PLACE,
    START,
    EventIndex,
    first_from,
    gap_code,
)
from dynedge.models.count_memory.event_index import USER as OF_USER
from dynedge.models.count_memory.queries import Query
from dynedge.ops.prefetch_row import prefetch_row
from dynedge.ops.vector_math import log
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

ITEM_FEATURES = 20  # of an item: how recently, how often and after which gaps the user and anyone met it
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

USER_LAST, USER_LAST_TWO = SOURCE["user_last", "plain"], SOURCE["user_last", "last two"]
LAST, LAST_FAST, LAST_LOG = (SOURCE["last", kind] for kind in ("plain", "fast", "log-decayed"))
LAST_TWO, SIMILAR, EARLIER = (SOURCE[context, "plain"] for context in ("last_two", "similar", "earlier"))
PEERS_LOG = SOURCE["peers", "log-decayed"]


@compiled_without_counting
def set_query_features(index: EventIndex, query: Query, recent: Array, count: int, buffer: CandidateBuffer) -> None:
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
def set_habits(index: EventIndex, settings: CountSettings, query: Query, buffer: CandidateBuffer) -> None:
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
            of_gap = weight * likeness_of_gaps(settings.gap_likeness, gap, other)
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
def set_kind(index: EventIndex, query: Query, found: Array, buffer: CandidateBuffer) -> None:
    """How frequent and how old the user's last items are, on average; `found` as by `_find_occurrences`."""
    frequency, age, count = 0.0, 0.0, len(found)
    for r in range(count):
        frequency += _frequency(found[r, 1] - found[r, 0])
        age += _item_age(query.clock - index.occurrences[found[r, 0], AT])
    buffer.query_features[22], buffer.query_features[23] = frequency / count, age / count


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
            alike += likeness_of_gaps(gap_likeness, gap, occurrences[x, GAP])
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


@compiled(inline="always")
def _frequency(events: float) -> float:
    return 0.2 * np.log1p(events)


@compiled(inline="always")
def _item_age(events: float) -> float:
    return 0.1 * np.log1p(events)
