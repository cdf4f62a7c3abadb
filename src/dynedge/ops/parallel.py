"""Threads for compiled kernels: one pool for all operators, woken only where there is work enough to pay for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

WIDE = 1024  # rows from which a second thread pays: a row takes 0.3 to 1 µs, waking a thread 100 to 300 (in a VM)
PART = 64  # rows a thread takes at once, about, or more


def in_parts(kernel: Callable[..., None], rows: int, *args: Any) -> None:
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


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Threads of this process: a fork does not inherit its parent's."""
    return ThreadPoolExecutor(os.cpu_count(), "dynedge-ops")
