"""Threads for compiled kernels: one pool for all operators, woken only where there is work enough to pay for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

from dynedge.ops import spin_pair as pair

Kernel = Callable[..., None]

WIDE = 1024  # rows from which a second thread pays: a row takes 0.3 to 1 µs, waking a thread 100 to 300 (in a VM)
PART = 64  # rows a thread takes at once, about, or more
IN_VAIN, ALONE = 3, 64  # how often a pair's first thread may wait in vain, and how many calls it then does alone
_alone = 0


def run_in_parts(kernel: Kernel, rows: int, *args: Any) -> None:
    """kernel(part, parts, ...) for all parts, taken in turn by this thread and, if there are rows enough, others.

    As many as torch uses. In turn, because a core may be busy with other work; nobody waits for a thread that has
    not begun.
    """
    threads = torch.get_num_threads()
    if rows < WIDE or threads == 1:
        kernel(0, 1, *args)
        return
    parts = min(1 + rows // PART, 2 * threads)
    turns = iter(range(parts))

    def work() -> None:
        for turn in turns:
            kernel(turn, parts, *args)

    others = [_pool(os.getpid()).submit(work) for _ in range(1, min(threads, parts))]
    work()
    for other in others:
        if not other.cancel():
            other.result()


def run_side_by_side(work: Callable[[int], None], threads: int) -> None:
    """work(0) here, and work(1), work(2).. in other threads, but for those that have not begun when work(0) ends."""
    others = [_pool(os.getpid()).submit(work, part) for part in range(1, threads)]
    work(0)
    for other in others:
        if not other.cancel():
            other.result()


def run_as_pair(kernel: Kernel, *args: Any) -> None:
    """kernel(0, numbers, ...) here and kernel(1, numbers, ...) in another thread, as in pair.py; or here alone.

    Alone for a while where the other thread was waited for in vain: a core that is busy with other work does not
    help. What is computed is the same either way.
    """
    global _alone  # noqa: PLW0603
    numbers = pair.shared()
    if torch.get_num_threads() == 1 or _alone > 0:
        _alone -= _alone > 0
        kernel(0, numbers, *args)
        return
    other = _pool(os.getpid()).submit(kernel, 1, numbers, *args)
    kernel(0, numbers, *args)
    if not other.cancel():
        other.result()
    if numbers[pair.IN_VAIN] > IN_VAIN:
        _alone = ALONE


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Threads of this process: a fork does not inherit its parent's."""
    return ThreadPoolExecutor(os.cpu_count(), "dynedge-ops")
