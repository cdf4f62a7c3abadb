"""Schedules against events run one by one, and every index array against brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dynedge.plan import dnodes
from dynedge.plan.links import ACTIVE, Linker
from dynedge.plan.schedule import NO_ROW, OTHER, OWN, Schedule, build

Array = np.ndarray[Any, Any]
NO_CUT = np.zeros(0, np.int64)
ASKED = {"k": (0, 1, 7, 10_000), "depth": (1, 2, 5), "parts": (1, 2, 4)}
QUESTIONS = [(m, name, value) for m in dnodes.METHODS for name in dnodes.TAKES[m] for value in ASKED[name]]


class Window:
    """A random window and what a loop over its events computes, on the values a `world` brings."""

    def __init__(self, seed: int, n: int = 50, users: int = 6, items: int = 5, active: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.users, self.items = n, users, items
        # ids with gaps, across 64-bit words, so that ids and ranks differ
        self.user = (rng.integers(0, users, n) * 37).astype(np.int32)
        self.item = (rng.integers(0, items, n) * 41).astype(np.int32)
        self.active = (rng.random(users * 37) < active, rng.random(items * 41) < active)
        self.prev = Linker(*self.active)(self.user, self.item)

    def build(self, cut: Array = NO_CUT) -> Schedule:
        return build(self.user, self.item, self.prev, cut)

    def cut(self, seed: int, share: float = 0.3) -> Array:
        """Some of the states, whether they are read later or not."""
        codes = np.flatnonzero((self.prev != ACTIVE).ravel())
        return codes[np.random.default_rng(seed).random(len(codes)) < share]


def windows(active: float = 0.0, count: int = 20) -> list[Window]:
    return [
        Window(seed, n=5 + 3 * seed, users=2 + seed % 7, items=1 + seed % 5, active=active) for seed in range(count)
    ]


class Integers:
    """States are integers below 2^61; equality is exact."""

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


class Floats:
    """A small GRU in float64. Matrix products of different heights may differ in the last bits, hence 1e-12."""

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


def one_by_one(window: Window, world: Integers | Floats) -> tuple[Array, Array, dict[tuple[int, int], Array]]:
    """(states read [n, 2, d], states written [n, 2, d], states at the end), by a loop over the events."""
    now: dict[tuple[int, int], Array] = {}
    read, written = [], []
    for k, pair in enumerate(zip(window.user, window.item, strict=True)):
        before = [now.get((s, e), world.start(s, int(e))) for s, e in enumerate(pair)]
        after = [world.update(before[s][None], before[1 - s][None], np.array([k]), s)[0] for s in (0, 1)]
        for s, entity in enumerate(pair):
            if not window.active[s][entity]:
                now[s, int(entity)] = after[s]
        read.append(before)
        written.append(after)
    return np.array(read), np.array(written), now


def by_levels(schedule: Schedule, world: Integers | Floats, phi: Array) -> Array:
    """The arena after running every level, each as one gather, one update, one write."""
    first = [
        world.start(side, int(entity))
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
            arena[rows] = world.update(arena[own], arena[other], event, side)
    return arena


def check_equal(window: Window, cut: Array, world: Integers | Floats) -> None:
    schedule = window.build(cut)
    read, written, end = one_by_one(window, world)
    arena = by_levels(schedule, world, written.reshape(2 * window.n, -1)[cut])
    sides = side_of_rows(schedule)
    world.equal(arena[schedule.first_written :], written[schedule.event, sides])
    world.equal(arena[schedule.reads], read)
    entities = [(0, int(e)) for e in schedule.entry_users] + [(1, int(e)) for e in schedule.entry_items]
    assert set(entities) == set(end)
    world.equal(arena[schedule.exits], np.array([end[entity] for entity in entities]))
    assert (schedule.exits >= schedule.first_written).all()
    world.equal(arena[schedule.targets], arena[schedule.first_phi : schedule.first_written])


def side_of_rows(schedule: Schedule) -> Array:
    blocks = np.arange(2 * schedule.depth) % 2
    return np.repeat(blocks, np.diff(schedule.blocks))


@pytest.mark.parametrize("active", [0.0, 0.4])
@pytest.mark.parametrize(("method", "name", "value"), QUESTIONS)
def test_levels_in_order_equal_events_one_by_one_on_integers(
    method: str, name: str, value: int, active: float
) -> None:
    for window in windows(active):
        check_equal(window, dnodes.select(window.prev, method, **{name: value}), Integers())


@pytest.mark.parametrize("active", [0.0, 0.4])
def test_levels_in_order_equal_events_one_by_one_on_floats_and_any_cut(active: float) -> None:
    for seed, window in enumerate(windows(active)):
        check_equal(window, window.cut(seed), Floats())
        check_equal(window, NO_CUT, Floats())


@pytest.mark.parametrize("active", [0.0, 0.4, 1.0])
def test_every_state_is_written_once_and_levels_read_only_earlier_rows(active: float) -> None:
    for seed, window in enumerate(windows(active)):
        schedule = window.build(window.cut(seed))
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
def test_children_are_exactly_the_inverse_of_parents(active: float) -> None:
    for seed, window in enumerate(windows(active)):
        schedule = window.build(window.cut(seed))
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
def test_a_candidate_is_found_as_it_was_before_each_event(active: float) -> None:
    for seed, window in enumerate(windows(active)):
        schedule = window.build(window.cut(seed))
        items = np.arange(-1, window.items * 41 + 2, dtype=np.int32)
        found = schedule.rows_before(items[None, :], np.arange(window.n)[:, None])
        now = dict.fromkeys(items.tolist(), NO_ROW)
        now |= {int(e): len(schedule.entry_users) + j for j, e in enumerate(schedule.entry_items)}
        now |= {int(e): schedule.first_psi + len(schedule.psi_users) + j for j, e in enumerate(schedule.psi_items)}
        row_of = {
            (int(k), int(s)): r for r, (k, s) in enumerate(zip(schedule.event, side_of_rows(schedule), strict=True))
        }
        phi_of = {int(code): j for j, code in enumerate(schedule.codes)}
        for k in range(window.n):
            assert found[k].tolist() == list(now.values())
            if (k, 1) in row_of:
                cut = phi_of.get(2 * k + 1)
                now[int(window.item[k])] = (
                    schedule.first_written + row_of[k, 1] if cut is None else schedule.first_phi + cut
                )
        np.testing.assert_array_equal(schedule.rows_before(window.item, np.arange(window.n)), schedule.reads[:, 1])


def test_degenerate_windows() -> None:
    empty = Window(0, n=0).build()
    assert (empty.depth, empty.rows, len(empty.reads)) == (0, 0, 0)
    assert empty.rows_before(np.array([3]), np.array([0])).tolist() == [NO_ROW]

    one = Window(0, n=1).build()
    assert (one.depth, one.rows) == (1, 4)
    assert one.exits.tolist() == [2, 3]

    everything_on_one = Window(0, n=30, users=1, items=1)
    assert everything_on_one.build().depth == 30
    check_equal(everything_on_one, everything_on_one.cut(0, share=1.0), Integers())
    assert everything_on_one.build(everything_on_one.cut(0, share=1.0)).depth == 1

    all_active = Window(0, n=30, active=1.0)
    schedule = all_active.build()
    assert (schedule.depth, len(schedule.event), len(schedule.exits), len(schedule.psi_readers)) == (0, 0, 0, 0)
    assert (schedule.reads < schedule.rows).all()
    assert schedule.rows_before(all_active.item, np.arange(30)).tolist() == schedule.reads[:, 1].tolist()


def test_a_cut_that_names_no_state_is_refused() -> None:
    window = Window(0, n=30, active=1.0)
    with pytest.raises(ValueError, match="1 of 1 d-nodes are not states"):
        window.build(np.array([4]))
    with pytest.raises(ValueError, match="not sorted"):
        Window(0).build(np.array([9, 4]))


def test_arrays_are_compact() -> None:
    schedule = Window(3, n=200, active=0.2).build()
    assert {getattr(schedule, name).dtype for name in schedule.__dataclass_fields__} == {np.dtype(np.int32)}
