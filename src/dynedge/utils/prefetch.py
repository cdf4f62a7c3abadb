"""Run a generator in a thread of its own, a few steps ahead of whoever reads it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def ahead(steps: Iterable[T], depth: int = 2) -> Iterator[T]:
    """The same items in the same order; an error of the generator is raised here, at its place."""
    ready: queue.Queue[tuple[str, T | BaseException | None]] = queue.Queue(depth)
    left = threading.Event()  # the reader went away

    def put(kind: str, what: T | BaseException | None) -> None:
        while not left.is_set():
            try:
                return ready.put((kind, what), timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for step in steps:
                put("step", step)
                if left.is_set():
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    threading.Thread(target=work, daemon=True).start()
    try:
        while True:
            kind, what = ready.get()
            if kind == "end":
                return
            if kind == "error":
                assert isinstance(what, BaseException)
                raise what
            yield what  # type: ignore[misc]
    finally:
        left.set()
