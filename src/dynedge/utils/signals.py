"""Handling of SIGTERM and Ctrl-C: training saves a checkpoint and ends; a second signal ends it immediately."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StoppedBySignal(BaseException):
    """A signal asked the process to stop. Not an Exception, so that no handler of failures catches it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum
        self.exit_code = 128 + signum  # 130 for Ctrl-C, 143 for SIGTERM: what shells and schedulers expect


class StopSignal:
    """Context manager that handles SIGTERM and SIGINT.

    A signal raises StoppedBySignal at once. Inside `deferred()` the first signal only sets `received`, which the code
    there checks when it can stop cleanly.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._deferred = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # Python delivers signals to this thread only
            self._previous = {signum: signal.signal(signum, self._handle) for signum in SIGNALS}
        return self

    def __exit__(self, *error: Any) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within this context the first signal does not raise, but sets `received`."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self._deferred or self.received is not None:
            raise StoppedBySignal(signum)
        self.received = signum
