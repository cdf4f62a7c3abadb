"""The schedule of a window of one population, in which an entity is the user of some events and the item of others.

Legend: n events in the window, W written states, R rows of the arena.

Event k is two steps: 2·k updates its item, 2·k + 1 its user; both read the states before the event. So an entity has
one chain of states. An event of an entity with itself is one step. There are no active entities and no d-nodes.
In the Schedule, "items" are all entities, and "events" are steps: what it says of items holds for every entity.
"""

from __future__ import annotations

import numpy as np

from dynedge.plan.schedule import NO_ROW, OTHER, OWN, Schedule
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled


def build_shared_schedule(user: Array, item: Array) -> Schedule:
    """The schedule of a window with `user`, `item` int32[n], ids of one population."""
    entities, place = np.unique(np.concatenate((user, item)), return_inverse=True)
    places = np.ascontiguousarray(place.reshape(2, -1).T.astype(np.int32))  # [n, 2]: of user and item in `entities`
    level = _levels(places, len(entities))
    blocks = _blocks(places, level, len(entities))
    parents, step, children, read_rows, exit_rows, starts, steps, rows = _fill(places, level, blocks)
    none = np.zeros(0, np.int32)
    return Schedule(
        entry_users=none,
        entry_items=entities.astype(np.int32),
        psi_users=none,
        psi_items=none,
        dnodes=none,
        dnode_rows=none,
        parents=parents,
        event=step,
        blocks=blocks,
        children=children,
        psi_starts=np.zeros(1, np.int32),
        psi_readers=none,
        read_rows=read_rows,
        exit_rows=exit_rows,
        item_starts=starts,
        item_events=steps,
        item_rows=rows,
    )


@compiled
def _levels(places: Array, entities: int) -> Array:
    """int32[n]: 1 + the highest level among the previous events of both entities."""
    last, level = np.zeros(entities, np.int32), np.empty(len(places), np.int32)
    for k in range(len(places)):
        a, b = places[k, 0], places[k, 1]
        level[k] = max(last[a], last[b]) + 1
        last[a] = level[k]
        last[b] = level[k]
    return level


@compiled
def _blocks(places: Array, level: Array, first_written: int) -> Array:
    """int32[2L + 1]: where the rows of each level start, those of users (0) before those of items (1)."""
    depth = 0
    for k in range(len(level)):
        depth = max(depth, level[k])
    blocks = np.zeros(2 * depth + 1, np.int32)
    for k in range(len(level)):
        blocks[2 * level[k]] += 1  # the item's
        if places[k, 0] != places[k, 1]:
            blocks[2 * level[k] - 1] += 1  # the user's
    blocks[0] = first_written
    for b in range(2 * depth):
        blocks[b + 1] += blocks[b]
    return blocks


@compiled
def _fill(places: Array, level: Array, blocks: Array) -> tuple[Array, ...]:
    """parents, step, children, read_rows, exit_rows, then the steps and rows of each entity as in the Schedule."""
    n, first = len(places), blocks[0]
    written = blocks[-1] - first
    following = blocks.copy()
    parents, step = np.empty((written, 2), np.int32), np.empty(written, np.int32)
    children = np.full((first + written, 2), NO_ROW, np.int32)
    read_rows, row_of_step = np.empty((n, 2), np.int32), np.full(2 * n, NO_ROW, np.int32)
    now = np.arange(first).astype(np.int32)  # the row of each entity's latest state
    counts = np.zeros(first + 1, np.int32)
    for k in range(n):
        for s in range(2):
            read_rows[k, s] = now[places[k, s]]
        for s in range(2):
            if s == 0 and places[k, 0] == places[k, 1]:
                continue
            block = 2 * level[k] - 2 + s
            row = following[block]
            following[block] += 1
            own, other = read_rows[k, s], read_rows[k, 1 - s]
            parents[row - first, OWN], parents[row - first, OTHER] = own, other
            children[own, OWN], children[other, OTHER] = row, row
            step[row - first] = 2 * k + 1 - s
            row_of_step[2 * k + 1 - s] = row
            now[places[k, s]] = row
            counts[places[k, s] + 1] += 1
    starts = np.cumsum(counts).astype(np.int32)
    at = starts.copy()
    steps, rows = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.int32)
    for p in range(2 * n):  # in the order of steps: an event's item, then its user
        if row_of_step[p] != NO_ROW:
            entity = places[p // 2, 1 - p % 2]
            steps[at[entity]], rows[at[entity]] = p, row_of_step[p]
            at[entity] += 1
    return parents, step, children, read_rows, now, starts, steps, rows
