"""Progress of compiling kernels: says once that they are compiled and about how long that takes, then how far it is.

Kernels are compiled at first use and cached (numba_compile.py), so this happens in the first run only. The time is
estimated from the kernels that the imported modules define and the cache does not have. How many of them a command
calls is not known before, so that later lines have no time left.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from numba.core.event import Event, Listener

from dynedge.utils import progress

SECONDS_EACH = 0.5  # the estimate of the first line, on two cores
CALLED = 0.65  # share of the missing kernels that training the default model calls
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
            self._print()
            self._last_line = now

    def _print(self) -> None:
        missing, first = self._count_missing(), not self._missing
        self._missing = self._missing or missing
        self._done = done = max(self._missing - missing, self._done)  # in all processes
        self._missing = missing + done  # more when modules were imported in the meantime
        if first or not done:
            estimate = max(SECONDS_EACH * round(CALLED * missing), 5)
            line = f"compiling kernels (once, about {progress.clock(estimate)})"
        else:
            line = f"compiling kernels: {done} done, at most {missing} more"
        progress.print_line(line)
