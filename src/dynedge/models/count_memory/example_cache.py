"""Training examples of every window, and the counts after the last one, collected once and cached for later epochs.

Neither depends on anything that is learned, so later epochs read the same examples and count nothing. On a GPU the
examples stay in its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import State
from dynedge.models.count_memory.collect_examples import Examples
from dynedge.utils.prefetch import prefetch_map


@dataclass(frozen=True, eq=False)
class WindowExamples:
    """The examples of one training window."""

    window: Window
    examples: Examples
    end_state: State | None  # after the last window; None for all others


# (window, its number, how many of its first events are older than the counted ones, examples to collect, state):
# collects the examples and counts the window's events in the state
Collect = Callable[[Window, int, int, int, State], Examples]


class ExampleCache:
    """Collects examples when a log is first iterated over, and keeps those of the last log.

    `counted_events` is how many of the last training events are counted in all tables, `examples` the number of
    examples in all.
    """

    def __init__(self, start: Callable[[], State], collect: Collect, counted_events: int, examples: int) -> None:
        self._start, self._collect = start, collect
        self._counted_events, self._num_examples = counted_events, examples
        self._cached: tuple[EventLog, list[range], list[WindowExamples]] | None = None

    def batches(self, log: EventLog, windows: Sequence[range], first: int) -> Iterator[WindowExamples]:
        """Yields the examples of the windows from number `first` on.

        The first time the examples of all windows are collected, in a thread ahead of the reader.
        """
        if self._cached is None or self._cached[0] is not log or self._cached[1] != list(windows):
            yield from islice(self._collect_all(log, list(windows)), first, None)
        else:
            yield from self._cached[2][first:]

    def _collect_all(self, log: EventLog, ranges: list[range]) -> Iterator[WindowExamples]:
        state, collected = self._start(), list[WindowExamples]()
        begin = max(ranges[-1].stop - self._counted_events, 0)
        per_window = -(-self._num_examples // max(sum(events.stop > begin for events in ranges), 1))

        def collect(number: int) -> WindowExamples:
            events = ranges[number]
            window = Window(log, events)
            older = min(max(begin - events.start, 0), len(window))
            examples = self._collect(window, number, older, per_window, state)
            return WindowExamples(Window(log, events), examples, state if number == len(ranges) - 1 else None)

        for examples in prefetch_map(collect, range(len(ranges)), threads=1):
            collected.append(examples)
            if len(collected) == len(ranges):
                self._cached = log, ranges, collected
            yield examples
