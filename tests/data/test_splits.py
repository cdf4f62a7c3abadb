"""Splits and windows cover every event once, in order."""

from fractions import Fraction
from itertools import pairwise
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynedge.data.splits import Split
from dynedge.data.windows import cut_by_work, cut_windows
from dynedge.errors import UsageError


@given(events=st.integers(0, 10**12), a=st.integers(0, 1000), b=st.integers(0, 1000))
def test_a_split_contains_every_event_once(events, a, b):
    a, b = sorted((a, b))
    text = f"{a / 1000},{Fraction(b - a, 1000)},{Fraction(1000 - b, 1000)}"
    train_end, valid_end = Split.parse(text).bounds(events)
    assert train_end == floor(Fraction(a, 1000) * events)
    assert valid_end == floor(Fraction(b, 1000) * events)
    ranges = list(Split.parse(text).ranges(events).values())
    assert ranges[0].start == 0
    assert ranges[-1].stop == events
    assert all(one.stop == two.start for one, two in pairwise(ranges))


def test_fractions_are_exact_decimals():
    # In floats, 0.7 + 0.1 is a little less than 0.8, and an event would move from validation to test.
    assert Split.parse("0.7,0.1,0.2").bounds(10) == (7, 8)
    assert Split.parse("0.7,0.1,0.2").bounds(24_999_849) == (17_499_894, 19_999_879)


@pytest.mark.parametrize(
    "text", ["", "0.8", "0.8,0.1", "0.8,0.1,0.2", "a,b,c", "1.2,-0.1,-0.1", "1/0,0,0", "nan,0,0"]
)
def test_a_bad_split_raises_one_sentence(text):
    with pytest.raises(UsageError, match=r"--split .* three fractions that add up to 1"):
        Split.parse(text)


@given(events=st.integers(0, 3000), count=st.integers(1, 400))
def test_windows_cover_every_event_once_in_order(events, count):
    windows = cut_windows(events, count)
    assert len(windows) == count
    assert [k for window in windows for k in window] == list(range(events))
    assert all(w.start == events * k // count for k, w in enumerate(windows))
    assert max(map(len, windows)) - min(map(len, windows)) <= 1


@given(work=st.lists(st.integers(1, 1000), max_size=300), events=st.integers(0, 900), count=st.integers(1, 40))
def test_windows_by_work_cover_every_event_once_in_order(work, events, count):
    windows = cut_by_work(np.array(work, np.int64), events, count)
    assert len(windows) == count
    assert [k for window in windows for k in window] == list(range(events))
    if events >= count:
        assert min(map(len, windows)) >= 1


@given(work=st.lists(st.integers(100, 199), min_size=100, max_size=300), count=st.integers(1, 25))
def test_windows_by_work_differ_by_less_than_two_events(work, count):
    done = np.cumsum([0, *work])
    of_windows = [done[window.stop] - done[window.start] for window in cut_by_work(np.array(work), len(work), count)]
    assert max(of_windows) - min(of_windows) <= 2 * max(work)


def test_equal_work_gives_windows_of_equal_size():
    assert cut_by_work(np.full(12, 7), 12, 4) == cut_windows(12, 4)
    assert cut_by_work(np.full(5, 2000), 10**12, 4) == cut_windows(10**12, 4)


def test_twice_the_work_is_half_the_window():
    assert [len(window) for window in cut_by_work(np.array([1, 2]), 6000, 3)] == [3000, 1500, 1500]


def test_zero_windows_is_a_usage_error():
    with pytest.raises(UsageError, match="--windows 0"):
        cut_windows(10, 0)


@given(st.lists(st.integers(0, 20), max_size=60), st.sampled_from(["time:0.7,0.15,0.15", "time:0.5,0.25,0.25"]))
def test_a_split_by_time_keeps_equal_times_together(times, text):
    times = np.sort(np.array(times, np.float64))
    split = Split.parse(text)
    assert str(split) == text
    by_position = split.at(times)
    assert Split.parse(str(by_position)) == by_position, "the text is exact"
    train_end, valid_end = by_position.bounds(len(times))
    for end in (train_end, valid_end):
        assert not 0 < end < len(times) or times[end - 1] < times[end]
    if len(times):
        assert train_end == (times <= np.quantile(times, float(split.train))).sum()
