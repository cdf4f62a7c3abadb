"""Tests of schedules against sequential execution, and of every index array against brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dynedge.plan.dnodes import METHODS, select_dnodes
from dynedge.plan.levels import NO_DNODES
from dynedge.plan.links import ACTIVE, Linker
from dynedge.plan.schedule import NO_ROW, OTHER, OWN, Schedule, build_schedule

Array = np.ndarray[Any, Any]
VALUES = {"max_dnodes": (0, 1, 7, 10_000), "max_depth": (1, 2, 5), "parts": (1, 2, 4)}
REQUESTS = [
    (name, limit, value) for name, method in METHODS.items() for limit in method.limits for value in VALUES[limit]
]


class Window:
    """A random window with its links."""

    def __init__(self, seed: int, n: int = 50, users: int = 6, items: int = 5, active: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.users, self.items = n, users, items
        # sparse ids across 64-bit words, so that ids and ranks differ
        self.user = (rng.integers(0, users, n) * 37).astype(np.int32)
        self.item = (rng.integers(0, items, n) * 41).astype(np.int32)
        self.active = (rng.random(users * 37) < active, rng.random(items * 41) < active)
        self.prev = Linker(*self.active)(self.user, self.item)

    def schedule(self, dnodes: Array = NO_DNODES) -> Schedule:
        return build_schedule(self.user, self.item, self.prev, dnodes)

    def random_dnodes(self, seed: int, share: float = 0.3) -> Array:
        """A random subset of the states, including states without a reader."""
        codes = np.flatnonzero((self.prev != ACTIVE).ravel())
        return codes[np.random.default_rng(seed).random(len(codes)) < share]


def windows(active: float = 0.0, count: int = 20) -> list[Window]:
    return [
        Window(seed, n=5 + 3 * seed, users=2 + seed % 7, items=1 + seed % 5, active=active) for seed in range(count)
    ]


class IntegerCell:
    """A recurrent cell on integers below 2^61, for exact comparisons."""

    def start(self, side: int, entity: int) -> Array:
        return np.array([entity * 1_000_003 + side + 17], np.uint64)

    def update(self, own: Array, other: Array, event: Array, side: int) -> Array:
        mixed = own * np.uint64(6364136223846793005) + (other ^ (other >> np.uint64(7))) * np.uint64(
            1442695040888963407
        )
        mixed = mixed + event[:, None].astype(np.uint64) * np.uint64(2654435761) + np.uint64(side)
        return (mixed ^ (mixed >> np.uint64(29))) & np.uint64(2**61 - 1)

    def equal(self, one: Array, two: Array) -> None:
        np.testing.assert_array_equal(one, two)


class FloatCell:
    """A small GRU cell in float64. Matrix products of different heights may differ in the last bits, hence 1e-12."""

    def __init__(self) -> None:
        self.weights = np.random.default_rng(1).normal(0, 0.5, (2, 3, 9, 4))

    def start(self, side: int, entity: int) -> Array:
        return np.sin(np.arange(4) + entity + side)

    def update(self, own: Array, other: Array, event: Array, side: int) -> Array:
        both = np.concatenate([own, other, np.cos(event)[:, None]], axis=1)
        z, r, _ = 1 / (1 + np.exp(-(both @ self.weights[side])))
        candidate = np.tanh(np.concatenate([r * own, other, np.cos(event)[:, None]], axis=1) @ self.weights[side][2])
        return z * own + (1 - z) * candidate

    def equal(self, one: Array, two: Array) -> None:
        np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-12)


def run_sequentially(
    window: Window, cell: IntegerCell | FloatCell
) -> tuple[Array, Array, dict[tuple[int, int], Array]]:
    """(states read [n, 2, d], states written [n, 2, d], final states), computed by a loop over the events."""
    now: dict[tuple[int, int], Array] = {}
    read, written = [], []
    for k, pair in enumerate(zip(window.user, window.item, strict=True)):
        before = [now.get((s, e), cell.start(s, int(e))) for s, e in enumerate(pair)]
        after = [cell.update(before[s][None], before[1 - s][None], np.array([k]), s)[0] for s in (0, 1)]
        for s, entity in enumerate(pair):
            if not window.active[s][entity]:
                now[s, int(entity)] = after[s]
        read.append(before)
        written.append(after)
    return np.array(read), np.array(written), now


def run_by_levels(schedule: Schedule, cell: IntegerCell | FloatCell, phi: Array) -> Array:
    """The arena after running every level as one gather, one update and one write."""
    first = [
        cell.start(side, int(entity))
        for side, ids in (
            (0, schedule.entry_users),
            (1, schedule.entry_items),
            (0, schedule.psi_users),
            (1, schedule.psi_items),
        )
        for entity in ids
    ]
    arena = np.zeros((schedule.rows, phi.shape[-1]), phi.dtype)
    if first:
        arena[: schedule.first_phi] = first
    arena[schedule.first_phi : schedule.first_written] = phi
    for level in range(schedule.depth):
        for side in (0, 1):
            rows = np.arange(*schedule.blocks[2 * level + side : 2 * level + side + 2])
            own, other = schedule.parents[rows - schedule.first_written].T
            event = schedule.event[rows - schedule.first_written]
            arena[rows] = cell.update(arena[own], arena[other], event, side)
    return arena


def check_equal(window: Window, dnodes: Array, cell: IntegerCell | FloatCell) -> None:
    schedule = window.schedule(dnodes)
    read, written, end = run_sequentially(window, cell)
    arena = run_by_levels(schedule, cell, written.reshape(2 * window.n, -1)[dnodes])
    sides = side_of_rows(schedule)
    cell.equal(arena[schedule.first_written :], written[schedule.event, sides])
    cell.equal(arena[schedule.read_rows], read)
    entities = [(0, int(e)) for e in schedule.entry_users] + [(1, int(e)) for e in schedule.entry_items]
    assert set(entities) == set(end)
    cell.equal(arena[schedule.exit_rows], np.array([end[entity] for entity in entities]))
    assert (schedule.exit_rows >= schedule.first_written).all()
    cell.equal(arena[schedule.dnode_rows], arena[schedule.first_phi : schedule.first_written])


def side_of_rows(schedule: Schedule) -> Array:
    blocks = np.arange(2 * schedule.depth) % 2
    return np.repeat(blocks, np.diff(schedule.blocks))


@pytest.mark.parametrize("active", [0.0, 0.4])
@pytest.mark.parametrize(("method", "limit", "value"), REQUESTS)
def test_running_by_levels_equals_running_sequentially_on_integers(
    method: str, limit: str, value: int, active: float
) -> None:
    for window in windows(active):
        check_equal(window, select_dnodes(window.prev, method, **{limit: value}), IntegerCell())


@pytest.mark.parametrize("active", [0.0, 0.4])
def test_running_by_levels_equals_running_sequentially_on_floats_with_random_dnodes(active: float) -> None:
    for seed, window in enumerate(windows(active)):
        check_equal(window, window.random_dnodes(seed), FloatCell())
        check_equal(window, NO_DNODES, FloatCell())


@pytest.mark.parametrize("active", [0.0, 0.4, 1.0])
def test_every_state_is_written_once_and_levels_read_only_earlier_rows(active: float) -> None:
    for seed, window in enumerate(windows(active)):
        schedule = window.schedule(window.random_dnodes(seed))
        codes = 2 * schedule.event.astype(np.int64) + side_of_rows(schedule)
        np.testing.assert_array_equal(np.sort(codes), np.flatnonzero((window.prev != ACTIVE).ravel()))
        for block in range(2 * schedule.depth):
            start, stop = schedule.blocks[block : block + 2]
            level_start = schedule.blocks[block // 2 * 2]
            inside = slice(start - schedule.first_written, stop - schedule.first_written)
            assert (np.diff(schedule.event[inside]) > 0).all()
            assert (schedule.parents[inside] < level_start).all()
            assert schedule.blocks[block // 2 * 2 + 2] > level_start  # no level is empty


@pytest.mark.parametrize("active", [0.0, 0.4, 1.0])
def test_children_are_the_inverse_of_parents(active: float) -> None:
    for seed, window in enumerate(windows(active)):
        schedule = window.schedule(window.random_dnodes(seed))
        readers: dict[tuple[int, int], list[int]] = {}
        for w, pair in enumerate(schedule.parents):
            for role in (OWN, OTHER):
                readers.setdefault((int(pair[role]), role), []).append(schedule.first_written + w)
        for row in range(schedule.rows):
            own, other = (readers.get((row, role), []) for role in (OWN, OTHER))
            if schedule.first_psi <= row < schedule.first_phi:
                start, stop = schedule.psi_starts[row - schedule.first_psi :][:2]
                assert own == []
                assert list(schedule.psi_readers[start:stop]) == other
                assert list(schedule.children[row]) == [NO_ROW, NO_ROW]
            else:
                assert [own or [NO_ROW], other or [NO_ROW]] == [[c] for c in schedule.children[row]]


@pytest.mark.parametrize("active", [0.0, 0.4, 1.0])
def test_rows_before_gives_each_item_as_of_just_before_the_event(active: float) -> None:
    for seed, window in enumerate(windows(active)):
        schedule = window.schedule(window.random_dnodes(seed))
        items = np.arange(-1, window.items * 41 + 2, dtype=np.int32)
        rows = schedule.rows_before(items[None, :], np.arange(window.n)[:, None])
        now = dict.fromkeys(items.tolist(), NO_ROW)
        now |= {int(e): len(schedule.entry_users) + j for j, e in enumerate(schedule.entry_items)}
        now |= {int(e): schedule.first_psi + len(schedule.psi_users) + j for j, e in enumerate(schedule.psi_items)}
        row_of = {
            (int(k), int(s)): r for r, (k, s) in enumerate(zip(schedule.event, side_of_rows(schedule), strict=True))
        }
        phi_of = {int(code): j for j, code in enumerate(schedule.dnodes)}
        for k in range(window.n):
            assert rows[k].tolist() == list(now.values())
            if (k, 1) in row_of:
                phi = phi_of.get(2 * k + 1)
                now[int(window.item[k])] = (
                    schedule.first_written + row_of[k, 1] if phi is None else schedule.first_phi + phi
                )
        np.testing.assert_array_equal(
            schedule.rows_before(window.item, np.arange(window.n)), schedule.read_rows[:, 1]
        )


def test_degenerate_windows() -> None:
    empty = Window(0, n=0).schedule()
    assert (empty.depth, empty.rows, len(empty.read_rows)) == (0, 0, 0)
    assert empty.rows_before(np.array([3]), np.array([0])).tolist() == [NO_ROW]

    one = Window(0, n=1).schedule()
    assert (one.depth, one.rows) == (1, 4)
    assert one.exit_rows.tolist() == [2, 3]

    one_pair = Window(0, n=30, users=1, items=1)
    assert one_pair.schedule().depth == 30
    check_equal(one_pair, one_pair.random_dnodes(0, share=1.0), IntegerCell())
    assert one_pair.schedule(one_pair.random_dnodes(0, share=1.0)).depth == 1

    all_active = Window(0, n=30, active=1.0)
    schedule = all_active.schedule()
    assert (schedule.depth, len(schedule.event), len(schedule.exit_rows), len(schedule.psi_readers)) == (0, 0, 0, 0)
    assert (schedule.read_rows < schedule.rows).all()
    assert schedule.rows_before(all_active.item, np.arange(30)).tolist() == schedule.read_rows[:, 1].tolist()


def test_dnodes_that_are_not_states_are_refused() -> None:
    window = Window(0, n=30, active=1.0)
    with pytest.raises(ValueError, match="1 of 1 d-nodes are not states"):
        window.schedule(np.array([4]))
    with pytest.raises(ValueError, match="are not sorted"):
        Window(0).schedule(np.array([9, 4]))


def test_all_arrays_are_int32() -> None:
    schedule = Window(3, n=200, active=0.2).schedule()
    assert {getattr(schedule, name).dtype for name in schedule.__dataclass_fields__} == {np.dtype(np.int32)}
