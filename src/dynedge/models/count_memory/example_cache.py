"""Training examples of every window, and the state after the last one, collected once and cached for later epochs.

Neither depends on anything that is learned, so later epochs read the same examples and append nothing. On a GPU the
examples stay in its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
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


# (window, its number, examples to collect, state): collects the examples and appends the window's events to the state
Collect = Callable[[Window, int, int, State], Examples]


class ExampleCache:
    """Collects examples when a log is first iterated over, `examples` in all, and keeps those of the last log."""

    def __init__(
        self, start: Callable[[], State], collect: Collect, observe: Callable[[Window, State], None], examples: int
    ) -> None:
        self._start, self._collect, self._observe, self._num_examples = start, collect, observe, examples
        self._cached: tuple[EventLog, list[range], dict[int, WindowExamples]] | None = None

    def batches(self, log: EventLog, windows: Sequence[range], numbers: range) -> Iterator[WindowExamples]:
        """Yields the examples of the windows with these numbers.

        The first time the examples of all windows are collected, in a thread ahead of the reader.
        """
        if self._cached is None or self._cached[0] is not log or self._cached[1] != list(windows):
            yield from islice(self._collect_all(log, list(windows)), numbers.start, numbers.stop)
        else:
            yield from map(self._cached[2].__getitem__, numbers)

    def collect(self, log: EventLog, windows: Sequence[range], numbers: Collection[int]) -> None:
        """Collects the examples of the windows with these numbers; the events of the others are counted only."""
        for _ in self._collect_all(log, list(windows), numbers):
            pass

    def _collect_all(
        self, log: EventLog, ranges: list[range], numbers: Collection[int] | None = None
    ) -> Iterator[WindowExamples]:
        wanted = range(len(ranges)) if numbers is None else numbers
        state, collected = self._start(), dict[int, WindowExamples]()
        per_window = -(-self._num_examples // len(ranges))

        def collect(number: int) -> WindowExamples | None:
            window = Window(log, ranges[number])
            if number not in wanted:
                self._observe(window, state)
                return None
            examples = self._collect(window, number, per_window, state)
            return WindowExamples(Window(log, ranges[number]), examples, state if number == len(ranges) - 1 else None)

        last = max(wanted, default=-1)
        for number, examples in enumerate(prefetch_map(collect, range(last + 1), threads=1)):
            if examples is not None:
                collected[number] = examples
            if number == last:
                self._cached = log, ranges, collected
            if examples is not None:
                yield examples
