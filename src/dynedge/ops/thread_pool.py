"""Threads for compiled kernels: one pool for all operators, used only where there is enough work to pay for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

from dynedge.utils.numba_compile import compiled

Kernel = Callable[..., None]

MIN_ROWS = 1024  # from which a second thread pays: a row takes 0.3 to 1 µs, waking a thread 100 to 300 (in a VM)
ROWS_PER_PART = 64  # at least, roughly


def run_in_parts(kernel: Kernel, rows: int, *args: Any) -> None:
    """Calls kernel(part, parts, ...) for every part, on this thread and, if there are enough rows, on others.

    Uses as many threads as torch. Threads take the next part whenever they are free, because a core may be busy with
    other work, and a thread that has not started when all parts are taken is not waited for.
    """
    threads = torch.get_num_threads()
    if rows < MIN_ROWS or threads == 1:
        kernel(0, 1, *args)
        return
    parts = min(1 + rows // ROWS_PER_PART, 2 * threads)
    remaining = iter(range(parts))

    def work() -> None:
        for part in remaining:
            kernel(part, parts, *args)

    helpers = [_pool(os.getpid()).submit(work) for _ in range(1, min(threads, parts))]
    work()
    _finish(helpers)


def run_side_by_side(work: Callable[[int], None], threads: int) -> None:
    """Calls work(0) here and work(1), work(2), … on other threads; drops those not started when work(0) ends."""
    helpers = [_pool(os.getpid()).submit(work, number) for number in range(1, threads)]
    work(0)
    _finish(helpers)


def _finish(helpers: list[Future[None]]) -> None:
    """Cancels what has not started, and waits for the rest."""
    for helper in helpers:
        if not helper.cancel():
            helper.result()


@compiled
def part_of_range(start: int, stop: int, part: int, parts: int) -> tuple[int, int]:
    """First and last + 1 index of one part of a range, for kernels that run in parts."""
    return start + (stop - start) * part // parts, start + (stop - start) * (part + 1) // parts


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Threads of this process: a forked process does not inherit its parent's."""
    return ThreadPoolExecutor(os.cpu_count(), "dynedge-ops")
