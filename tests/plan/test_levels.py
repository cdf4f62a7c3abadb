"""Levels against the computational DAG of the paper's Algorithm 1, built state by state."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from plan.brute_force import Array, levels_by_graph, link, random_windows, state_graph

from dynedge.plan.levels import levels, longest_path
from dynedge.plan.links import ACTIVE


def random_cut(prev: Array, rng: np.random.Generator) -> Array:
    states = np.flatnonzero(prev != ACTIVE)
    return states[rng.random(len(states)) < rng.choice([0.05, 0.3, 1.0])]


def test_levels_are_those_of_the_graph() -> None:
    rng = np.random.default_rng(0)
    for prev in random_windows(1000):
        for cut in (np.zeros(0, np.int64), random_cut(prev, rng)):
            found = levels(prev, cut)
            assert found.dtype == np.int32
            assert np.array_equal(found, levels_by_graph(prev, cut))


def test_longest_path_is_that_of_the_graph() -> None:
    rng = np.random.default_rng(1)
    for prev in random_windows(300, seed=1):
        cut = random_cut(prev, rng)
        assert longest_path(prev, cut) == len(nx.dag_longest_path(state_graph(prev, cut)))


def test_a_cut_never_deepens_an_event() -> None:
    rng = np.random.default_rng(2)
    for prev in random_windows(1000, seed=2):
        cut = random_cut(prev, rng)
        fewer = cut[rng.random(len(cut)) < 0.5]
        assert (levels(prev, cut) <= levels(prev, fewer)).all()
        assert (levels(prev, fewer) <= levels(prev)).all()


@pytest.mark.parametrize(
    ("prev", "expected"),
    [
        (np.zeros((0, 2), np.int32), 0),
        (link([(0, 0)]), 1),
        (link([(0, 0)] * 7), 7),
        (np.full((5, 2), ACTIVE, np.int32), 0),
    ],
)
def test_degenerate_windows(prev: Array, expected: int) -> None:
    assert longest_path(prev) == expected
