"""SIGTERM and Ctrl-C: training saves and ends at the next window; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """Asked to stop by a signal. Not an Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum
        self.exit_code = 128 + signum  # 130 for Ctrl-C, 143 for SIGTERM: what shells and schedulers expect


class Stop:
    """with Stop() as stop: … A signal raises Stopped where it falls, or in `gently()` waits for `stop.caught`."""

    def __init__(self) -> None:
        self.caught: int | None = None
        self._gentle = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python hands out no signals
            self._before = {signum: signal.signal(signum, self._handle) for signum in SIGNALS}
        return self

    def __exit__(self, *error: Any) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    @contextmanager
    def gently(self) -> Iterator[None]:
        self._gentle = True
        try:
            yield
        finally:
            self._gentle = False

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self._gentle or self.caught is not None:
            raise Stopped(signum)
        self.caught = signum
