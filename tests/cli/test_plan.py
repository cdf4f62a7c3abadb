"""The command plan: JSON, table, plot, and one sentence for every wrong flag."""

from __future__ import annotations

import builtins
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynedge.cli.plan
from dynedge.cli import run
from dynedge.data.id_index import IdIndex
from dynedge.data.log import read_log
from dynedge.data.log_writer import LogWriter
from dynedge.plan.planner import plan_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plan") / "log"
    rng = np.random.default_rng(0)
    user, item = (rng.zipf(1.6, (2, 1500)) - 1) % [[50], [30]]
    with LogWriter(path) as writer:
        writer.column("user", np.int32).append(user)
        writer.column("item", np.int32).append(item)
        writer.column("time", np.float64).append(np.arange(1500))
        writer.ids("user_ids", IdIndex.from_ids([f"u{k}" for k in range(50)]))
        writer.ids("item_ids", IdIndex.from_ids(range(30)))
        writer.finish(events=1500, users=50, items=30, item_features=[], split="0.7,0.1,0.2")
    return str(path)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["plan", *arguments, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_json_has_the_documented_keys_and_the_split_is_that_of_the_log(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_json(capsys, log, "--windows", "6", "--dnodes", "4")
    documented = {"windows", "events", "mean_longest_path", "max_longest_path", "mean_dnodes", "seconds"}
    assert documented <= set(result)
    assert (result["windows"], result["events"]) == (6, 1050)
    assert 0 < result["mean_longest_path"] <= result["max_longest_path"] <= 175
    assert 0 < result["mean_dnodes"] <= 4
    assert result["seconds"] > 0
    assert "table" not in result


def test_json_has_the_numbers_of_the_plan(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, log, "--windows", "6", "--dnodes", "4")
    stats = plan_log(read_log(log), windows=6, max_dnodes=4).stats
    paths, rows = [window.longest_path for window in stats], sum(window.rows for window in stats)
    assert len(set(paths)) > 1
    assert (result["mean_longest_path"], result["max_longest_path"]) == (sum(paths) / 6, max(paths))
    assert result["mean_dnodes"] == sum(window.dnodes for window in stats) / 6
    assert result["rows"] == rows
    assert result["epoch_seconds"]["h200"] == pytest.approx(3 * (sum(paths) * 4.2e-6 + rows * 1e-9))
    assert {name: result[name] for name in ("log", "method", "dnodes", "depth", "parts", "active_users")} == {
        **{"log": log, "method": "best", "dnodes": 4, "depth": None, "parts": None, "active_users": None}
    }
    assert run(["plan", log, "--windows", "6", "--dnodes", "4"]) == 0
    lines = {line[:14].strip(): line[14:] for line in capsys.readouterr().out.splitlines()}
    assert lines["d-nodes"] == f"{result['mean_dnodes']:.1f} per window"
    assert lines["longest path"] == f"mean {result['mean_longest_path']:.2f}, maximum {result['max_longest_path']}"
    assert lines["method"] == "best, at most 4 d-nodes per window"


def test_split_depth_and_activity_thresholds_change_the_plan(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, log, "--windows", "6", "--split", "0.5,0.2,0.3", "--depth", "5")["events"] == 750
    assert run_json(capsys, log, "--windows", "6", "--depth", "5")["max_longest_path"] <= 5
    uncut = run_json(capsys, log, "--windows", "6", "--dnodes", "0")
    active = run_json(capsys, log, "--windows", "6", "--dnodes", "0", "--active-users", "50", "--active-items", "50")
    assert active["mean_longest_path"] < uncut["mean_longest_path"]


def test_a_second_plan_comes_from_the_cache_unless_it_is_disabled(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [log, "--windows", "9", "--dnodes", "3"]
    assert not run_json(capsys, *arguments, "--no-cache")["cached"]
    first, second = run_json(capsys, *arguments), run_json(capsys, *arguments)
    assert (first["cached"], second["cached"]) == (False, True)
    for changing in ("cached", "seconds"):
        first.pop(changing), second.pop(changing)
    assert first == second
    assert not run_json(capsys, *arguments, "--no-cache")["cached"]


def test_without_a_limit_no_dnodes_are_used_and_table_4_is_printed(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_json(capsys, log, "--windows", "4")
    assert (result["dnodes"], result["mean_dnodes"]) == (0, 0)
    table = result["table"]
    assert [row["dnodes"] for row in table if row["method"] == "best"] == [0, 10, 20, 40, 80, 160, 320, 640]
    assert [row["parts"] for row in table if row["method"] == "cut-by-time"] == [1, 2, 4, 8, 16, 32, 64, 128]
    for method in ("best", "longest-path", "cut-by-time"):
        rows = [row for row in table if row["method"] == method]
        assert rows[0]["mean_longest_path"] == result["mean_longest_path"]
        assert rows[-1]["mean_longest_path"] < rows[0]["mean_longest_path"]
        assert rows[-1]["epoch_seconds"]["h200"] < rows[0]["epoch_seconds"]["h200"]

    assert run(["plan", log, "--windows", "4"]) == 0
    printed = capsys.readouterr()
    assert "longest path" in printed.out
    assert all(re.search(rf"^ *{count}  ", printed.out, re.M) for count in (0, 640, 128))


def test_a_large_log_is_surveyed_on_a_sample_of_its_windows(
    log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynedge.cli.plan, "SURVEY_EVENTS", 400)
    result = run_json(capsys, log, "--windows", "7")
    assert {row["windows"] for row in result["table"]} == {3}


def test_more_windows_than_events(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, log, "--windows", "3000", "--dnodes", "2", "--no-cache")
    assert (result["windows"], result["max_longest_path"]) == (3000, 1)


def test_a_budget_is_met_or_refused(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run_json(capsys, log, "--windows", "4", "--dnodes", "0")["epoch_seconds"]["h200"]
    result = run_json(capsys, log, "--windows", "4", "--budget", str(whole / 2), "--machine", "h200")
    assert result["epoch_seconds"]["h200"] <= whole / 2
    assert result["mean_dnodes"] > 0
    assert run(["plan", log, "--budget", "1e-9", "--machine", "h200"]) == 2
    assert "--budget 1e-09 cannot be met" in capsys.readouterr().err


BAD = {
    "--method worst": "--method 'worst' does not exist; choose one of: best, longest-path, depth, cut-by-time.",
    "--dnodes 5 --depth 6": "--dnodes and --depth exclude each other",
    "--dnodes 5 --budget 6": "--dnodes and --budget exclude each other",
    "--dnodes -1": "--dnodes -1 should be at least 0",
    "--depth 0": "--depth 0 should be at least 1",
    "--parts 0 --method cut-by-time": "--parts 0 should be at least 1",
    "--windows 0": "--windows 0 should be at least 1",
    "--active-users -3": "--active-users -3 should be at least 0",
    "--active-items -3": "--active-items -3 should be at least 0",
    "--budget 0": "--budget 0 should be a number of seconds above 0",
    "--budget nan": "--budget nan should be a number of seconds above 0",
    "--method cut-by-time --dnodes 5": "--method cut-by-time accepts --parts, not --dnodes",
    "--method longest-path --depth 5": "--method longest-path accepts --dnodes, not --depth",
    "--method longest-path --budget 5": "--method longest-path accepts --dnodes, not --budget",
    "--split 0.9,0.2": "--split '0.9,0.2' should be three fractions",
    "--machine abacus": "--machine 'abacus' does not exist; choose one of: cpu, h200.",
    "--plot picture.txt": "--plot picture.txt must end in one of",
    "--plot no/such/folder/p.png": "the folder no/such/folder does not exist",
    "--windows many": "Invalid value for '--windows'",
}


@pytest.mark.parametrize("flags", BAD)
def test_a_wrong_flag_is_one_sentence_and_exit_code_2(
    log: str, flags: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", log, *flags.split()]) == 2
    printed = capsys.readouterr()
    assert BAD[flags] in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_missing_log_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "no-such-log"]) == 3
    assert "no-such-log does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--dnodes", "3", "--active-items", "60"]])
def test_plot(log: str, flags: list[str], tmp_path: Path) -> None:
    assert run(["plan", log, "--windows", "3", "--plot", str(tmp_path / "p.png"), *flags]) == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert run(["plan", log, "--plot", str(tmp_path / "p.png")]) == 2
    assert "pip install 'dynedge[plots]'" in capsys.readouterr().err


def test_an_epoch_shared_by_processes_is_predicted(capsys: pytest.CaptureFixture[str], log: str) -> None:
    flags = log, "--windows", "10", "--dnodes", "0", "--segments", "4"
    one, four = (run_json(capsys, *flags, "--world", world)["shared"]["machines"]["h200"] for world in ("1", "4"))
    assert one["step_bytes"] == one["exchange"] == one["borders"] == 0
    assert four["step_bytes"] > 0 and four["steps"] == one["steps"] == 3
    assert one["compute"] / 4 < four["compute"] < one["compute"]
    assert four["memory"] < one["memory"]
    assert run(["plan", *flags, "--world", "3"]) == 2
    assert "--segments 4 should be a multiple of --world 3" in capsys.readouterr().err
    assert run(["plan", *flags]) == 0
    assert re.search(r"^shared +4 segments, 1 processes", capsys.readouterr().out, re.MULTILINE)
