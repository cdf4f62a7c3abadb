"""Plans of whole logs: in parallel as in series, from the cache as fresh, and never from a bad cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynedge.data.log import EventLog, LogWriter, read_log
from dynedge.data.splits import Split
from dynedge.errors import UsageError
from dynedge.plan import planner
from dynedge.plan.cost_model import H200, PASSES, Cost, depth_within, measure
from dynedge.plan.planner import Plan, Planned, Question, Setting, plan


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


def assert_same(one: list[Planned], two: list[Planned]) -> None:
    assert [p.events for p in one] == [p.events for p in two]
    assert [p.stats for p in one] == [p.stats for p in two]
    for a, b in zip(one, two, strict=True):
        for field in fields(a.schedule):
            np.testing.assert_array_equal(getattr(a.schedule, field.name), getattr(b.schedule, field.name))


def test_windows_cover_the_training_events_and_numbers_are_right() -> None:
    log = memory_log()
    planned = list(plan(log, windows=7, k=5))
    assert [k for p in planned for k in p.events] == list(range(2400))
    for p in planned:
        assert p.stats.events == len(p.events) == len(p.schedule.reads)
        assert p.stats.longest_path == p.schedule.depth
        assert p.stats.dnodes == len(p.schedule.codes) <= 5
        assert p.stats.rows == len(p.schedule.event) == 2 * len(p.events)


def test_parallel_equals_serial() -> None:
    log = memory_log()
    asked: dict[str, Any] = {"windows": 13, "active_users": 60, "active_items": 90, "k": 6}
    assert_same(list(plan(log, **asked, threads=0)), list(plan(log, **asked, threads=3)))


def test_thresholds_count_the_training_events_only() -> None:
    log = EventLog.from_arrays([0] * 8 + [1] * 8, [0, 1] * 8, range(16))
    half = Split.parse("0.5,0.25,0.25")
    (window,) = plan(log, split=half, windows=1, active_users=7, active_items=4)
    assert window.schedule.psi_users.tolist() == [0]  # 8 > 7 events, all of them in training
    assert window.schedule.psi_items.tolist() == []  # 4 training events each, though 8 in all
    (window,) = plan(log, split=half, windows=1, active_users=8, active_items=3)
    assert (window.schedule.psi_users.tolist(), window.schedule.psi_items.tolist()) == ([], [0, 1])


def test_more_windows_than_events_leaves_some_empty() -> None:
    planned = list(plan(memory_log(10), windows=20, k=3))
    assert len(planned) == 20
    assert sum(p.stats.events for p in planned) == 8


def test_an_empty_log() -> None:
    planned = list(plan(memory_log(0), windows=3, k=3))
    assert [p.stats for p in planned] == [(0, 0, 0, 0)] * 3


def test_stats_and_cuts_equal_those_of_a_pass(log: EventLog) -> None:
    without = plan(log, windows=5, k=9, cache=False)
    planned = list(plan(log, windows=5, k=9, cache=False))
    assert without.stats == [p.stats for p in planned]
    for cut, p in zip(without.cuts, planned, strict=True):
        np.testing.assert_array_equal(cut, p.schedule.codes)


def test_survey_answers_many_questions_and_chooses_nothing() -> None:
    uncut = plan(memory_log(), windows=5)
    found = list(uncut.survey([Question("best", k=0), Question("best", depth=4)], of=[1, 3]))
    assert len(found) == 2
    for plain, cut in found:
        assert plain.dnodes == 0
        assert cut.longest_path <= 4 < plain.longest_path
    assert {window.dnodes for window in uncut.stats} == {0}


@pytest.mark.parametrize("asked", [{"k": 0}, {"k": 8}, {"depth": 6}, {"method": "cut-by-time", "parts": 4}])
def test_a_cached_plan_equals_a_fresh_one(log: EventLog, asked: dict[str, Any]) -> None:
    first = plan(log, windows=6, active_items=100, **asked)
    fresh = list(first)
    assert not first.from_cache
    again = plan(log, windows=6, active_items=100, **asked)
    assert again.from_cache
    assert_same(fresh, list(again))
    assert again.stats == first.stats
    read_log(log.path or "").verify()


def test_the_second_epoch_chooses_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = plan(memory_log(), windows=4, k=8)
    first = list(epochs)
    monkeypatch.setattr(planner.dnodes, "select", None)
    assert_same(first, list(epochs))


def test_a_pass_that_stops_early_caches_nothing(log: EventLog) -> None:
    for _ in plan(log, windows=6, k=3):
        break
    assert not plan(log, windows=6, k=3).from_cache


def spoil_codes(folder: Path) -> None:
    raw = bytearray((folder / "codes.npy").read_bytes())
    raw[-1] ^= 1
    (folder / "codes.npy").write_bytes(raw)


def truncate_codes(folder: Path) -> None:
    raw = (folder / "codes.npy").read_bytes()
    (folder / "codes.npy").write_bytes(raw[: len(raw) // 2])


def empty_codes(folder: Path) -> None:
    (folder / "codes.npy").write_bytes(b"")


def remove_codes(folder: Path) -> None:
    (folder / "codes.npy").unlink()


def truncate_index(folder: Path) -> None:
    raw = (folder / "plan.json").read_bytes()
    (folder / "plan.json").write_bytes(raw[: len(raw) // 2])


def edit_index(folder: Path, **changes: Any) -> None:
    index = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(index | changes))


def change_numbers(folder: Path) -> None:
    index = json.loads((folder / "plan.json").read_text())
    index["stats"][0][1] += 1
    edit_index(folder, stats=index["stats"])


def older_version(folder: Path) -> None:
    edit_index(folder, version=0)


def another_log(folder: Path) -> None:
    edit_index(folder, log="0" * 64)


def not_an_index(folder: Path) -> None:
    (folder / "plan.json").write_text("[]")


DAMAGES = [
    spoil_codes,
    truncate_codes,
    empty_codes,
    remove_codes,
    truncate_index,
    change_numbers,
    older_version,
    another_log,
    not_an_index,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_not_used_and_is_replaced(log: EventLog, damage: Callable[[Path], None]) -> None:
    fresh = list(plan(log, windows=6, k=8))
    assert log.path
    (folder,) = (log.path / "plans").iterdir()
    damage(folder)
    rebuilt = plan(log, windows=6, k=8)
    assert not rebuilt.from_cache
    assert_same(fresh, list(rebuilt))
    assert plan(log, windows=6, k=8).from_cache


def test_the_key_changes_with_every_setting_and_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    base = Setting(train_end=100)
    changed = [
        replace(base, train_end=101),
        replace(base, windows=301),
        replace(base, active_users=5),
        replace(base, active_items=5),
        replace(base, method="longest-path"),
        replace(base, k=5),
        replace(base, depth=5),
        replace(base, parts=5),
    ]
    assert len(changed) == len(fields(Setting))
    keys = {setting.key("log") for setting in [base, *changed]} | {base.key("another log")}
    monkeypatch.setattr(planner, "VERSION", planner.VERSION + 1)
    keys.add(base.key("log"))
    assert len(keys) == len(changed) + 3


def test_another_log_in_the_same_place_is_planned_anew(log: EventLog) -> None:
    list(plan(log, windows=6, k=8))
    assert log.path
    kept = log.path.parent / "kept"
    (log.path / "plans").rename(kept)
    other = write(memory_log(seed=1), log.path)
    kept.rename(log.path / "plans")
    assert not plan(other, windows=6, k=8).from_cache


def test_no_cache_where_none_is_wanted_or_none_can_be(log: EventLog) -> None:
    assert log.path
    list(plan(log, windows=3, cache=False))
    assert not (log.path / "plans").exists()
    (log.path / "plans").write_text("in the way")  # as good as read-only: root may write anywhere
    list(plan(log, windows=3))
    assert not plan(log, windows=3).from_cache


def test_one_way_of_asking() -> None:
    log = memory_log(50)
    with pytest.raises(UsageError, match="one way"):
        plan(log, k=3, depth=4)
    with pytest.raises(UsageError, match="no method 'worst'"):
        plan(log, method="worst", k=0)
    with pytest.raises(UsageError):
        plan(log, depth=0)
    assert plan(log).setting.k == 0


COST = Cost("a machine", level_us=100.0, row_ns=1000.0)


def test_the_predicted_time_of_an_epoch() -> None:
    assert COST.seconds(levels=1000, rows=50_000) == pytest.approx(PASSES * (0.1 + 0.05))
    assert H200.seconds(levels=300 * 3000, rows=0) == pytest.approx(11.34)  # the paper's 20-hour ML-25M epoch


def test_a_budget_is_met_by_the_greatest_depth_that_fits() -> None:
    longest = [10, 40, 0, 25]
    for budget in (COST.seconds(3, 500), COST.seconds(30, 500), COST.seconds(60, 500), 1e9):
        depth = depth_within(budget, longest, 500, COST)
        assert COST.seconds(np.minimum(longest, depth).sum(), 500) <= budget
        assert depth == 40 or COST.seconds(np.minimum(longest, depth + 1).sum(), 500) > budget
    with pytest.raises(UsageError, match=r"--budget .* cannot be met"):
        depth_within(COST.seconds(2, 500), longest, 500, COST)


def test_a_plan_asked_by_budget_is_predicted_to_keep_it() -> None:
    log = memory_log()
    uncut = plan(log, windows=5).stats
    rows = sum(window.rows for window in uncut)
    budget = COST.seconds(sum(window.longest_path for window in uncut) / 3, rows)
    stats = plan(log, windows=5, budget=budget, cost=COST).stats
    assert COST.seconds(sum(window.longest_path for window in stats), rows) <= budget
    assert any(window.dnodes for window in stats)


def test_the_machine_at_hand_is_measured_quickly_and_once() -> None:
    cost = measure()
    assert 0.1 < cost.level_us < 10_000
    assert 1 < cost.row_ns < 1_000_000
    assert measure() is cost


def test_every_plan_is_iterable_again_and_has_a_length() -> None:
    twice = Plan(memory_log(), Setting(2400, windows=4, k=2))
    assert len(list(twice)) == len(list(twice)) == len(twice) == 4
