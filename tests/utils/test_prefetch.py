"""Prefetching: order, errors at their place, a bounded number of results ahead, and consumers that stop early."""

import gc
import threading
import time

import pytest

from dynedge.utils.prefetch import READY, prefetch, prefetch_map


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    def work(item: int) -> int:
        time.sleep(0.002 * (item % 3))
        return item * item

    assert list(prefetch_map(work, range(20), threads)) == [item * item for item in range(20)]


@pytest.mark.parametrize("depth", [0, 1, 5])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_an_iterable_comes_back_unchanged(depth: int, count: int) -> None:
    assert list(prefetch(iter(range(count)), depth)) == list(range(count))


def test_results_are_computed_ahead_but_not_too_far() -> None:
    started: list[int] = []
    third = threading.Event()

    def work(item: int) -> int:
        started.append(item)
        if item == 2:
            third.set()
        return item

    results = prefetch_map(work, range(100), threads=2)
    assert next(results) == 0
    assert third.wait(10)  # the consumer has not requested the third item yet
    results.close()  # type: ignore[attr-defined]
    assert len(started) <= 2 + READY


def test_an_iterable_is_advanced_at_most_depth_items_ahead() -> None:
    produced: list[int] = []

    def numbers():
        for k in range(100):
            produced.append(k)
            yield k

    items = prefetch(numbers(), depth=3)
    assert next(items) == 0
    time.sleep(0.05)
    assert 1 <= len(produced) <= 4
    items.close()  # type: ignore[attr-defined]
    assert len(produced) <= 4


def test_an_error_in_a_thread_reaches_the_consumer() -> None:
    def work(item: int) -> float:
        return 1 / (2 - item)

    with pytest.raises(ZeroDivisionError):
        list(prefetch_map(work, range(5), threads=2))


def test_an_error_is_raised_after_the_results_before_it() -> None:
    def numbers():
        yield 1
        yield 2
        raise ValueError("third")

    received = []
    with pytest.raises(ValueError, match="third"):
        for item in prefetch(numbers(), depth=5):
            received.append(item)
    assert received == [1, 2]


def test_a_consumer_that_stops_early_does_not_wait() -> None:
    release, started = threading.Event(), threading.Event()
    ended = threading.Event()
    ran: list[int] = []

    def work(item: int) -> int:
        ran.append(item)
        if item == 1:
            started.set()
            release.wait(10)
            ended.set()
        return item

    results = prefetch_map(work, range(100), threads=1, ready=5)
    assert next(results) == 0
    assert started.wait(10)
    results.close()  # type: ignore[attr-defined]
    assert not ended.is_set()
    release.set()
    assert ended.wait(10)
    for thread in threading.enumerate():
        if thread.name.startswith("dynedge-prefetch"):
            thread.join(10)
    assert ran == [0, 1], "the running item ends, the queued ones are cancelled"


def test_a_generator_in_a_cycle_that_a_starting_thread_collects_does_not_block_it() -> None:
    """The collector may run in a thread before it has started, for which whoever started it waits."""
    release = threading.Event()

    def abandon() -> None:
        results = prefetch_map(lambda item: item == 0 or release.wait(60), range(9), threads=1)
        cycle: list[object] = [results]
        cycle.append(cycle)
        assert next(results)

    class Collecting(threading.Thread):
        def _set_ident(self) -> None:  # called in the new thread before `start` returns
            super()._set_ident()  # type: ignore[misc]
            gc.collect()

    gc.disable()
    try:
        abandon()
        starter = threading.Thread(target=lambda: Collecting(target=int).start(), daemon=True)
        starter.start()
        starter.join(10)
        assert not starter.is_alive()
    finally:
        release.set()
        gc.enable()


def test_a_generator_closed_by_its_own_thread_does_not_wait_for_itself():
    suspended, closed = threading.Event(), threading.Event()

    def work(item):
        if item == 1:
            suspended.wait(10)
            results.close()
            closed.set()
        return item

    results = prefetch_map(work, range(3), threads=1, ready=1)
    assert next(results) == 0
    suspended.set()
    assert closed.wait(10)
    assert list(results) == []
