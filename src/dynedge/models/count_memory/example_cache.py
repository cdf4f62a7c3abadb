"""Training examples of every window, and the state after the last one, collected once and cached for later epochs.

Neither depends on anything that is learned, so later epochs read the same examples and append nothing. On a GPU the
examples stay in its memory. The first epoch reads them in time order, as they are collected. Later ones read them
shuffled: in time order an epoch would end with the networks fitted to its last windows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import State
from dynedge.models.count_memory.collect_examples import Examples
from dynedge.utils.prefetch import prefetch_map

SLICES = 16  # of an array that are shuffled one by one: two copies of a slice are made


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
        self._cached: tuple[EventLog, list[range], dict[int, WindowExamples]] | None = None
        self._segments: Sequence[range] = []  # of window numbers: the cached windows, shuffled among themselves
        self._is_shuffled = False
        self.shuffles = False  # whether `batches` shuffles before it reads

    def batches(self, log: EventLog, windows: Sequence[range], numbers: range) -> Iterator[WindowExamples]:
        """Yields the examples of the windows with these numbers.

        The first time the examples of all windows are collected, in a thread ahead of the reader.
        """
        if self._cached is None or self._cached[0] is not log or self._cached[1] != list(windows):
            collecting = self._collect_all(log, list(windows), [range(len(windows))])
            if not self.shuffles:
                yield from islice(collecting, numbers.start, numbers.stop)
                return
            deque(collecting, maxlen=0)
        assert self._cached is not None
        examples = self._cached[2]
        if self.shuffles and not self._is_shuffled:
            for segment in self._segments:
                _shuffle([examples[number].examples for number in segment], segment.start)
            self._is_shuffled = True
        yield from map(examples.__getitem__, numbers)

    def collect(self, log: EventLog, windows: Sequence[range], segments: Sequence[range]) -> None:
        """Collects the examples of the windows in these segments; the events of the others are counted only."""
        deque(self._collect_all(log, list(windows), segments), maxlen=0)

    def _collect_all(self, log: EventLog, ranges: list[range], segments: Sequence[range]) -> Iterator[WindowExamples]:
        wanted = {number for segment in segments for number in segment}
        state, collected = self._start(), dict[int, WindowExamples]()
        per_window = -(-self._num_examples // len(ranges))

        def collect(number: int) -> WindowExamples | None:
            window = Window(log, ranges[number])
            if number not in wanted:
                self._observe(window, state)
                return None
            examples = self._collect(window, number, per_window, state)
            return WindowExamples(window, examples, state if number == len(ranges) - 1 else None)

        last = max(wanted, default=-1)
        for number, examples in enumerate(prefetch_map(collect, range(last + 1), threads=1)):
            if examples is not None:
                collected[number] = examples
            if number == last:
                self._cached, self._segments, self._is_shuffled = (log, ranges, collected), segments, False
            if examples is not None:
                yield examples


def _shuffle(parts: list[Examples], seed: int) -> None:
    """Shuffles the examples of several windows, in place: a captured step reads them where they are."""
    sizes = [len(part.query_features) for part in parts]
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(seed))
    for columns in zip(*parts, strict=True):
        flat = [column.flatten(1) for column in columns]  # views
        own_order, step = order.to(flat[0].device), -(-flat[0].shape[1] // SLICES)
        for low in range(0, flat[0].shape[1], step):
            slices = [column[:, low : low + step] for column in flat]
            for column, part in zip(slices, torch.split(torch.cat(slices)[own_order], sizes), strict=True):
                column.copy_(part)
