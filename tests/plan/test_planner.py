"""Tests of the planner, the plan cache and the cost model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynedge.data.log import EventLog, read_log
from dynedge.data.log_writer import LogWriter
from dynedge.data.splits import Split
from dynedge.data.synthetic import synthesize
from dynedge.data.windows import cut_windows
from dynedge.errors import UsageError
from dynedge.plan import cost_model, plan_cache, planner, window_work
from dynedge.plan.cost_model import H200, PASSES, CostModel, max_depth_within, measure_cpu
from dynedge.plan.plan_cache import PlanConfig
from dynedge.plan.planner import DNodeRequest, Plan, PlannedWindow, plan_log
from dynedge.plan.window_work import EVENT_WORK, event_work, parts_work, windows_of_equal_work


def memory_log(events: int = 3000, seed: int = 0) -> EventLog:
    rng = np.random.default_rng(seed)
    user, item = (rng.zipf(1.5, (2, events)) - 1) % [[90], [40]]
    return EventLog.from_arrays(user, item, np.arange(events), num_users=90, num_items=40)


def write(log: EventLog, path: Path) -> EventLog:
    with LogWriter(path, force=True) as writer:
        for name, dtype in (("user", np.int32), ("item", np.int32), ("time", np.float64)):
            writer.column(name, dtype).append(getattr(log, name))
        writer.ids("user_ids", log.user_ids)
        writer.ids("item_ids", log.item_ids)
        writer.finish(events=len(log), users=log.num_users, items=log.num_items, item_features=[])
    return read_log(path)


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return write(memory_log(), tmp_path / "log")


def assert_same(one: list[PlannedWindow], two: list[PlannedWindow]) -> None:
    assert [p.events for p in one] == [p.events for p in two]
    assert [p.stats for p in one] == [p.stats for p in two]
    for a, b in zip(one, two, strict=True):
        for field in fields(a.schedule):
            np.testing.assert_array_equal(getattr(a.schedule, field.name), getattr(b.schedule, field.name))


def test_windows_cover_the_training_events_and_statistics_are_right() -> None:
    log = memory_log()
    planned = list(plan_log(log, windows=7, max_dnodes=5))
    assert [k for p in planned for k in p.events] == list(range(2400))
    for p in planned:
        assert p.stats.events == len(p.events) == len(p.schedule.read_rows)
        assert p.stats.longest_path == p.schedule.depth
        assert p.stats.dnodes == len(p.schedule.dnodes) <= 5
        assert p.stats.rows == len(p.schedule.event) == 2 * len(p.events)


def test_parallel_planning_equals_serial_planning() -> None:
    log = memory_log()
    options: dict[str, Any] = {"windows": 13, "active_users": 60, "active_items": 90, "max_dnodes": 6}
    assert_same(list(plan_log(log, **options, threads=0)), list(plan_log(log, **options, threads=3)))


def test_thresholds_count_the_training_events_only() -> None:
    log = EventLog.from_arrays([0] * 8 + [1] * 8, [0, 1] * 8, range(16))
    half = Split.parse("0.5,0.25,0.25")
    (window,) = plan_log(log, split=half, windows=1, active_users=7, active_items=4)
    assert window.schedule.psi_users.tolist() == [0]  # 8 > 7 events, all of them in training
    assert window.schedule.psi_items.tolist() == []  # 4 training events each, though 8 in all
    (window,) = plan_log(log, split=half, windows=1, active_users=8, active_items=3)
    assert (window.schedule.psi_users.tolist(), window.schedule.psi_items.tolist()) == ([], [0, 1])


def test_more_windows_than_events_leave_some_windows_empty() -> None:
    planned = list(plan_log(memory_log(10), windows=20, max_dnodes=3))
    assert len(planned) == 20
    assert sum(p.stats.events for p in planned) == 8


def test_an_empty_log_has_empty_windows() -> None:
    planned = list(plan_log(memory_log(0), windows=3, max_dnodes=3))
    assert [p.stats for p in planned] == [(0, 0, 0, 0)] * 3


def test_stats_and_dnodes_equal_those_of_an_iteration(log: EventLog) -> None:
    without = plan_log(log, windows=5, max_dnodes=9, cache=False)
    planned = list(plan_log(log, windows=5, max_dnodes=9, cache=False))
    assert without.stats == [p.stats for p in planned]
    for dnodes, p in zip(without.dnodes, planned, strict=True):
        np.testing.assert_array_equal(dnodes, p.schedule.dnodes)


def test_compare_methods_gives_statistics_for_each_request_and_leaves_the_plan_unchanged() -> None:
    uncut = plan_log(memory_log(), windows=5)
    requests = [DNodeRequest("best", max_dnodes=0), DNodeRequest("best", max_depth=4)]
    stats = list(uncut.compare_methods(requests, windows=[1, 3]))
    assert len(stats) == 2
    for without, limited in stats:
        assert without.dnodes == 0
        assert limited.longest_path <= 4 < without.longest_path
    assert {window.dnodes for window in uncut.stats} == {0}


@pytest.mark.parametrize(
    "limit", [{"max_dnodes": 0}, {"max_dnodes": 8}, {"max_depth": 6}, {"method": "cut-by-time", "parts": 4}]
)
def test_a_cached_plan_equals_a_fresh_one(log: EventLog, limit: dict[str, Any]) -> None:
    first = plan_log(log, windows=6, active_items=100, **limit)
    fresh = list(first)
    assert not first.from_cache
    again = plan_log(log, windows=6, active_items=100, **limit)
    assert again.from_cache
    assert_same(fresh, list(again))
    assert again.stats == first.stats
    read_log(log.path or "").verify()


def test_the_second_epoch_selects_no_dnodes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = plan_log(memory_log(), windows=4, max_dnodes=8)
    first = list(epochs)
    monkeypatch.setattr(planner, "select_dnodes", None)
    assert_same(first, list(epochs))


def test_an_iteration_that_stops_early_caches_nothing(log: EventLog) -> None:
    for _ in plan_log(log, windows=6, max_dnodes=3):
        break
    assert not plan_log(log, windows=6, max_dnodes=3).from_cache


def flip_bit_in_dnodes(folder: Path) -> None:
    raw = bytearray((folder / "dnodes.npy").read_bytes())
    raw[-1] ^= 1
    (folder / "dnodes.npy").write_bytes(raw)


def truncate_dnodes(folder: Path) -> None:
    raw = (folder / "dnodes.npy").read_bytes()
    (folder / "dnodes.npy").write_bytes(raw[: len(raw) // 2])


def empty_dnodes(folder: Path) -> None:
    (folder / "dnodes.npy").write_bytes(b"")


def remove_dnodes(folder: Path) -> None:
    (folder / "dnodes.npy").unlink()


def truncate_index(folder: Path) -> None:
    raw = (folder / "plan.json").read_bytes()
    (folder / "plan.json").write_bytes(raw[: len(raw) // 2])


def edit_index(folder: Path, **changes: Any) -> None:
    index = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(index | changes))


def change_stats(folder: Path) -> None:
    index = json.loads((folder / "plan.json").read_text())
    index["stats"][0][1] += 1
    edit_index(folder, stats=index["stats"])


def set_older_version(folder: Path) -> None:
    edit_index(folder, version=0)


def set_other_log(folder: Path) -> None:
    edit_index(folder, log="0" * 64)


def replace_index_by_list(folder: Path) -> None:
    (folder / "plan.json").write_text("[]")


DAMAGES = [
    flip_bit_in_dnodes,
    truncate_dnodes,
    empty_dnodes,
    remove_dnodes,
    truncate_index,
    change_stats,
    set_older_version,
    set_other_log,
    replace_index_by_list,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_entry_is_ignored_and_replaced(log: EventLog, damage: Callable[[Path], None]) -> None:
    fresh = list(plan_log(log, windows=6, max_dnodes=8))
    assert log.path
    (folder,) = (log.path / "plans").iterdir()
    damage(folder)
    rebuilt = plan_log(log, windows=6, max_dnodes=8)
    assert not rebuilt.from_cache
    assert_same(fresh, list(rebuilt))
    assert plan_log(log, windows=6, max_dnodes=8).from_cache


def test_the_cache_key_depends_on_every_option_and_on_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    base = PlanConfig(train_end=100)
    changed = [
        replace(base, train_end=101),
        replace(base, windows=301),
        replace(base, active_users=5),
        replace(base, active_items=5),
        replace(base, method="longest-path"),
        replace(base, max_dnodes=5),
        replace(base, max_depth=5),
        replace(base, parts=5),
        replace(base, listed=5),
    ]
    assert len(changed) == len(fields(PlanConfig))
    keys = {config.key("log") for config in [base, *changed]} | {base.key("another log")}
    monkeypatch.setattr(plan_cache, "VERSION", plan_cache.VERSION + 1)
    keys.add(base.key("log"))
    assert len(keys) == len(changed) + 3


def test_the_cache_of_a_replaced_log_is_ignored(log: EventLog) -> None:
    list(plan_log(log, windows=6, max_dnodes=8))
    assert log.path
    saved = log.path.parent / "saved"
    (log.path / "plans").rename(saved)
    other = write(memory_log(seed=1), log.path)
    saved.rename(log.path / "plans")
    assert not plan_log(other, windows=6, max_dnodes=8).from_cache


def test_planning_works_without_a_cache_and_with_an_unwritable_one(log: EventLog) -> None:
    assert log.path
    list(plan_log(log, windows=3, cache=False))
    assert not (log.path / "plans").exists()
    (log.path / "plans").write_text("")  # a file instead of the folder: root could write to a read-only folder
    list(plan_log(log, windows=3))
    assert not plan_log(log, windows=3).from_cache


def test_invalid_limits_are_refused() -> None:
    log = memory_log(50)
    with pytest.raises(UsageError, match="only one of"):
        plan_log(log, max_dnodes=3, max_depth=4)
    with pytest.raises(UsageError, match="unknown d-node method 'worst'"):
        plan_log(log, method="worst", max_dnodes=0)
    with pytest.raises(UsageError):
        plan_log(log, max_depth=0)
    assert plan_log(log).config.max_dnodes == 0


COST = CostModel("a machine", level_us=100.0, row_ns=1000.0)


def test_predicted_epoch_time() -> None:
    assert COST.epoch_seconds(levels=1000, rows=50_000) == pytest.approx(PASSES * (0.1 + 0.05))
    assert H200.epoch_seconds(levels=300 * 3000, rows=0) == pytest.approx(
        11.34
    )  # ML-25M, whose epoch takes 20 hours in the paper


def test_the_greatest_depth_within_the_budget_is_chosen() -> None:
    longest = [10, 40, 0, 25]
    for budget in (COST.epoch_seconds(3, 500), COST.epoch_seconds(30, 500), COST.epoch_seconds(60, 500), 1e9):
        depth = max_depth_within(budget, longest, 500, COST)
        assert COST.epoch_seconds(np.minimum(longest, depth).sum(), 500) <= budget
        assert depth == 40 or COST.epoch_seconds(np.minimum(longest, depth + 1).sum(), 500) > budget
    with pytest.raises(UsageError, match=r"--budget .* cannot be met"):
        max_depth_within(COST.epoch_seconds(2, 500), longest, 500, COST)


def test_a_plan_with_a_budget_is_predicted_to_meet_it() -> None:
    log = memory_log()
    uncut = plan_log(log, windows=5).stats
    rows = sum(window.rows for window in uncut)
    budget = COST.epoch_seconds(sum(window.longest_path for window in uncut) / 3, rows)
    stats = plan_log(log, windows=5, budget=budget, cost=COST).stats
    assert COST.epoch_seconds(sum(window.longest_path for window in stats), rows) <= budget
    assert any(window.dnodes for window in stats)


def test_the_cpu_cost_model_fits_its_two_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_cpu.cache_clear()
    monkeypatch.setattr(cost_model, "_level_seconds", lambda rows, width: 5e-6 + 2 * rows * 150e-9)
    cost = measure_cpu()
    assert (cost.level_us, cost.row_ns) == (pytest.approx(5), pytest.approx(150))
    measure_cpu.cache_clear()


def test_the_cpu_is_measured_once() -> None:
    cost = measure_cpu()
    assert cost.level_us > 0 and cost.row_ns > 0
    assert measure_cpu() is cost


def test_the_work_of_an_event_counts_the_items_of_its_user() -> None:
    user, item = np.array([0, 0, 1, 0, 0, 1, 0]), np.array([3, 3, 3, 5, 2, 3, 9])
    items_before = np.array([0, 1, 0, 1, 2, 1, 3])
    assert np.array_equal(event_work(user, item, 10) - EVENT_WORK, items_before)
    assert np.array_equal(event_work(user, item, 2) - EVENT_WORK, np.minimum(items_before, 2))
    assert len(event_work(user[:0], item[:0], 2)) == 0


def test_the_work_of_a_long_log_is_that_of_some_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = synthesize("ml-25m-like", tmp_path / "log", events=30_000, quiet=True)
    exact = windows_of_equal_work(log, 28_000, 1000, 8)
    monkeypatch.setattr(window_work, "MOST_EVENTS", 10_000)
    monkeypatch.setattr(window_work, "PARTS", 64)
    monkeypatch.setattr(window_work, "READ_TOGETHER", 999)
    work = parts_work(log, 28_000, 1000)
    assert len(work) == 64 and work.min() >= EVENT_WORK and work[-1] > 1.05 * work[0]
    estimated = windows_of_equal_work(log, 28_000, 1000, 8)
    assert [w.start for w in estimated[1:]] == pytest.approx([w.start for w in exact[1:]], rel=0.005)
    assert estimated != exact


def test_parts_of_a_long_log_in_which_no_user_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the work of a neighbour; without any user that is counted, windows are of equal size."""
    monkeypatch.setattr(window_work, "MOST_EVENTS", 30)
    monkeypatch.setattr(window_work, "PARTS", 8)
    user, item = np.array([1] * 20 + [0, 1] * 20), np.arange(60)
    log = EventLog.from_arrays(user, item, np.arange(60.0))
    work = parts_work(log, 60, 100)
    assert work[:2].tolist() == [work[2]] * 2 and work.min() >= EVENT_WORK and work[-1] > work[2]
    log = EventLog.from_arrays(np.full(60, 1), item, np.arange(60.0))
    for train_end in (60, 0):
        assert windows_of_equal_work(log, train_end, 100, 4) == cut_windows(train_end, 4)


def test_windows_of_equal_work_become_shorter_and_are_stored(tmp_path: Path) -> None:
    log = synthesize("ml-25m-like", tmp_path / "log", events=4000, quiet=True)
    config = PlanConfig(3000, windows=6, max_dnodes=2, listed=1000)
    plan, equal = Plan(log, config), Plan(log, replace(config, listed=None))
    sizes = [len(window) for window in plan.windows]
    assert (
        sum(sizes) == 3000 and sizes[0] > 500 > sizes[-1] and [len(window) for window in equal.windows] == [500] * 6
    )
    fresh, again = list(plan), Plan(log, config)
    assert again.from_cache
    assert_same(fresh, list(again))


def test_a_plan_has_a_length_and_can_be_iterated_twice() -> None:
    twice = Plan(memory_log(), PlanConfig(2400, windows=4, max_dnodes=2))
    assert len(list(twice)) == len(list(twice)) == len(twice) == 4
