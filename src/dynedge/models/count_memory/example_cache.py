"""Training examples of every window, and the state after the last one, collected once and cached for later epochs.

Neither depends on anything that is learned, so later epochs read the same examples and append nothing. On a GPU the
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


# (window, its number, examples to collect, state): collects the examples and appends the window's events to the state
Collect = Callable[[Window, int, int, State], Examples]


class ExampleCache:
    """Collects examples when a log is first iterated over, `examples` in all, and keeps those of the last log."""

    def __init__(self, start: Callable[[], State], collect: Collect, examples: int) -> None:
        self._start, self._collect, self._num_examples = start, collect, examples
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
        per_window = -(-self._num_examples // len(ranges))

        def collect(number: int) -> WindowExamples:
            window = Window(log, ranges[number])
            examples = self._collect(window, number, per_window, state)
            return WindowExamples(Window(log, ranges[number]), examples, state if number == len(ranges) - 1 else None)

        for examples in prefetch_map(collect, range(len(ranges)), threads=1):
            collected.append(examples)
            if len(collected) == len(ranges):
                self._cached = log, ranges, collected
            yield examples
