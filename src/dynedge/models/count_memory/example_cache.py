"""Training examples of every window, and the state after the last one, collected once and cached for later epochs.

Neither depends on anything that is learned, so later epochs read the same examples and append nothing. On a GPU the
examples stay in its memory. The first epoch reads them in time order, as they are collected. Later ones read them
shuffled: in time order an epoch would end with the networks fitted to its last windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import State
from dynedge.models.count_memory.collect_examples import Examples
from dynedge.utils.prefetch import prefetch_map


@dataclass(frozen=True, eq=False)
class WindowExamples:
    """The examples of one training window; once they are shuffled, as many of any windows."""

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
        self._log: EventLog | None = None
        self._windows: list[range] = []
        self._segments: list[range] = []  # of window numbers: their windows have examples, shuffled among themselves
        self._collecting: Iterator[tuple[int, WindowExamples]] = iter(())
        self._collected: dict[int, WindowExamples] = {}
        self._is_shuffled = False
        self.shuffles = False  # whether `batches` shuffles before it reads

    def batches(self, log: EventLog, windows: Sequence[range], numbers: range) -> Iterator[WindowExamples]:
        """Yields the examples of the windows with these numbers.

        The first time the examples of all windows are collected, in a thread ahead of the reader.
        """
        if self._log is not log or self._windows != list(windows):
            self._open(log, windows, [range(len(windows))])
        if self.shuffles and not self._is_shuffled:
            self._shuffle()
        for number in numbers:
            while number not in self._collected:
                self._collect_next()
            yield self._collected[number]

    def collect(self, log: EventLog, windows: Sequence[range], segments: Sequence[range]) -> None:
        """Collects the examples of the windows in these segments; the events of the others are counted only."""
        self._open(log, windows, segments)
        self._collect_rest()

    def _shuffle(self) -> None:
        """Shuffles the examples of each segment, in place: a captured step reads them where they are."""
        self._collect_rest()
        for segment in self._segments:
            parts = [self._collected[number].examples for number in segment]
            sizes = [len(part.query_features) for part in parts]
            order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(segment.start))
            for columns in zip(*parts, strict=True):
                shuffled = torch.cat(columns)[order.to(columns[0].device)]
                for column, part in zip(columns, torch.split(shuffled, sizes), strict=True):
                    column.copy_(part)
        self._is_shuffled = True

    def _open(self, log: EventLog, windows: Sequence[range], segments: Sequence[range]) -> None:
        self._log, self._windows, self._segments = log, list(windows), list(segments)
        self._collecting, self._collected, self._is_shuffled = self._collect_all(), {}, False

    def _collect_next(self) -> None:
        number, examples = next(self._collecting)
        self._collected[number] = examples

    def _collect_rest(self) -> None:
        self._collected.update(self._collecting)

    def _collect_all(self) -> Iterator[tuple[int, WindowExamples]]:
        log, ranges, state = self._log, self._windows, self._start()
        assert log is not None
        wanted = {number for segment in self._segments for number in segment}
        per_window = -(-self._num_examples // len(ranges))

        def collect(number: int) -> WindowExamples | None:
            window = Window(log, ranges[number])
            if number not in wanted:
                self._observe(window, state)
                return None
            examples = self._collect(window, number, per_window, state)
            return WindowExamples(window, examples, state if number == len(ranges) - 1 else None)

        numbers = range(max(wanted, default=-1) + 1)
        for number, examples in zip(numbers, prefetch_map(collect, numbers, threads=1), strict=True):
            if examples is not None:
                yield number, examples
