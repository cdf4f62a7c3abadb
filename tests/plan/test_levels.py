"""Tests of levels against the explicit computation graph of the paper's Algorithm 1."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from plan.brute_force import Array, levels_by_graph, link, random_windows, state_graph

from dynedge.plan.levels import levels, longest_path
from dynedge.plan.links import ACTIVE


def random_dnodes(prev: Array, rng: np.random.Generator) -> Array:
    states = np.flatnonzero(prev != ACTIVE)
    return states[rng.random(len(states)) < rng.choice([0.05, 0.3, 1.0])]


def test_levels_equal_those_of_the_explicit_graph() -> None:
    rng = np.random.default_rng(0)
    for prev in random_windows(1000):
        for dnodes in (np.zeros(0, np.int64), random_dnodes(prev, rng)):
            level = levels(prev, dnodes)
            assert level.dtype == np.int32
            assert np.array_equal(level, levels_by_graph(prev, dnodes))


def test_longest_path_equals_that_of_the_explicit_graph() -> None:
    rng = np.random.default_rng(1)
    for prev in random_windows(300, seed=1):
        dnodes = random_dnodes(prev, rng)
        assert longest_path(prev, dnodes) == len(nx.dag_longest_path(state_graph(prev, dnodes)))


def test_more_dnodes_never_raise_a_level() -> None:
    rng = np.random.default_rng(2)
    for prev in random_windows(1000, seed=2):
        dnodes = random_dnodes(prev, rng)
        fewer = dnodes[rng.random(len(dnodes)) < 0.5]
        assert (levels(prev, dnodes) <= levels(prev, fewer)).all()
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
