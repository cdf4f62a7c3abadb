"""Reference implementations for the planner: slow and literal."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from dynedge.plan.links import ACTIVE, ENTRY, Linker
from dynedge.utils.array_type import Array

State = tuple[int, int]


def link(events: list[tuple[int, int]]) -> Array:
    """The links of events given as (user, item) pairs, with no active entities."""
    user, item = np.array(events, np.int32).reshape(-1, 2).T
    inactive = np.zeros(max(user.max(initial=0), item.max(initial=0)) + 1, np.bool_)
    return Linker(inactive, inactive)(user, item)


def random_window(rng: np.random.Generator, most: int = 60) -> Array:
    """The links of a random window: few or many entities, uniform or heavy-tailed, some of them active."""
    n, users, items = int(rng.integers(0, most + 1)), int(rng.integers(1, 20)), int(rng.integers(1, 20))
    skew = rng.choice([0.0, 1.0, 2.0])
    ids = [rng.choice(size, n, p=_weights(size, skew)).astype(np.int32) for size in (users, items)]
    flags = [rng.random(size) < rng.choice([0.0, 0.2]) for size in (users, items)]
    return Linker(*flags)(*ids)


def random_windows(count: int, most: int = 60, seed: int = 0) -> Iterator[Array]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield random_window(rng, most)


def _weights(size: int, skew: float) -> Array:
    weights = 1.0 / np.arange(1, size + 1) ** skew
    return weights / weights.sum()


def links_by_search(user: Array, item: Array, active_user: Array, active_item: Array) -> Array:
    """The links, by a search back through the window for each event and side."""
    prev = np.empty((len(user), 2), np.int32)
    for side, (ids, is_active) in enumerate(((user, active_user), (item, active_item))):
        for k in range(len(ids)):
            earlier = [j for j in range(k) if ids[j] == ids[k]]
            prev[k, side] = ACTIVE if is_active[ids[k]] else earlier[-1] if earlier else ENTRY
    return prev


def state_graph(prev: Array, dnodes: Array | None = None) -> nx.DiGraph:
    """The computation graph of the paper's Algorithm 1 over the states (k, s), without the links out of d-nodes."""
    is_dnode = set() if dnodes is None else set(np.asarray(dnodes).tolist())
    graph = nx.DiGraph()
    for k, s in np.argwhere(prev != ACTIVE).tolist():
        graph.add_node((k, s))
        for t in range(2):
            p = int(prev[k, t])
            if p >= 0 and 2 * p + t not in is_dnode:
                graph.add_edge((p, t), (k, s))
    return graph


def levels_by_graph(prev: Array, dnodes: Array | None = None) -> Array:
    graph = state_graph(prev, dnodes)
    depth: dict[State, int] = {}
    for state in nx.topological_sort(graph):
        depth[state] = 1 + max((depth[p] for p in graph.predecessors(state)), default=0)
    return np.array([max(depth.get((k, s), 0) for s in range(2)) for k in range(len(prev))], np.int32)


def algorithm_2(prev: Array, k: int) -> Iterator[int]:
    """The paper's Algorithm 2, recomputing all levels after each d-node. Ties as in dnodes/longest_path.py."""
    chosen: list[int] = []
    while len(chosen) < k:
        level = levels_by_graph(prev, np.array(chosen))
        longest = int(level.max(initial=0))
        if longest <= 1:
            return
        event = int(np.argmax(level))  # the earliest event of the highest level
        path: list[State] = []  # the states along the path, backward
        while level[event] > 1:
            parents = [
                (int(prev[event, s]), s)
                for s in range(2)
                if prev[event, s] >= 0 and 2 * int(prev[event, s]) + s not in chosen
            ]
            path.append(next(p for p in parents if level[p[0]] == level[event] - 1))
            event = path[-1][0]
        centre, side = path[::-1][(longest + 1) // 2 - 1]  # the third of six
        chosen.append(2 * centre + side)
        yield chosen[-1]


def fewest_dnodes(prev: Array, depth: int) -> int:
    """The exact optimum: the fewest d-nodes that leave no path longer than `depth`.

    The paper's integer program with unary levels: above[k, l] is 1 if the level of k is greater than l. A link is cut
    if for some l its parent is above l and its reader is not above l + 1. This relaxation is tighter than
    level[reader] ≥ level[parent] + 1 − depth · cut, and only the cuts have to be integers.
    """
    reader, side = np.nonzero(prev >= 0)
    links, n = len(reader), len(prev)
    if links == 0:
        return 0
    above = np.arange(n * (depth + 1)).reshape(n, depth + 1)  # column indices; above[k, 0] is 1, above[k, depth] is 0
    cuts = above.size + np.arange(links)
    # one row for each link and l: cut − above[parent, l] + above[reader, l + 1] ≥ 0
    step = np.repeat(np.arange(depth), links)
    column = [
        np.tile(cuts, depth),
        above[np.tile(prev[reader, side], depth), step],
        above[np.tile(reader, depth), step + 1],
    ]
    row = np.arange(links * depth)
    rows = coo_array(
        (np.repeat([1.0, -1.0, 1.0], len(row)), (np.tile(row, 3), np.concatenate(column))),
        shape=(len(row), above.size + links),
    ).tocsr()
    rows.indices, rows.indptr = (part.astype(np.int32) for part in (rows.indices, rows.indptr))  # for older scipy
    low, high = np.zeros(above.size + links), np.ones(above.size + links)
    low[above[:, 0]], high[above[:, depth]] = 1, 0
    is_integer = np.r_[np.zeros(above.size), np.ones(links)]
    solution = milp(
        is_integer, constraints=LinearConstraint(rows, lb=0), integrality=is_integer, bounds=Bounds(low, high)
    )
    assert solution.success, solution.message
    return round(solution.fun)


def shortest_longest_path(prev: Array, k: int, reached: int) -> int:
    """The exact optimum for k d-nodes: the shortest longest path they can leave. `reached` is an upper bound."""
    while reached > 1 and fewest_dnodes(prev, reached - 1) <= k:
        reached -= 1
    return reached
