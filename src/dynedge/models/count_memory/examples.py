"""The training events, walked once: what there is to learn from in each window, and what is remembered at their end.

Neither depends on anything that is learned, so later epochs read the same lessons and walk nothing. On a GPU they
stay there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from dynedge.data.log import EventLog
from dynedge.data.windows import Window, cut_windows
from dynedge.models.base import State
from dynedge.models.count_memory.gating import Examples
from dynedge.utils.prefetch import prefetch_map


@dataclass(frozen=True, eq=False)
class Lesson:
    window: Window
    examples: Examples
    end: State | None  # of the last window: what is remembered after all of them


Read = Callable[[Window, int, int, int, State], Examples]


class Lessons:
    """`read`(window, its number, how many of its events are older than the span, examples, state) makes a window's
    examples and moves the state past it."""

    def __init__(self, start: Callable[[], State], read: Read, count: int, span: int, examples: int) -> None:
        self._start, self._read, self._count, self._span, self._examples = start, read, count, span, examples
        self._known: tuple[EventLog, int, list[Lesson]] | None = None

    def of(self, log: EventLog, train_end: int, first: int) -> Iterator[Lesson]:
        """From window number `first` on. The first time all windows are walked, in a thread ahead of the reader."""
        if self._known is None or self._known[0] is not log or self._known[1] != train_end:
            yield from islice(self._walk(log, train_end), first, None)
        else:
            yield from self._known[2][first:]

    def _walk(self, log: EventLog, train_end: int) -> Iterator[Lesson]:
        state, found = self._start(), list[Lesson]()
        cuts, begin = cut_windows(train_end, self._count), max(train_end - self._span, 0)
        each = -(-self._examples // max(sum(cut.stop > begin for cut in cuts), 1))

        def lesson(number: int) -> Lesson:
            window = Window(log, cuts[number])
            older = min(max(begin - cuts[number].start, 0), len(window))
            examples = self._read(window, number, older, each, state)
            return Lesson(Window(log, cuts[number]), examples, state if number == len(cuts) - 1 else None)

        for one in prefetch_map(lesson, range(len(cuts)), threads=1):
            found.append(one)
            if len(found) == len(cuts):
                self._known = log, train_end, found
            yield one
