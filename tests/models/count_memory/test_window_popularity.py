"""Popularity inside of a window, counted for all threads, against counting one event after the other."""

import numpy as np
import pytest
import torch

from dynedge.models.count_memory import window_popularity
from dynedge.models.count_memory.event_index import empty, popularity_of, view_of
from dynedge.models.count_memory.popularity import count_popularity
from dynedge.models.count_memory.window_popularity import PopularityCounter, counts_before, pass_events

HALF_LIVES = np.array([1e12, 20.0, 0.7, 0.3])
GROWTH = 2.0 ** (1 / HALF_LIVES)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("items", [50, 700])
def test_counts_before_any_event_and_after_the_window(items, threads, monkeypatch):
    """Windows with many rescalings and without; items come, fade to 0 and come back."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(window_popularity, "MIN_EVENTS", 10)
    rng = np.random.default_rng(3)
    item = np.concatenate([rng.integers(first % items, items, 400) for first in (0, 20, items // 2, 5)]).astype(
        np.int32
    )
    state, plain = empty(1, items, len(GROWTH)), empty(1, items, len(GROWTH))
    counter, zeros, rescaled = PopularityCounter(), 0, set()
    for start, stop in ((0, 3), (3, 500), (500, 500), (500, 1300), (1300, 1310), (1310, 1600)):
        some, index = item[start:stop], view_of(state, items)
        sampled = np.sort(rng.choice(stop - start, min(stop - start, 40), replace=False))
        before = state.clone()
        window = counter.count(index, state["popularity"], start, GROWTH, some, sampled)
        (latest,) = counter.readers(1)
        rescaled |= set((window.rescalings > 0).tolist())
        passed = 0
        for m, k in enumerate(sampled):
            count_popularity(popularity_of(view_of(plain, items)), GROWTH, some[passed:k])
            pass_events(latest, start, some, passed, k)
            passed, out = k, np.empty((items, len(GROWTH)), np.float32)
            counts_before(window, m, np.arange(items), latest, out)
            assert np.array_equal(out, plain["popularity"].numpy())
            assert np.array_equal(window.sampled_total[m], plain["popularity_total"].numpy())
            zeros += int((out == 0).sum())
        assert all(torch.equal(state[name], before[name]) for name in state), "until it is finished"
        count_popularity(popularity_of(view_of(plain, items)), GROWTH, some[passed:])
        counter.finish(index)
        for name in ("popularity", "popularity_total", "event_weight"):
            assert torch.equal(state[name], plain[name]), name
    assert zeros
    assert rescaled == {True, False}


def test_a_counter_goes_on_with_another_state_and_after_events_that_it_has_not_counted():
    rng, items = np.random.default_rng(5), 90
    item, counter = rng.integers(0, items, 900).astype(np.int32), PopularityCounter()
    for _ in range(2):
        state, plain = empty(1, items, len(GROWTH)), empty(1, items, len(GROWTH))
        for start in range(0, 900, 100):
            some, index = item[start : start + 100], view_of(state, items)
            count_popularity(popularity_of(view_of(plain, items)), GROWTH, some)
            if start == 400:
                count_popularity(popularity_of(index), GROWTH, some)
            else:
                counter.count(index, state["popularity"], start, GROWTH, some, np.empty(0, np.int64))
                counter.finish(index)
            assert torch.equal(state["popularity"], plain["popularity"])
