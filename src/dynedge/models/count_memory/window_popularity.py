"""Popularity of a window's items at any of its events, counted once for all threads: the bits of `count_popularity`.

Items are counted apart from each other, so each thread counts those that it owns, in the order of the events. It
notes an item's count after each event and leaves the counts of the index as they were before the window. Rescalings
are applied to a count when it is read. So the count before any event is that after the item's latest event in the
window, or that before the window, rescaled as often as counts have been since. `finish` then writes the counts at
the window's end.

Legend: n events of a window, m of them sampled, I items, H half-lives, R rescalings of a half-life in the window.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.models.count_memory.event_index import NONE, EventIndex
from dynedge.models.count_memory.popularity import (
    NOT_LISTED,
    RESCALE_ABOVE,
    list_counted,
    rescale_listed,
    rescaled_by,
)
from dynedge.ops.prefetch_row import prefetch_row
from dynedge.ops.thread_pool import run_side_by_side
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

AHEAD = 16  # events or items whose rows are fetched before they are read
OWNED = 6  # binary logarithm of the number of neighbouring items that a thread owns together
MIN_EVENTS = 4096  # of a window that is counted in threads


class WindowPopularity(NamedTuple):
    """What the counts before any event of a window follow from."""

    clock: int  # of the first event
    counts: Array  # float32[I, H]: before the window
    latest: Array  # int32[I]: clock of an item's latest event in the window; below that of the first event: none
    after: Array  # float32[n, H]: count of each event's item right after the event
    times_rescaled: Array  # int32[n, H]: how often counts were rescaled in the window before the event
    divisors: Array  # float64[H, R]: by which counts are rescaled
    rescalings: Array  # int64[H]: their number in the window
    sampled_total: Array  # float64[m, H]: sum of all counts before a sampled event
    sampled_rescaled: Array  # int64[m, H]: how often counts were rescaled in the window before a sampled event


class PopularityCounter:
    """Counts one window after another; later windows of the same index are counted faster than the first one."""

    def __init__(self) -> None:
        self._at: tuple[Tensor | None, int, int] = None, 0, 0  # popularity, clock and threads of what follows
        self._latest: list[Array] = []  # of the counter itself, then of threads that read
        self._listed: list[tuple[Array, Array]] = []  # by owner: int32[H, items] and their numbers, as in Popularity
        self._window: tuple[WindowPopularity, Array, Array, Array] | None = None

    def count(
        self, index: EventIndex, popularity: Tensor, clock: int, growth: Array, item: Array, sampled: Array
    ) -> WindowPopularity:
        """Counts events from `clock` on; `sampled` int64[m], ascending, are those whose totals are noted."""
        threads = torch.get_num_threads()
        is_next = self._at[0] is popularity and self._at[1:] == (clock, threads)
        if not is_next or len(self._latest[0]) != len(popularity):
            self._reset(len(popularity), popularity.shape[1], threads)
        half_lives, n = popularity.shape[1], len(item)
        weight, total = index.event_weight.copy(), index.popularity_total.copy()
        divisors, noted = (
            np.empty((half_lives, n)),
            (np.empty((len(sampled), half_lives)), np.empty((len(sampled), half_lives), np.int64)),
        )
        rescalings = _weigh_events(weight, total, growth, n, sampled, divisors, *noted)
        after, times = np.empty((n, half_lives), np.float32), np.empty((n, half_lives), np.int32)
        window = WindowPopularity(
            clock, index.popularity, self._latest[0], after, times, divisors, rescalings, *noted
        )
        self._run(n, partial(_count_events, window, item, growth, index.event_weight))
        self._window = window, item, weight, total
        self._at = popularity, clock + n, threads
        return window

    def finish(self, index: EventIndex) -> None:
        """Writes the popularity at the end of the window."""
        assert self._window is not None
        window, item, weight, total = self._window

        def write(owner: int, owners: int) -> None:
            _write_counts(window, item, *self._listed[owner], owner, owners)

        self._run(len(item), write)
        index.event_weight[:], index.popularity_total[:] = weight, total
        self._window = None

    def readers(self, count: int) -> list[Array]:
        """Returns the scratch `latest` of `counts_before` for each of `count` threads."""
        while len(self._latest) <= count:
            self._latest.append(np.full_like(self._latest[0], NONE))
        return self._latest[1 : count + 1]

    def _reset(self, items: int, half_lives: int, threads: int) -> None:
        owners = 1 << (threads - 1).bit_length()
        runs = -(-items >> OWNED)  # of items that have the same owner
        owned = -(-runs // owners) << OWNED
        self._latest = [np.full(items, NONE, np.int32)]
        self._listed = [
            (np.empty((half_lives, owned), np.int32), np.full(half_lives, NOT_LISTED)) for _ in range(owners)
        ]

    def _run(self, events: int, work: Callable[[int, int], None]) -> None:
        """Calls work(owner, owners) for all of them, in threads if there are many events."""
        owners = len(self._listed)
        remaining = iter(range(owners))

        def run(thread: int) -> None:
            for owner in remaining:
                work(owner, owners)

        run_side_by_side(run, owners if events >= MIN_EVENTS else 1)


@compiled
def _weigh_events(
    weight: Array,
    total: Array,
    growth: Array,
    events: int,
    sampled: Array,
    divisors: Array,
    sampled_total: Array,
    sampled_rescaled: Array,
) -> Array:
    """Advances weight and total past the events; writes the divisors of the rescalings and returns their number."""
    rescalings, m = np.zeros(len(growth), np.int64), 0
    for k in range(events):
        if m < len(sampled) and sampled[m] == k:
            sampled_total[m], sampled_rescaled[m] = total, rescalings
            m += 1
        for h in range(len(growth)):
            weight[h] *= growth[h]
            total[h] += weight[h]
            if weight[h] > RESCALE_ABOVE:
                total[h] /= weight[h]
                divisors[h, rescalings[h]] = weight[h]
                rescalings[h] += 1
                weight[h] = 1.0
    return rescalings


@compiled(inline="always")
def _owner(item: int, owners: int) -> int:
    """`owners` is a power of two."""
    return (item >> OWNED) & (owners - 1)


@compiled
def _count_events(
    window: WindowPopularity, item: Array, growth: Array, weight: Array, owner: int, owners: int
) -> None:
    """Writes `after`, `times_rescaled` and `latest` of the owner's items; `weight` is that before the window."""
    counts, latest, after, clock = window.counts, window.latest, window.after, window.clock
    weight, times, divisors = weight.copy(), np.zeros(len(growth), np.int32), window.divisors
    for k in range(len(item)):
        ahead = item[min(k + AHEAD, len(item) - 1)]
        if _owner(ahead, owners) == owner:
            prefetch_row(latest, ahead)
            prefetch_row(counts, ahead)
        for h in range(len(growth)):
            weight[h] *= growth[h]
        if _owner(item[k], owners) == owner:
            i, p = item[k], latest[item[k]] - clock
            for h in range(len(growth)):
                before = counts[i, h] if p < 0 else after[p, h]
                first = 0 if p < 0 else window.times_rescaled[p, h]
                after[k, h] = rescaled_by(before, divisors[h], first, times[h]) + weight[h]
                window.times_rescaled[k, h] = times[h]
            latest[i] = clock + k
        for h in range(len(growth)):
            if weight[h] > RESCALE_ABOVE:
                times[h] += 1
                weight[h] = 1.0


@compiled_without_counting
def _write_counts(
    window: WindowPopularity, item: Array, listed: Array, num_listed: Array, owner: int, owners: int
) -> None:
    """Writes the counts at the window's end of the owner's items, and lists those that are not 0."""
    counts, after, latest = window.counts, window.after, window.latest
    for h in range(len(window.rescalings)):
        if window.rescalings[h]:
            if num_listed[h] == NOT_LISTED:
                num_listed[h] = _list_owned(counts, h, listed[h], owner, owners)
            divisors = window.divisors[h, : window.rescalings[h]]
            num_listed[h] = rescale_listed(counts, h, divisors, listed[h], num_listed[h])
    for k in range(len(item)):
        i = item[k]
        if _owner(i, owners) == owner and latest[i] == window.clock + k:
            for h in range(len(window.rescalings)):
                first, last = window.times_rescaled[k, h], window.rescalings[h]
                count = rescaled_by(after[k, h], window.divisors[h], first, last)
                if num_listed[h] != NOT_LISTED and counts[i, h] == 0 and count > 0:
                    listed[h, num_listed[h]] = i
                    num_listed[h] += 1
                counts[i, h] = count


@compiled_without_counting
def _list_owned(counts: Array, h: int, listed: Array, owner: int, owners: int) -> int:
    """Lists the owner's items whose count is not 0; returns their number."""
    size = 0
    for start in range(owner << OWNED, len(counts), owners << OWNED):
        size = list_counted(counts, h, start, min(start + (1 << OWNED), len(counts)), listed, size)
    return size


@compiled_without_counting
def pass_events(latest: Array, clock: int, item: Array, start: int, stop: int) -> None:
    """Notes the latest events of items among the events start to stop - 1 of a window that begins at `clock`."""
    for k in range(start, stop):
        latest[item[k]] = clock + k


@compiled_without_counting
def counts_before(window: WindowPopularity, m: int, items: Array, latest: Array, out: Array) -> None:
    """Writes out[items, H]: counts before sampled event m; `latest`: of the events before, by `pass_events`."""
    times, size, divisors = window.sampled_rescaled[m], len(items), window.divisors
    for j in range(size):
        ahead = items[min(j + AHEAD, size - 1)]
        prefetch_row(latest, ahead)
        prefetch_row(window.counts, ahead)
        p = latest[items[j]] - window.clock
        counts = window.counts[items[j]] if p < 0 else window.after[p]
        for h in range(len(times)):
            out[j, h] = counts[h]
        for h in range(len(times)):
            first = 0 if p < 0 else window.times_rescaled[p, h]
            if first < times[h] and out[j, h] > 0:
                out[j, h] = rescaled_by(out[j, h], divisors[h], first, times[h])
