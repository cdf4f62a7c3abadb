"""Prefetching: results are computed in background threads a few items ahead of the consumer, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

READY = 2  # results held ready for the consumer, beyond those being computed


def prefetch_map(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int, ready: int = READY
) -> Iterator[Result]:
    """Yields work(item) for each item, in order, computed in threads ahead of the consumer; 0 threads: on demand.

    An error of `work` is raised where its result was due. A consumer that stops early does not wait: queued work is
    cancelled, and what is being computed ends in the background.
    """
    if threads == 0:
        yield from map(work, items)
        return
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads, "dynedge-prefetch")
    abandoned = False
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) >= threads + ready:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except GeneratorExit:
        abandoned = True
        raise
    finally:
        # The garbage collector may close it in any thread: one of its own, or one that another thread waits for.
        pool.shutdown(wait=not abandoned, cancel_futures=True)


def prefetch(items: Iterable[Item], depth: int = 3) -> Iterator[Item]:
    """Yields the same items in the same order; a thread advances the iterable up to `depth` items ahead."""
    end: Any = object()
    for item in prefetch_map(lambda iterator: next(iterator, end), repeat(iter(items)), threads=1, ready=depth):
        if item is end:
            return
        yield item
