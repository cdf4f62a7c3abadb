"""Tests of the d-node methods against reference implementations, the paper's examples and the exact optimum."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.brute_force import Array, algorithm_2, fewest_dnodes, link, random_windows, shortest_longest_path

from dynedge.errors import UsageError
from dynedge.plan.dnodes import METHODS, select_dnodes
from dynedge.plan.dnodes.graph import codes_in_window, extract_core, heights, reverse_time
from dynedge.plan.dnodes.longest_path import cut_longest_paths
from dynedge.plan.dnodes.trws_solver import LABEL_COUNTS, label_events
from dynedge.plan.levels import levels, levels_with_cuts, longest_path
from dynedge.plan.links import ACTIVE, ENTRY, Linker

# Six levels; three d-nodes reduce them to three, two do not. Modelled on the paper's Figures 1 and 2.
EIGHT = [(1, 2), (3, 4), (1, 2), (1, 4), (3, 2), (1, 2), (1, 4), (1, 4)]
LIMITS = [(name, limit) for name, method in METHODS.items() for limit in method.limits]
DEGENERATE = {
    "empty": np.zeros((0, 2), np.int32),
    "one event": link([(0, 0)]),
    "one entity": link([(0, item) for item in range(30)]),
    "one pair": link([(0, 0)] * 30),
    "all active": np.full((10, 2), ACTIVE, np.int32),
    "users active": np.stack([np.full(10, ACTIVE, np.int32), np.arange(-1, 9, dtype=np.int32)], axis=1),
    "no links": link([(k, k) for k in range(10)]),
}


def deep_window(events: int = 3000, seed: int = 0) -> Array:
    """A window far deeper than the number of message-passing labels."""
    ids = np.random.default_rng(seed).zipf(1.4, (2, events)) % 40
    inactive = np.zeros(40, np.bool_)
    return Linker(inactive, inactive)(*ids.astype(np.int32))


def check(prev: Array, dnodes: Array) -> None:
    """d-nodes are sorted and unique, and every one of them is a state with a reader."""
    assert dnodes.dtype == np.int64
    assert (np.diff(dnodes) > 0).all()
    reader, side = np.nonzero(prev >= 0)
    assert np.isin(dnodes, 2 * prev[reader, side].astype(np.int64) + side).all()
    assert (levels(prev, dnodes) <= levels(prev)).all()


@pytest.mark.parametrize(("method", "limit"), LIMITS)
def test_every_method_respects_its_limit(method: str, limit: str) -> None:
    for turn, prev in enumerate(random_windows(600, seed=3)):
        value = 1 + turn % 9
        dnodes = select_dnodes(prev, method, **{limit: value})
        check(prev, dnodes)
        if limit == "max_dnodes":
            assert len(dnodes) <= value
        if limit == "max_depth":
            assert longest_path(prev, dnodes) <= value
        if limit == "parts":
            assert longest_path(prev, dnodes) <= -(-len(prev) // value)


@pytest.mark.parametrize(("method", "limit"), LIMITS)
@pytest.mark.parametrize("window", DEGENERATE)
@pytest.mark.parametrize("value", [1, 2, 1000])
def test_degenerate_windows(method: str, limit: str, window: str, value: int) -> None:
    prev = DEGENERATE[window]
    dnodes = select_dnodes(prev, method, **{limit: value})
    check(prev, dnodes)
    if limit == "max_dnodes" and value == 1000:
        assert longest_path(prev, dnodes) == min(1, longest_path(prev))
    if limit == "max_depth" and value == 1000:
        assert len(dnodes) == 0


@pytest.mark.slow
def test_algorithm_2_equals_the_naive_implementation() -> None:
    for turn, prev in enumerate(random_windows(1500, most=40, seed=4)):
        k = (0, 1, 3, 10, 1000)[turn % 5]
        naive = list(algorithm_2(prev, k))
        selected, longest = cut_longest_paths(prev, k, 1)
        assert selected.tolist() == naive
        assert longest == longest_path(prev, np.sort(selected))
        assert select_dnodes(prev, "longest-path", max_dnodes=k).tolist() == sorted(naive)


def test_algorithm_2_stops_at_a_depth_and_selects_the_same_in_the_core() -> None:
    for prev in random_windows(500, seed=5):
        no_cuts = np.zeros(prev.shape, np.bool_)
        for depth in (1, 2, 4, 8):
            selected, longest = cut_longest_paths(prev, 1000, depth)
            assert longest <= max(depth, min(1, len(prev)))
            assert selected.tolist() == cut_longest_paths(prev, 1000, 1)[0][: len(selected)].tolist()
            core = extract_core(prev, levels_with_cuts(prev, no_cuts), heights(prev, no_cuts), depth)
            inside, _ = cut_longest_paths(core.prev, 1000, depth)
            assert codes_in_window(core, inside).tolist() == selected.tolist()


def test_best_is_never_worse_than_algorithm_2() -> None:
    windows = [*random_windows(1500, seed=6), *(deep_window(seed=seed) for seed in range(3))]
    for turn, prev in enumerate(windows):
        k = (1, 2, 3, 5, 10, 20)[turn % 6]
        baseline, best = select_dnodes(prev, "longest-path", max_dnodes=k), select_dnodes(prev, max_dnodes=k)
        assert len(best) <= k
        assert longest_path(prev, best) <= longest_path(prev, baseline)
        if longest_path(prev, baseline):
            assert len(select_dnodes(prev, max_depth=longest_path(prev, baseline))) <= len(baseline)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=50), st.integers(1, 12))
@settings(max_examples=300, deadline=None)
def test_best_respects_max_depth(events: list[tuple[int, int]], depth: int) -> None:
    prev = link(events)
    dnodes = select_dnodes(prev, max_depth=depth)
    check(prev, dnodes)
    assert longest_path(prev, dnodes) <= depth
    assert len(dnodes) <= len(select_dnodes(prev, "depth", max_depth=depth))


@pytest.mark.parametrize("depth", [1, 2, 5, 33, 150, 400, 900])
def test_deep_windows_are_cut_to_the_depth(depth: int) -> None:
    prev = deep_window()
    assert longest_path(prev) > 900
    for method in ("best", "depth"):
        dnodes = select_dnodes(prev, method, max_depth=depth)
        check(prev, dnodes)
        assert longest_path(prev, dnodes) <= depth


@pytest.mark.parametrize("max_labels", LABEL_COUNTS)
def test_labels_that_rise_over_every_kept_link_bound_the_depth(max_labels: int) -> None:
    """For any labels, the links over which they rise enough contain no path longer than the depth."""
    rng = np.random.default_rng(7)
    for seed, depth in enumerate((3, 7, 40, 200, 450, 600)):
        prev = deep_window(1500, seed)
        no_cuts = np.zeros(prev.shape, np.bool_)
        core = extract_core(prev, levels_with_cuts(prev, no_cuts), heights(prev, no_cuts), depth)
        count, rise = label_events(core, depth, max_labels)
        assert count.min(initial=1) >= 1
        assert count.max(initial=0) <= max_labels
        for _ in range(20):
            label = (rng.random(len(count)) ** rng.choice([0.3, 1, 3]) * count).astype(np.int64)
            kept = (core.prev >= 0) & (label[:, None] >= label[core.prev] + rise)
            assert longest_path(np.where(kept, core.prev, ENTRY).astype(np.int32)) <= depth


def test_reversing_time_twice_is_the_identity() -> None:
    for prev in random_windows(200, seed=8):
        assert np.array_equal(reverse_time(reverse_time(prev)), prev)


def test_a_chain_of_six_events_is_cut_at_the_third() -> None:
    chain = link([(0, item) for item in range(6)])
    assert longest_path(chain) == 6
    for method in ("longest-path", "best"):
        dnodes = select_dnodes(chain, method, max_dnodes=1)
        assert dnodes.tolist() == [2 * 2 + 0]  # the user's state written by the third event
        assert longest_path(chain, dnodes) == 3


@pytest.mark.parametrize("method", ["longest-path", "best"])
def test_three_dnodes_halve_the_example_of_eight_events(method: str) -> None:
    prev = link([(user // 2, item // 2 - 1) for user, item in EIGHT])
    assert longest_path(prev) == 6
    assert fewest_dnodes(prev, 3) == 3
    dnodes = select_dnodes(prev, method, max_dnodes=3)
    assert len(dnodes) == 3
    assert longest_path(prev, dnodes) == 3
    assert len(select_dnodes(prev, "depth", max_depth=3)) == len(select_dnodes(prev, "best", max_depth=3)) == 3


def test_cut_by_time_cuts_the_links_across_part_boundaries() -> None:
    for prev in random_windows(200, seed=9):
        for parts in (1, 2, 3, 7):
            part = [k * parts // len(prev) for k in range(len(prev))]
            expected = [
                2 * int(p) + s
                for k in range(len(prev))
                for s, p in enumerate(prev[k])
                if p >= 0 and part[p] != part[k]
            ]
            assert select_dnodes(prev, "cut-by-time", parts=parts).tolist() == sorted(expected)


def test_cut_by_time_has_parts_of_equal_duration_where_times_are_known() -> None:
    prev = link([(0, 0), (0, 1), (0, 2), (0, 3)])
    for times, expected in (([0, 1, 2, 10], [4]), ([0, 9, 9, 10], [0]), ([5, 5, 5, 5], [2])):  # user states 2·k
        dnodes = select_dnodes(prev, "cut-by-time", parts=2, time=np.array(times, np.float64))
        assert dnodes.tolist() == expected, times


@pytest.mark.slow
def test_best_is_close_to_the_exact_optimum() -> None:
    """No method beats the exact optimum, and `best` nearly reaches it."""
    surplus: dict[str, list[int]] = {"best": [], "longest-path": [], "depth": []}
    steps: dict[str, list[int]] = {"best": [], "longest-path": []}
    for turn, prev in enumerate(random_windows(80, most=40, seed=10)):
        k = (1, 2, 4, 8)[turn % 4]
        baseline = select_dnodes(prev, "longest-path", max_dnodes=k)
        depth = longest_path(prev, baseline)
        if depth == 0:
            continue
        optimum = fewest_dnodes(prev, depth)
        surplus["longest-path"].append(len(baseline) - optimum)
        surplus["best"].append(len(select_dnodes(prev, max_depth=depth)) - optimum)
        surplus["depth"].append(len(select_dnodes(prev, "depth", max_depth=depth)) - optimum)
        longest = longest_path(prev, select_dnodes(prev, max_dnodes=k))
        least = shortest_longest_path(prev, k, longest)
        steps["best"].append(longest - least)
        steps["longest-path"].append(depth - least)
    assert min(min(gaps) for gaps in (*surplus.values(), *steps.values())) >= 0
    assert np.mean(surplus["best"]) <= 0.05
    assert np.mean(surplus["best"]) < np.mean(surplus["longest-path"]) / 10
    assert np.mean(steps["best"]) <= 0.05
    assert np.mean(steps["best"]) < np.mean(steps["longest-path"])


@pytest.mark.parametrize(
    ("method", "limits", "message"),
    [
        ("bset", {"max_dnodes": 1}, "unknown d-node method 'bset'"),
        ("best", {}, "takes exactly one of: max_dnodes, max_depth"),
        ("best", {"max_dnodes": 1, "max_depth": 2}, "takes exactly one of: max_dnodes, max_depth"),
        ("longest-path", {"max_depth": 2}, "takes exactly one of: max_dnodes."),
        ("best", {"max_dnodes": -1}, "max_dnodes is -1; it must be at least 0"),
        ("best", {"max_depth": 0}, "max_depth is 0; it must be at least 1"),
    ],
)
def test_invalid_method_or_limit_is_refused(method: str, limits: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        select_dnodes(DEGENERATE["one pair"], method, **limits)
