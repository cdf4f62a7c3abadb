"""Prefetching: results are computed in background threads a few items ahead of the consumer, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, repeat
from threading import current_thread
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_pools = count()
READY = 2  # results held ready for the consumer, beyond those being computed


def prefetch_map(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int, ready: int = READY
) -> Iterator[Result]:
    """Yields work(item) for each item, in order, computed in threads ahead of the consumer; 0 threads: on demand.

    An error of `work` is raised where its result was due. A consumer that stops early does not wait for queued work.
    """
    if threads == 0:
        yield from map(work, items)
        return
    pending: deque[Future[Result]] = deque()
    name = f"dynedge-prefetch-{next(_pools)}"
    pool = ThreadPoolExecutor(threads, name)
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) >= threads + ready:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        # An abandoned generator may be collected in one of its own threads, which cannot wait for itself.
        pool.shutdown(wait=not current_thread().name.startswith(f"{name}_"), cancel_futures=True)


def prefetch(items: Iterable[Item], depth: int = 3) -> Iterator[Item]:
    """Yields the same items in the same order; a thread advances the iterable up to `depth` items ahead."""
    end: Any = object()
    for item in prefetch_map(lambda iterator: next(iterator, end), repeat(iter(items)), threads=1, ready=depth):
        if item is end:
            return
        yield item
