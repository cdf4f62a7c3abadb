"""Windows: contiguous runs of a log's events, each trained in one step."""

from __future__ import annotations

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


def cut_by_work(work: Array, count: int) -> list[range]:
    """Splits positions into contiguous windows of about equal work, given that of each position, above 0."""
    if len(work) < count:
        return cut_windows(len(work), count)
    done = np.cumsum(work)
    stops = np.searchsorted(done, done[-1] * np.arange(1, count + 1) / count) + 1
    number = np.arange(count)
    stops = np.maximum.accumulate(stops - number) + number  # at least one position each,
    stops = np.minimum(stops, len(work) - number[::-1])  # also in those that follow
    return [range(start, stop) for start, stop in zip([0, *stops[:-1].tolist()], stops.tolist(), strict=True)]


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
