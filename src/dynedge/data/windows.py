"""Windows: contiguous runs of a log's events, each trained in one step."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dynedge.data.log import EventLog
from dynedge.errors import UsageError
from dynedge.utils.array_type import Array


def cut_windows(events: int, count: int) -> list[range]:
    """Splits n = `events` positions into W = `count` contiguous windows; window w is [⌊nw/W⌋, ⌊n(w+1)/W⌋)."""
    if count < 1:
        raise UsageError(f"--windows {count} should be at least 1.")
    return [range(events * w // count, events * (w + 1) // count) for w in range(count)]


def cut_by_work(work: Array, events: int, count: int) -> list[range]:
    """Splits positions into contiguous windows of about equal work; all arithmetic is in whole numbers.

    `work` int64[B], above 0, is that of an event in each of B parts of the positions, cut as by `cut_windows`.
    """
    if events < count or not len(work):
        return cut_windows(events, count)
    starts = events * np.arange(len(work) + 1) // len(work)
    done = np.concatenate(([0], np.cumsum(work * np.diff(starts))))
    target = [int(done[-1]) * w // count for w in range(count + 1)]
    part = np.minimum(np.searchsorted(done, target, side="right") - 1, len(work) - 1)
    number = np.arange(count + 1)
    ends = starts[part] + (np.array(target) - done[part]) // work[part]
    ends = np.maximum.accumulate(ends - number) + number  # at least one position each,
    ends = np.minimum(ends, events - number[::-1]).tolist()  # also in those that follow
    return [range(start, stop) for start, stop in itertools.pairwise([0, *ends[1:-1], events])]


@dataclass(frozen=True, eq=False)
class Window:
    """A contiguous run of a log's events; its columns are copied into memory on first use."""

    log: EventLog
    events: range

    def __len__(self) -> int:
        return len(self.events)

    def _column(self, column: Array) -> Array:
        return np.array(column[self.events.start : self.events.stop])

    @cached_property
    def user(self) -> Array:
        return self._column(self.log.user)

    @cached_property
    def item(self) -> Array:
        return self._column(self.log.item)

    @cached_property
    def time(self) -> Array:
        return self._column(self.log.time)

    @cached_property
    def features(self) -> Array:
        return self._column(self.log.features)


@dataclass(frozen=True, eq=False)
class MirroredWindow(Window):
    """A window in which every event (a, b) is followed by (b, a) at the same time, for logs of one population."""

    def __len__(self) -> int:
        return 2 * len(self.events)

    @cached_property
    def user(self) -> Array:
        return _interleaved(self._column(self.log.user), self._column(self.log.item))

    @cached_property
    def item(self) -> Array:
        return _interleaved(self._column(self.log.item), self._column(self.log.user))

    @cached_property
    def time(self) -> Array:
        return np.repeat(self._column(self.log.time), 2)

    @cached_property
    def features(self) -> Array:
        return np.repeat(self._column(self.log.features), 2, axis=0)


def _interleaved(even: Array, odd: Array) -> Array:
    both = np.empty(2 * len(even), even.dtype)
    both[::2], both[1::2] = even, odd
    return both
