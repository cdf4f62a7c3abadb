"""Progress of compiling kernels: says once that they are compiled and about how long that takes, then how far it is.

Kernels are compiled at first use and cached (numba_compile.py), so this happens in the first run only. The time is
estimated from the kernels that the imported modules define and the cache does not have; not all of them are called.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from numba.core.event import Event, Listener

from dynedge.utils import progress

SECONDS_EACH = 0.5  # the estimate of the first line, on two cores
CALLED = 0.65  # share of the missing kernels that a command calls
FIRST_LINE_S = 1.0  # of compiling, before the first line: a few missing kernels are not worth one
INTERVAL_S = 10.0


class CompileProgress(Listener):  # type: ignore[misc]
    """Listens to numba, which compiles one kernel at a time; prints on stderr if progress.show_compiling is set."""

    def __init__(self, count_missing: Callable[[], int]) -> None:
        self._count_missing, self._missing, self._done = count_missing, 0, 0
        self._depth, self._seconds, self._since = 0, 0.0, 0.0
        self._last_line = -INTERVAL_S

    def on_start(self, event: Event) -> None:
        if self._depth == 0:  # else the compiling of its caller is waiting
            self._since = time.monotonic()
        self._depth += 1

    def on_end(self, event: Event) -> None:
        self._depth -= 1
        now = time.monotonic()
        seconds = self._seconds + now - self._since
        if self._depth == 0:
            self._seconds = seconds
            progress.kernels_compiled += 1
        if progress.show_compiling and seconds >= FIRST_LINE_S and now - self._last_line >= INTERVAL_S:
            self._print(seconds)
            self._last_line = now

    def _print(self, seconds: float) -> None:
        missing, first = self._count_missing(), not self._missing
        self._missing = self._missing or missing
        self._done = done = max(self._missing - missing, self._done)  # in all processes
        self._missing = missing + done  # more when modules were imported in the meantime
        total = max(round(CALLED * self._missing), done + 1)
        if first or not done:
            line = f"compiling kernels (once, about {progress.clock(max(SECONDS_EACH * total, 5))})"
        else:
            left = progress.clock(seconds / done * (total - done))
            line = f"compiling kernels: {done} of about {total}, {left} left"
        progress.print_line(line)
