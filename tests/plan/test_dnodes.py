"""d-nodes: every method against plain references, the paper's examples and the exact optimum."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.brute_force import Array, algorithm_2, fewest_dnodes, link, random_windows, shortest_longest_path

from dynedge.errors import UsageError
from dynedge.plan.dnodes import METHODS, TAKES, select
from dynedge.plan.dnodes.graph import core_of, mirror, tails
from dynedge.plan.dnodes.longest_path import choose
from dynedge.plan.dnodes.message_passing import LADDER, label_events
from dynedge.plan.levels import heads, levels, longest_path
from dynedge.plan.links import ACTIVE, ENTRY, Linker

# Six steps; three with three d-nodes, and no two suffice. In the manner of the paper's Figures 1 and 2.
EIGHT = [(1, 2), (3, 4), (1, 2), (1, 4), (3, 2), (1, 2), (1, 4), (1, 4)]
WAYS = [(method, way) for method in METHODS for way in TAKES[method]]
DEGENERATE = {
    "empty": np.zeros((0, 2), np.int32),
    "one event": link([(0, 0)]),
    "one entity": link([(0, item) for item in range(30)]),
    "one pair": link([(0, 0)] * 30),
    "all active": np.full((10, 2), ACTIVE, np.int32),
    "users active": np.stack([np.full(10, ACTIVE, np.int32), np.arange(-1, 9, dtype=np.int32)], axis=1),
    "strangers": link([(k, k) for k in range(10)]),
}


def deep_window(events: int = 3000, seed: int = 0) -> Array:
    """Far deeper than there are labels."""
    ids = np.random.default_rng(seed).zipf(1.4, (2, events)) % 40
    none = np.zeros(40, np.bool_)
    return Linker(none, none)(*ids.astype(np.int32))


def check(prev: Array, cut: Array) -> None:
    """A cut is sorted, has no state twice, and every state in it exists and has a reader."""
    assert cut.dtype == np.int64
    assert (np.diff(cut) > 0).all()
    reader, side = np.nonzero(prev >= 0)
    assert np.isin(cut, 2 * prev[reader, side].astype(np.int64) + side).all()
    assert (levels(prev, cut) <= levels(prev)).all()


@pytest.mark.parametrize(("method", "way"), WAYS)
def test_every_method_keeps_its_word(method: str, way: str) -> None:
    for turn, prev in enumerate(random_windows(600, seed=3)):
        asked = 1 + turn % 9
        cut = select(prev, method, **{way: asked})
        check(prev, cut)
        if way == "k":
            assert len(cut) <= asked
        if way == "depth":
            assert longest_path(prev, cut) <= asked
        if way == "parts":
            assert longest_path(prev, cut) <= -(-len(prev) // asked)


@pytest.mark.parametrize(("method", "way"), WAYS)
@pytest.mark.parametrize("window", DEGENERATE)
@pytest.mark.parametrize("asked", [1, 2, 1000])
def test_degenerate_windows(method: str, way: str, window: str, asked: int) -> None:
    prev = DEGENERATE[window]
    cut = select(prev, method, **{way: asked})
    check(prev, cut)
    if way == "k" and asked == 1000:
        assert longest_path(prev, cut) == min(1, longest_path(prev))
    if way == "depth" and asked == 1000:
        assert len(cut) == 0


def test_algorithm_2_chooses_as_the_naive_version_does() -> None:
    for turn, prev in enumerate(random_windows(1500, most=40, seed=4)):
        k = (0, 1, 3, 10, 1000)[turn % 5]
        naive = list(algorithm_2(prev, k))
        chosen, reached = choose(prev, k, 1)
        assert chosen.tolist() == naive
        assert reached == longest_path(prev, np.sort(chosen))
        assert select(prev, "longest-path", k=k).tolist() == sorted(naive)


def test_algorithm_2_stops_at_a_depth_and_chooses_the_same_in_the_core() -> None:
    for prev in random_windows(500, seed=5):
        uncut = np.zeros(prev.shape, np.bool_)
        for depth in (1, 2, 4, 8):
            chosen, reached = choose(prev, 1000, depth)
            assert reached <= max(depth, min(1, len(prev)))
            assert chosen.tolist() == choose(prev, 1000, 1)[0][: len(chosen)].tolist()
            core = core_of(prev, heads(prev, uncut), tails(prev, uncut), depth)
            inside, _ = choose(core.prev, 1000, depth)
            assert (2 * core.event[inside >> 1] + (inside & 1)).tolist() == chosen.tolist()


def test_best_is_never_worse_than_algorithm_2() -> None:
    windows = [*random_windows(1500, seed=6), *(deep_window(seed=seed) for seed in range(3))]
    for turn, prev in enumerate(windows):
        k = (1, 2, 3, 5, 10, 20)[turn % 6]
        rival, own = select(prev, "longest-path", k=k), select(prev, k=k)
        assert len(own) <= k
        assert longest_path(prev, own) <= longest_path(prev, rival)
        if longest_path(prev, rival):
            assert len(select(prev, depth=longest_path(prev, rival))) <= len(rival)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=50), st.integers(1, 12))
@settings(max_examples=300, deadline=None)
def test_best_by_depth_keeps_to_the_depth(events: list[tuple[int, int]], depth: int) -> None:
    prev = link(events)
    cut = select(prev, depth=depth)
    check(prev, cut)
    assert longest_path(prev, cut) <= depth
    assert len(cut) <= len(select(prev, "depth", depth=depth))


@pytest.mark.parametrize("depth", [1, 2, 5, 33, 150, 400, 900])
def test_deep_windows_are_cut_to_the_depth(depth: int) -> None:
    prev = deep_window()
    assert longest_path(prev) > 900
    for method in ("best", "depth"):
        cut = select(prev, method, depth=depth)
        check(prev, cut)
        assert longest_path(prev, cut) <= depth


@pytest.mark.parametrize("most", LADDER)
def test_labels_on_a_grid_stand_for_levels(most: int) -> None:
    """Whatever labels events take, the links over which they rise as told leave no path longer than the depth."""
    rng = np.random.default_rng(7)
    for seed, depth in enumerate((3, 7, 40, 200, 450, 600)):
        prev = deep_window(1500, seed)
        uncut = np.zeros(prev.shape, np.bool_)
        core = core_of(prev, heads(prev, uncut), tails(prev, uncut), depth)
        count, rise = label_events(core, depth, most)
        assert count.min(initial=1) >= 1
        assert count.max(initial=0) <= most
        for _ in range(20):
            label = (rng.random(len(count)) ** rng.choice([0.3, 1, 3]) * count).astype(np.int64)
            kept = (core.prev >= 0) & (label[:, None] >= label[core.prev] + rise)
            assert longest_path(np.where(kept, core.prev, ENTRY).astype(np.int32)) <= depth


def test_a_mirror_twice_is_the_same() -> None:
    for prev in random_windows(200, seed=8):
        assert np.array_equal(mirror(mirror(prev)), prev)


def test_six_steps_cut_at_h3_take_three() -> None:
    chain = link([(0, item) for item in range(6)])
    assert longest_path(chain) == 6
    for method in ("longest-path", "best"):
        cut = select(chain, method, k=1)
        assert cut.tolist() == [2 * 2 + 0]  # h3 is the third event's; the side is the user's
        assert longest_path(chain, cut) == 3


@pytest.mark.parametrize("method", ["longest-path", "best"])
def test_eight_events_on_four_entities(method: str) -> None:
    prev = link([(user // 2, item // 2 - 1) for user, item in EIGHT])
    assert longest_path(prev) == 6
    assert fewest_dnodes(prev, 3) == 3
    cut = select(prev, method, k=3)
    assert len(cut) == 3
    assert longest_path(prev, cut) == 3
    assert len(select(prev, "depth", depth=3)) == len(select(prev, "best", depth=3)) == 3


def test_cut_by_time_cuts_what_crosses_a_border() -> None:
    for prev in random_windows(200, seed=9):
        for parts in (1, 2, 3, 7):
            part = [k * parts // len(prev) for k in range(len(prev))]
            expected = [
                2 * int(p) + s
                for k in range(len(prev))
                for s, p in enumerate(prev[k])
                if p >= 0 and part[p] != part[k]
            ]
            assert select(prev, "cut-by-time", parts=parts).tolist() == sorted(expected)


def test_the_gap_to_the_optimum() -> None:
    """No method beats the exact optimum, and `best` all but reaches it."""
    surplus: dict[str, list[int]] = {"best": [], "longest-path": [], "depth": []}
    steps: dict[str, list[int]] = {"best": [], "longest-path": []}
    for turn, prev in enumerate(random_windows(80, most=40, seed=10)):
        k = (1, 2, 4, 8)[turn % 4]
        rival = select(prev, "longest-path", k=k)
        depth = longest_path(prev, rival)
        if depth == 0:
            continue
        optimum = fewest_dnodes(prev, depth)
        surplus["longest-path"].append(len(rival) - optimum)
        surplus["best"].append(len(select(prev, depth=depth)) - optimum)
        surplus["depth"].append(len(select(prev, "depth", depth=depth)) - optimum)
        reached = longest_path(prev, select(prev, k=k))
        least = shortest_longest_path(prev, k, reached)
        steps["best"].append(reached - least)
        steps["longest-path"].append(depth - least)
    assert min(min(gaps) for gaps in (*surplus.values(), *steps.values())) >= 0
    assert np.mean(surplus["best"]) <= 0.05
    assert np.mean(surplus["best"]) < np.mean(surplus["longest-path"]) / 10
    assert np.mean(steps["best"]) <= 0.05
    assert np.mean(steps["best"]) < np.mean(steps["longest-path"])


@pytest.mark.parametrize(
    ("method", "asked", "message"),
    [
        ("bset", {"k": 1}, "there is no method 'bset'"),
        ("best", {}, "is asked by one of: k, depth"),
        ("best", {"k": 1, "depth": 2}, "is asked by one of: k, depth"),
        ("longest-path", {"depth": 2}, "is asked by one of: k"),
        ("best", {"k": -1}, "k = -1 is too small"),
        ("best", {"depth": 0}, "depth = 0 is too small"),
    ],
)
def test_what_cannot_be_asked(method: str, asked: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        select(DEGENERATE["one pair"], method, **asked)
