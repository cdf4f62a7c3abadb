"""Two threads in lockstep: each reads what the other wrote, from whichever step the second one joins."""

import threading
import time

import numba
import numpy as np
import pytest
import torch

from dynedge.ops import lockstep_threads, thread_pool
from dynedge.ops.level_gru import cpu

STEPS = 20_000


@numba.njit(nogil=True)
def _run_steps(second, shared, rows):
    """rows[s + 1, half] from both halves of rows[s]: wrong at once if a thread runs ahead of the other."""
    handover = lockstep_threads.arrive(shared) if second else lockstep_threads.NEVER
    for step in range(min(handover, len(rows) - 1) if second else 0, len(rows) - 1):
        solo, handover = lockstep_threads.begin_step(second, shared, step, handover)
        for half in range(2):
            if solo or half == second:
                rows[step + 1, half] = (3 * rows[step, half] + 5 * rows[step, 1 - half] + half) % 1_000_003
        lockstep_threads.end_step(second, shared, step)
    lockstep_threads.finish_steps(second, shared, len(rows) - 1, handover)


@pytest.mark.parametrize("who_is_first", ["alone", "second", "first"])
def test_two_threads_compute_what_one_computes(who_is_first):
    expected, rows = (np.ones((STEPS + 1, 2), np.int64) for _ in range(2))
    _run_steps(0, lockstep_threads.new_shared(), expected)
    shared = lockstep_threads.new_shared()
    helper = threading.Thread(target=_run_steps, args=(1, shared, rows))
    if who_is_first == "second":
        helper.start()
        while not shared[lockstep_threads.ARRIVED]:
            time.sleep(0.001)
    if who_is_first == "first":
        threading.Timer(0.0001, helper.start).start()
    _run_steps(0, shared, rows)
    if who_is_first != "alone":
        while not helper.ident:
            time.sleep(0.001)
        helper.join()
    assert np.array_equal(rows, expected)
    if who_is_first == "second":
        assert shared[lockstep_threads.HANDOVER] == 0
        assert shared[lockstep_threads.SECOND] == STEPS


def test_a_pair_whose_first_thread_yields_often_runs_on_one_thread_for_a_while(monkeypatch):
    second_calls = []

    def kernel(second, shared):
        if second:
            second_calls.append(second)
        else:
            shared[lockstep_threads.YIELDS] = thread_pool.MAX_YIELDS + 1

    monkeypatch.setattr(thread_pool, "_solo_calls_left", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(thread_pool.SOLO_CALLS + 1):
            thread_pool.run_as_pair(kernel)
            assert thread_pool._solo_calls_left > 0 or len(second_calls) <= 1
        assert thread_pool._solo_calls_left == 0
    finally:
        torch.set_num_threads(threads)


def test_only_many_rows_in_narrow_levels_run_as_a_pair(monkeypatch):
    ran = []
    monkeypatch.setattr(cpu, "run_as_pair", lambda *_: ran.append("pair"))
    monkeypatch.setattr(cpu, "run_in_parts", lambda *_: ran.append("parts"))
    wide = thread_pool.MIN_ROWS
    for blocks in ([0, wide, wide], [0, 1, 2, 3, 4], list(range(0, 2 * wide + 2, 2))):
        cpu._run_levels(None, None, blocks[2] - blocks[0], 0, len(blocks) // 2, np.array(blocks))
    assert ran == ["parts", "parts", "pair"]


@numba.njit(nogil=True)
def _claim_all(counters, claimed):
    for k in range(len(counters)):
        if lockstep_threads.fetch_increment(counters, k) == 0:
            claimed[k] += 1


def test_each_counter_gives_zero_to_exactly_one_thread():
    counters, claimed = np.zeros(300_000, np.int64), np.zeros((4, 300_000), np.int64)
    _claim_all(counters[:0], claimed[0])  # compiles it
    threads = [threading.Thread(target=_claim_all, args=(counters, own)) for own in claimed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (claimed.sum(0) == 1).all()
    assert (counters == 4).all()
