"""Statistics of a log against plain counting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynedge.data import statistics
from dynedge.data.log import EventLog

event = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9))


@given(st.lists(event, min_size=1, max_size=60), st.sampled_from([1, 7, 1 << 20]))
def test_shares_and_degrees_equal_plain_counting(rows, chunk):
    log = EventLog.from_arrays(*zip(*rows, strict=True), num_users=6, num_items=6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "CHUNK", chunk)
        described = statistics.describe(log)
    events = list(zip(log.user.tolist(), log.item.tolist(), log.time.tolist(), strict=True))
    pairs, last, repeats, same, equal, equal_same_user = set(), {}, 0, 0, 0, 0
    for k, (user, item, time) in enumerate(events):
        repeats += (user, item) in pairs
        same += user in last and last[user][0] == item
        equal_same_user += user in last and last[user][1] == time
        equal += k > 0 and events[k - 1][2] == time
        pairs.add((user, item))
        last[user] = item, time
    shares = [described[name] * len(rows) for name in SHARES]
    assert shares == pytest.approx([repeats, same, equal, equal_same_user])
    counts = np.bincount(log.user, minlength=6)
    assert described["events_per_user"]["1"] == counts.max()
    assert described["events_per_user"]["mean"] == pytest.approx(counts.mean())
    assert (described["events"], described["first_time"], described["last_time"]) == (
        len(rows),
        log.time[0],
        log.time[-1],
    )


SHARES = ["repeat_share", "same_as_last_share", "equal_time_share", "equal_time_same_user_share"]


def test_repeats_of_a_large_log_are_counted_on_a_sample_of_users(monkeypatch):
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 300, 20_000), rng.integers(0, 50, 20_000)
    log = EventLog.from_arrays(user, item, np.arange(20_000))
    exact = statistics.describe(log)
    monkeypatch.setattr(statistics, "MAX_PAIRS", 4000)
    sampled = statistics.describe(log)
    assert sampled["repeat_share_from_one_user_in"] == 5
    assert sampled["repeat_share"] == pytest.approx(exact["repeat_share"], abs=0.05)


def test_order_signal_is_none_without_equal_times():
    log = EventLog.from_arrays([0, 1, 0, 1], [0, 1, 1, 0], [1, 2, 3, 4])
    assert statistics.describe(log)["order_signal"] is None
    log = EventLog.from_arrays([0, 1, 0, 1], [0, 1, 1, 0], [1, 2, 3, 3])
    assert statistics.describe(log)["order_signal"]["events"] == 4
