"""Two threads in step: what one writes the other reads, from whichever step on they are two."""

import threading
import time

import numba
import numpy as np
import pytest
import torch

from dynedge.ops import spin_pair as pair
from dynedge.ops import thread_pool as parallel
from dynedge.ops.level_gru import cpu, cpu_kernels

STEPS = 20_000


@numba.njit(nogil=True)
def _walk(second, numbers, rows):
    """rows[s + 1, half] from both halves of rows[s]: wrong at once if a thread runs ahead of the other."""
    since = pair.arrive(numbers) if second else pair.NEVER
    for step in range(min(since, len(rows) - 1) if second else 0, len(rows) - 1):
        alone, since = cpu_kernels._meet(second, numbers, step, since)
        for half in range(2):
            if alone or half == second:
                rows[step + 1, half] = (3 * rows[step, half] + 5 * rows[step, 1 - half] + half) % 1_000_003
        pair.store_release(numbers, pair.SECOND if second else pair.FIRST, step + 1)
    cpu_kernels._part(second, numbers, len(rows) - 1, since)


@pytest.mark.parametrize("who_is_first", ["alone", "second", "first"])
def test_two_threads_write_what_one_writes(who_is_first):
    right, rows = (np.ones((STEPS + 1, 2), np.int64) for _ in range(2))
    _walk(0, pair.shared(), right)
    numbers = pair.shared()
    other = threading.Thread(target=_walk, args=(1, numbers, rows))
    if who_is_first == "second":
        other.start()
        while not numbers[pair.ARRIVED]:
            time.sleep(0.001)
    if who_is_first == "first":
        threading.Timer(0.0001, other.start).start()
    _walk(0, numbers, rows)
    if who_is_first != "alone":
        while not other.ident:
            time.sleep(0.001)
        other.join()
    assert np.array_equal(rows, right)
    if who_is_first == "second":
        assert numbers[pair.TAKEN] == 0
        assert numbers[pair.SECOND] == STEPS


def test_a_thread_waited_for_in_vain_is_not_asked_for_a_while(monkeypatch):
    asked = []

    def kernel(second, numbers):
        if second:
            asked.append(second)
        else:
            numbers[pair.IN_VAIN] = parallel.IN_VAIN + 1

    monkeypatch.setattr(parallel, "_alone", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(parallel.ALONE + 1):
            parallel.run_as_pair(kernel)
            assert parallel._alone > 0 or len(asked) <= 1
        assert parallel._alone == 0
    finally:
        torch.set_num_threads(threads)


def test_levels_run_in_a_pair_only_where_there_are_many_rows_in_narrow_ones(monkeypatch):
    ran = []
    monkeypatch.setattr(cpu, "run_as_pair", lambda *_: ran.append("pair"))
    monkeypatch.setattr(cpu, "run_in_parts", lambda *_: ran.append("parts"))
    wide = parallel.WIDE
    for blocks in ([0, wide, wide], [0, 1, 2, 3, 4], list(range(0, 2 * wide + 2, 2))):
        cpu._levels(None, None, blocks[2] - blocks[0], 0, len(blocks) // 2, np.array(blocks))
    assert ran == ["parts", "parts", "pair"]


@numba.njit(nogil=True)
def _take_all(numbers, mine):
    for k in range(len(numbers)):
        if pair.fetch_increment(numbers, k) == 0:
            mine[k] += 1


def test_what_one_thread_takes_no_other_is_given():
    numbers, mine = np.zeros(300_000, np.int64), np.zeros((4, 300_000), np.int64)
    _take_all(numbers[:0], mine[0])  # compiled
    threads = [threading.Thread(target=_take_all, args=(numbers, own)) for own in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (mine.sum(0) == 1).all()
    assert (numbers == 4).all()
