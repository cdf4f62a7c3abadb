"""Progress of long work on stderr: done, rate, time left. A moving line on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType

PLAIN_EVERY_S = 10.0
TERMINAL_EVERY_S = 0.1


class Progress:
    """with Progress("reading", total=size, unit="rows") as progress: progress.advance(share_done, rows)

    `total` is in whatever `advance` counts first; the rate is of `unit`, which may be something else
    (bytes tell how far a file is read, rows are what a person counts).
    """

    def __init__(self, what: str, total: float, unit: str = "events", *, quiet: bool = False) -> None:
        self.what, self.total, self.unit, self.quiet = what, total, unit, quiet
        self.done = 0.0
        self.count = 0
        self._terminal = sys.stderr.isatty()
        self._start = time.monotonic()
        self._last = self._start

    def advance(self, done: float, count: int | None = None) -> None:
        """`done` of the total, and `count` units, since the last call."""
        self.done += done
        self.count += int(done) if count is None else count
        now = time.monotonic()
        if now - self._last >= (TERMINAL_EVERY_S if self._terminal else PLAIN_EVERY_S):
            self._last = now
            self._show()

    def _show(self, end: str | None = None) -> None:
        if self.quiet:
            return
        spent = max(time.monotonic() - self._start, 1e-9)
        share = min(self.done / self.total, 1.0) if self.total else 1.0
        left = f", {clock(spent * (1 - share) / share)} left" if 0 < share < 1 else ""
        line = f"{self.what}: {share:4.0%}, {quantity(self.count)} {self.unit}, "
        line += f"{quantity(self.count / spent)}/s, {clock(spent)}{left}"
        if self._terminal:
            print(f"\r\x1b[K{line}", end=end or "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal or time.monotonic() - self._start >= PLAIN_EVERY_S:
            if kind is None:
                self.done = self.total
            self._show("\n")


def clock(seconds: float) -> str:
    """59 s, 3:07 min, 2:05 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


def quantity(count: float) -> str:
    """987, 12.3 k, 4.56 M, 1.20 G: three digits and a letter."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            digits = 2 if count < 10 * size else 1 if count < 100 * size else 0
            return f"{count / size:.{digits}f}{letter}"
    return f"{count:.0f}" if count == int(count) or count >= 100 else f"{count:.2g}"
