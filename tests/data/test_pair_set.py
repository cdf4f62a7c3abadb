"""Repeated pairs against a Python set, also beyond the initial capacity of the table."""

import numpy as np
import pytest

from dynedge.data.pair_set import empty_set, repeated_pairs


@pytest.mark.parametrize(("events", "users", "items"), [(0, 1, 1), (500, 5, 7), (100_000, 400, 2**31 - 1)])
def test_repeated_pairs_equal_those_of_a_python_set(events, users, items):
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, users, events, np.int32), rng.integers(0, items, events, np.int32)
    item[events // 2 :: 3] = item[: len(item[events // 2 :: 3])]
    user[events // 2 :: 3] = user[: len(user[events // 2 :: 3])]
    include = rng.random(users) < 0.8
    seen, expected = set(), []
    for pair in zip(user.tolist(), item.tolist(), strict=True):
        expected.append(bool(include[pair[0]]) and pair in seen)
        seen.add(pair)
    assert repeated_pairs(user, item, include).tolist() == expected
    if events > len(empty_set()):
        assert len(seen) > len(empty_set()) // 2, "the table has grown"
