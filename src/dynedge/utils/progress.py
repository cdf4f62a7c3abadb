"""Progress of long operations on stderr: share done, count, rate, elapsed time and time left.

A bar drawn by rich on a terminal; plain lines every ten seconds elsewhere (log files, CI). The time left is
estimated from the second step on, and anew after kernels were compiled, which takes far longer than a step.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

PLAIN_INTERVAL_S = 10.0
TERMINAL_INTERVAL_S = 0.1

kernels_compiled = 0  # so far in this process (compile_progress.py)
show_compiling = False  # whether that prints lines, as the commands do
_drawn: Progress | None = None  # the bar on the terminal


def print_line(text: str) -> None:
    """Prints a line on stderr, in place of a bar that is drawn there; the bar's next step draws it again."""
    if _drawn is not None:
        _drawn.erase()
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Progress display: with Progress("reading", total=size, unit="rows") as progress: progress.advance(bytes, rows)

    `total` and `done` share one unit (bytes of a file); `count` and the rate are in `unit` (rows), which may differ.
    """

    def __init__(
        self,
        description: str,
        total: float,
        unit: str = "events",
        *,
        quiet: bool = False,
        console: Console | None = None,
    ) -> None:
        """`console`: where to draw the bar; by default stderr, if that is a terminal."""
        self.description, self.total, self.unit, self.quiet = description, total, unit, quiet
        self.done = 0.0
        self.count = 0
        self._start = time.monotonic()
        self._last = self._start
        self._base: tuple[float, float] | None = None  # time and share done from which the time left is estimated
        self._kernels = kernels_compiled
        self._console = console
        self._is_terminal = console is not None or sys.stderr.isatty()
        self._bar: RichProgress | None = None

    def advance(self, done: float, count: int | None = None) -> None:
        """Adds `done` to the share of the total and `count` (default: `done`) to the number of units."""
        self.done += done
        self.count += int(done) if count is None else count
        now = time.monotonic()
        if self._base is None or self._kernels != kernels_compiled:
            self._base, self._kernels = (now, self.done), kernels_compiled
        if now - self._last >= (TERMINAL_INTERVAL_S if self._is_terminal else PLAIN_INTERVAL_S):
            self._last = now
            self._show()

    def erase(self) -> None:
        """Erases the bar from the terminal, so that other lines can be printed; `advance` draws it again."""
        if self._bar is not None:
            self._bar.live.transient = True
            self._bar.stop()
            self._forget_bar()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_terminal or time.monotonic() - self._start >= PLAIN_INTERVAL_S:
            if kind is None:
                self.done = self.total
            self._show()
        if self._bar is not None:
            self._bar.stop()
            self._forget_bar()

    def _forget_bar(self) -> None:
        global _drawn  # noqa: PLW0603
        self._bar = _drawn = None

    def _time_left(self) -> str:
        since, done = self._base or (0.0, self.done)
        if not done < self.done < self.total:
            return ""
        seconds = (time.monotonic() - since) * (self.total - self.done) / (self.done - done)
        return f", {clock(seconds)} left"

    def _show(self) -> None:
        if self.quiet:
            return
        elapsed = max(time.monotonic() - self._start, 1e-9)
        share = min(self.done / self.total, 1.0) if self.total else 1.0
        speed = f"{quantity(self.count / elapsed)}/s, {clock(elapsed)}"
        rate = f"{quantity(self.count)} {self.unit}, {speed}{self._time_left()}"
        if self._is_terminal:
            self._draw(share, rate)
        else:
            print(f"{self.description}: {share:4.0%}, {rate}", file=sys.stderr, flush=True)

    def _draw(self, share: float, rate: str) -> None:
        global _drawn
        if self._bar is None:
            self._bar, _drawn = _new_bar(self._console), self
            self._bar.add_task(self.description, total=1.0, completed=share, rate=rate)  # type: ignore[arg-type]
            self._bar.start()
            self._bar.console.show_cursor(True)  # rich hides it, and a killed process could not bring it back
        else:
            (task,) = self._bar.task_ids
            self._bar.update(task, completed=share, description=self.description, rate=rate)
            self._bar.refresh()


def _new_bar(console: Console | None) -> RichProgress:
    """A rich progress bar that is redrawn by `refresh` alone: no thread, and stdout is left as it is."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        console=console or Console(stderr=True),
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def clock(seconds: float) -> str:
    """Returns a duration as text: 59 s, 3:07 min, 2:05 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


def quantity(count: float) -> str:
    """Returns a number with three digits and a unit prefix: 987, 12.3 k, 4.56 M, 1.20 G."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            digits = 2 if count < 10 * size else 1 if count < 100 * size else 0
            return f"{count / size:.{digits}f}{letter}"
    return f"{count:.0f}" if count == int(count) or count >= 100 else f"{count:.2g}"
